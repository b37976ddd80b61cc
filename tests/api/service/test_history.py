"""Lag, rates and other gauges over time: sampled, stored, added up over processes (SPEC CONS-13)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.tables.queue.refs import HISTORY
from tests.api.auth.test_two_processes import consumer, two_in
from tests.api.queue_calls import Queue, queue_in
from tests.api.running import Api

MINUTE_MS = 60_000


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse") as found:
        found.topic()
        yield found


def _sample(queue: Queue) -> None:
    """Take a sample; those that the service takes by itself have the time of the same clock."""

    async def sampled() -> None:
        await queue.api.service.gauges.now(fresh_s=0.0)
        await queue.api.service.samples.sample()

    queue.run(sampled())


def _history(api: Api, query: str) -> dict[tuple[str, ...], list[float]]:
    reply = api.call("GET", f"/v1/history?{query}")
    assert reply.status == 200, reply
    return {tuple(one["labels"].values()): [value for _, value in one["points"]] for one in reply.json["series"]}


def _fill(queue: Queue) -> None:
    billing = queue.group("billing")
    _sample(queue)
    for count in (3, 0, 6):
        if count:
            queue.send(*(["x"] * count))
        if count == 3:
            billing.ack(billing.pop(1).handles)
            queue.settle()
        queue.advance(MINUTE_MS)
        _sample(queue)


def test_cons_13_lag_and_rates_are_sampled_and_outlive_the_process(queue: Queue) -> None:
    _fill(queue)
    minutes = "step_ms=60000"
    assert _history(queue.api, f"metric=lag&{minutes}") == {("billing", "orders"): [2, 2, 8]}
    assert _history(queue.api, f"metric=sent&topic=orders&{minutes}")["orders",] == pytest.approx([0.05, 0, 0.1])
    assert _history(queue.api, f"metric=sent&topic=other&{minutes}") == {}
    before = queue.api.service.hosting.id
    assert not queue.api.service.warehouse.exists(HISTORY)
    queue.run(queue.api.service.samples.store(whole=True))
    queue.restart()
    assert queue.api.service.hosting.id != before
    queue.run(queue.api.service.samples.load())
    assert _history(queue.api, f"metric=lag&group=billing&{minutes}") == {("billing", "orders"): [2, 2, 8]}
    queue.run(queue.api.service.samples.load())
    assert _history(queue.api, f"metric=lag&{minutes}") == {("billing", "orders"): [2, 2, 8]}, "loaded once"


def test_cons_13_what_does_not_change_is_stored_once_an_hour(queue: Queue) -> None:
    _fill(queue)
    service = queue.api.service

    def stored() -> int:
        queue.run(service.samples.store())
        return 0 if not service.warehouse.exists(HISTORY) else service.warehouse.open_partition(HISTORY).end_offset

    billing = queue.consumer("billing")
    billing.ack([message["handle"] for message in billing.pop_all()])
    for _ in range(2):
        queue.advance(5 * MINUTE_MS)
        _sample(queue)
    queue.advance(MINUTE_MS)
    first = stored()
    assert first > 0
    for _ in range(3):
        queue.advance(5 * MINUTE_MS)
        _sample(queue)
        assert stored() == first
    queue.advance(60 * MINUTE_MS)
    _sample(queue)
    queue.advance(MINUTE_MS)
    assert stored() > first


def test_cons_13_processes_add_up_and_a_dead_one_counts_while_it_lived(tmp_path: Path) -> None:
    for two in two_in(tmp_path / "warehouse"):
        caller = consumer(two, "orders")
        for broker, count in (("a", 2), ("b", 3)):
            for body in range(count):
                caller.send("orders", {"body": str(body), "partition": f"orders@broker-{broker}"})
            caller.call("POST", "/v1/groups/orders/topics/orders/pop", {"partition": f"orders@broker-{broker}"})
        for api in two:
            _run(api, api.service.gauges.now(fresh_s=0.0))
            _run(api, api.service.samples.sample())
        for api in two:
            assert _last(api, "metric=lag") == {("orders", "orders"): 5}
        assert _last(consumer(two, "other"), "metric=lag") == {}
        assert _last(caller.at(two.b), "metric=lag") == {("orders", "orders"): 5}
        assert _last(caller, "metric=delayed") == {} and _last(two.a, "metric=delayed") == {(): 0}
        _run(two.b, two.b.service.samples.store(whole=True))
        _run(two.a, two.a.service.samples.load())
        assert _last(two.a, "metric=lag") == {("orders", "orders"): 5}, "what answers counts once"


def _run(api: Any, work: Any) -> None:
    asyncio.run_coroutine_threadsafe(work, api.service.loop).result(30)


def _last(api: Any, query: str) -> dict[tuple[str, ...], float]:
    return {labels: values[-1] for labels, values in _history(api, query).items()}


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("", 400, "metric"),
        ("metric=weather", 422, "metric"),
        ("metric=lag&step_ms=14999", 400, "step_ms"),
        ("metric=lag&step_ms=20000", 400, "step_ms"),
        ("metric=lag&from_time=2013-01-01T00:00:00Z&step_ms=15000", 422, "step_ms"),
        ("metric=lag&from_time=yesterday", 400, "from_time"),
        ("metric=lag&from_time=9999-01-01T00:00:00Z", 422, "from_time"),
    ],
)
def test_cons_13_bad_requests_name_the_field(queue: Queue, query: str, status: int, field: str) -> None:
    reply = queue.api.call("GET", f"/v1/history?{query}")
    assert (reply.status, reply.json["field"]) == (status, field), reply


def test_cons_13_the_sdk(queue: Queue) -> None:
    _fill(queue)
    url = f"http://127.0.0.1:{queue.api.port}"
    with Admin(url) as admin:
        (series,) = admin.history("lag", group="billing", step_ms=MINUTE_MS)
        assert [value for _, value in series.points] == [2, 2, 8] and series.labels["topic"] == "orders"
