"""STATIC-20: delayed messages wait for their logical queue, wherever it is led when they are due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.meta.static_topics import decide_remap
from deltamq.tables import failpoints
from deltamq.tables.config import Config
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.refs import DELAY, system_ref
from tests.api.running import Api, config_for, running
from tests.api.static_calls import StaticTopic, name_of
from tests.faulty_store import faulty_disk
from tests.queue_engines import ENGINES, QueueJob, delay_job
from tests.set_clock import AheadClock

A, B = "broker-a", "broker-b"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def clock() -> AheadClock:
    return AheadClock()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return config_for(tmp_path_factory.mktemp("warehouse"))


@pytest.fixture(scope="module")
def api(config: Config, clock: AheadClock) -> Iterator[Api]:
    with running(config, Ports(clock=clock, store=faulty_disk(Path(config.warehouse.uri)))) as found:
        yield found


@pytest.fixture
def orders(api: Api, topic: str) -> StaticTopic:
    """Queue 0 is at broker-a, queue 1 at broker-b."""
    found = StaticTopic(api, topic)
    assert found.put(2, brokers=[A, B]).status == 201
    return found


@pytest.fixture(params=ENGINES)
def job(request: pytest.FixtureRequest, config: Config, clock: AheadClock) -> QueueJob:
    return delay_job(request.param, Warehouse.open(config.warehouse.uri, clock=clock), config)


def due(orders: StaticTopic, clock: AheadClock) -> int:
    """The time now, at which everything is due."""
    clock.ahead_ms += 2 * HOUR_MS
    return orders.api.service.now_ms()


def delay(orders: StaticTopic, *bodies: str, **more: object) -> None:
    messages: list[dict[str, object]] = [
        {"body": body, "partition": name_of(0), "delay_ms": HOUR_MS, **more} for body in bodies
    ]
    ranges = orders.send(*messages)["ranges"]
    assert all(one["delayed"] for one in ranges)


def test_static_20_a_message_waits_for_its_queue_and_not_for_a_partition(orders: StaticTopic) -> None:
    delay(orders, "a")
    warehouse = Warehouse.open(orders.api.service.warehouse.uri)
    log = warehouse.open_partition(system_ref(DELAY, "deltamq", A))
    found = [row["origin"] for page in pages(log, 0) for row in page.rows.to_pylist()]
    assert {"topic": f"{orders.id}/{orders.name}", "partition": name_of(0), "offset": -1} in found


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_20_what_is_due_goes_to_the_present_leader(
    orders: StaticTopic, job: QueueJob, clock: AheadClock, mode: str
) -> None:
    delay(orders, "a", "b")
    orders.send_to(0, "before")
    orders.remapped(B, mode=mode, queues=[0])
    delay(orders, "c")
    orders.remapped(A, mode=mode, queues=[0])
    job.run(due(orders, clock))
    begin = 1 if mode == "strict" else 20_000
    assert orders.stored()[0] == [(0, "before"), *((begin + at, body) for at, body in enumerate("abc"))]
    assert orders.send_to(0, "after") == [begin + 3]


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_20_what_a_killed_run_stored_before_a_remapping_is_not_stored_again(
    orders: StaticTopic, job: QueueJob, clock: AheadClock, mode: str
) -> None:
    delay(orders, "a", "b")
    failpoints.arm("delay.after_append=raise@1")
    try:
        job.run(due(orders, clock))
    finally:
        failpoints.arm("")
    assert [body for _, body in orders.stored()[0]] == ["a", "b"], "and no mark says so"
    orders.remapped(B, mode=mode, queues=[0])
    orders.remapped(A, mode=mode, queues=[0])
    job.run(due(orders, clock))
    assert orders.stored()[0] == [(0, "a"), (1, "b")]
    assert job.run(due(orders, clock))["waiting"] == 0


def test_static_10_a_job_that_meets_an_old_leader_that_is_not_sealed_seals_it(
    orders: StaticTopic, job: QueueJob, clock: AheadClock
) -> None:
    """An earlier try may still append to the old leader: only behind the seal is it certain what lies there."""
    delay(orders, "a")
    (old,) = [segment.partition for segment in orders.chains()[0].segments]
    with orders.without_seals(old):
        orders.change(lambda meta: decide_remap(meta, orders.name, [B], "available", 1_000, [0]))
        assert job.run(due(orders, clock))["rows"] == 1
    orders.ask("POST", "/check", {})
    assert orders.stored()[0] == [(10_000, "a")]


def test_static_20_a_waiting_message_is_cancelled_wherever_its_queue_has_gone(
    orders: StaticTopic, job: QueueJob, clock: AheadClock
) -> None:
    delay(orders, "a", message_id="m")
    orders.remapped(B)
    assert orders.ask("DELETE", "/messages/m").status == 204
    job.run(due(orders, clock))
    assert orders.stored()[0] == []
