"""What groups have before them, as one process knows it: from memory, and by looks at tables (SPEC LOOK-11)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.api.log import partition
from deltamq.api.service.gauges import Sample
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed
from tests.api.as_static import is_static
from tests.api.queue_calls import Queue, queue_in
from tests.api.running import until

pytestmark = pytest.mark.static_too

_BILLING = ("billing", "orders")


@pytest.fixture
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse", static=is_static(request)) as found:
        found.topic()
        found.run(found.api.service.looks.stop())  # the tests say when it looks
        yield found


def _sample(queue: Queue, *, look: bool = True) -> Sample:
    async def sampled() -> Sample:
        if look:
            await queue.api.service.looks.round()
        return await queue.api.service.gauges.now(fresh_s=0.0)

    return queue.run(sampled())


def test_look_11_lag_age_flights_and_clients_come_from_memory(queue: Queue) -> None:
    billing = queue.group("billing")
    queue.send("a", "b")
    queue.advance(30_000)
    queue.send("c")
    queue.advance(60_000)
    assert _sample(queue, look=False).lag == {}, "a group that has not begun in a topic does not lag there"
    popped = billing.pop(1, client_id="worker-1")
    sample = _sample(queue, look=False)
    assert (sample.lag, sample.in_flight, sample.clients) == ({_BILLING: 3}, {_BILLING: 1}, {"billing": 1})
    assert sample.oldest_s == pytest.approx({_BILLING: 90}) and sample.unknown_lanes == 0
    billing.ack([*popped.handles, *billing.pop(1).handles])
    queue.settle()
    sample = _sample(queue, look=False)
    assert (sample.lag, sample.in_flight) == ({_BILLING: 1}, {})
    assert sample.oldest_s == pytest.approx({_BILLING: 60})
    billing.ack(billing.pop(1).handles)
    queue.settle()
    assert (_sample(queue, look=False).lag, _sample(queue, look=False).oldest_s) == ({_BILLING: 0}, {})


def test_look_11_the_oldest_message_in_a_rolled_up_file_is_found_by_a_look(queue: Queue) -> None:
    billing = queue.group("billing")
    for _ in range(32):
        queue.send("a")
        queue.clock.advance_ms(5_000)
    (name,) = queue.api.partitions("orders")
    log = queue.api.hosted("orders", name).log
    assert log is not None
    log.maintain()
    assert log.files[0].count == 32, "one file has them all"
    billing.ack(billing.pop(2).handles)
    queue.settle()
    assert _sample(queue, look=False).oldest_s == {}, "not known is left out"
    assert _sample(queue).oldest_s == pytest.approx({_BILLING: 150})
    billing.ack(billing.pop(4).handles)
    queue.settle()
    assert _sample(queue, look=False).oldest_s == pytest.approx({_BILLING: 150}), "as old as at the last look, at most"
    assert _sample(queue).oldest_s == pytest.approx({_BILLING: 130})


def test_look_11_after_a_restart_a_look_finds_the_lag(queue: Queue) -> None:
    billing = queue.group("billing")
    queue.send("a", "b")
    billing.ack(billing.pop(1).handles)
    queue.restart()
    assert _sample(queue).lag == {_BILLING: 1}


@pytest.mark.plain_only
def test_look_11_partitions_that_are_not_open_are_counted(queue: Queue) -> None:
    billing = queue.group("billing")
    queue.send("a", "b")
    billing.ack(billing.pop(1).handles)
    queue.restart()
    queue.run(queue.api.service.looks.stop())
    partitions = queue.api.service.partitions
    for opened in partitions:
        opened.log = None
    sample = _sample(queue, look=False)
    assert (sample.lag, sample.unknown_lanes) == ({}, 1)
    assert _sample(queue).unknown_lanes == 0


@pytest.mark.plain_only
def test_look_11_a_damaged_partition_is_looked_at_once(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "_OPEN_AGAIN_S", 0.0)
    billing = queue.group("billing")
    queue.send("a", "b")
    billing.ack(billing.pop(1).handles)
    (found,) = queue.api.partitions("orders").values()
    queue.stop()
    max((Path(found["location"]) / "_delta_log").glob("*.json")).write_bytes(b"")
    queue.start()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert _sample(queue).lag == {}
    assert caplog.text.count("event=partition_not_opened") <= 1


def test_look_11_what_was_retried_lags_and_is_as_old_as_its_failure(queue: Queue) -> None:
    billing = queue.group("billing")
    queue.send("a")
    queue.advance(60_000)
    billing.pop(1, invisible_ms=10_000)
    queue.advance(21_000)
    queue.revive()
    assert queue.retries("billing")
    queue.advance(5_000)
    until(lambda: _sample(queue).lag == {_BILLING: 1})  # who follows the partition may have seen it just before
    assert _sample(queue).oldest_s == pytest.approx({_BILLING: 5})


def test_look_11_dead_letters_that_are_new_are_counted(queue: Queue) -> None:
    billing = queue.group("billing")
    queue.send("a", "b", "c")
    billing.dead(billing.pop(3).handles)
    queue.advance(21_000)
    queue.revive()
    assert len(queue.dead_letters("billing")) == 3
    assert _sample(queue).dead_letters == {"billing": 3}
    queue.send("d")
    billing.dead(billing.pop(1).handles)
    sent = queue.api.call("POST", "/v1/groups/billing/dead-letters/replay", {"to": "retry"})
    assert sent.status == 200, sent
    queue.advance(21_000)
    queue.revive()
    assert _sample(queue).dead_letters == {"billing": 1}
    queue.api.call("DELETE", "/v1/groups/billing")
    queue.group("billing")
    assert _sample(queue).dead_letters == {}, "they were of an earlier life"


def test_look_11_delayed_messages_are_counted_and_late_once_they_are_overdue(queue: Queue) -> None:
    queue.send("a", "b", delay_ms=60_000)
    queue.send("c", delay_ms=600_000)
    queue.send("d", delay_ms=30_000, message_id="id-d")
    assert queue.api.call("DELETE", "/v1/topics/orders/delayed/id-d").status == 204
    sample = _sample(queue)
    assert (sample.delayed, sample.delayed_late_s) == (3, 0.0)
    queue.advance(90_000)
    sample = _sample(queue)
    assert (sample.delayed, sample.delayed_late_s) == (3, pytest.approx(30, abs=1))


def test_look_11_a_segment_behind_the_group_lags_before_the_group_begins_there(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse", service={"brokers": ("broker-a", "broker-b")}, static=True) as queue:
        queue.topic()
        billing = queue.group("billing", consume_from="last")
        billing.pop(1)
        queue.send("a")
        billing.ack(billing.pop(1).handles)
        remapped = queue.api.call("POST", "/v1/topics/orders/remap", {"brokers": ["broker-b"]})
        assert remapped.status == 200, remapped
        queue.send("b", "c")
        queue.settle()
        assert _sample(queue).lag == {_BILLING: 2}


@pytest.mark.plain_only
def test_look_11_a_partition_that_left_the_route_is_not_made_again(queue: Queue) -> None:
    queue.send("a")
    billing = queue.group("billing")
    billing.pop(1)
    topic = queue.api.service.topics.state.topic("orders")
    lane = LaneKey(topic.id, "billing", False, "orders@broker-gone")
    queue.api.service.lanes.logs.offsets.adopt({lane: Committed(1, 5)})
    hosting = queue.api.service.gauges.serving
    queue.api.service.gauges.serving = lambda: hosting() | {"broker-gone"}
    sample = _sample(queue)
    assert (sample.lag, sample.unknown_lanes) == ({_BILLING: 1}, 0)
    assert not list(queue.folder.rglob("*broker-gone"))


@pytest.mark.plain_only
def test_look_11_clients_of_broadcast_groups_do_not_lag(queue: Queue) -> None:
    queue.group("news", consume_strategy="broadcast")
    queue.send("a", "b")
    (name,) = queue.api.partitions("orders")
    path = "/v1/groups/news@worker-1/topics/orders/offsets"
    assert queue.api.call("PUT", path, {"offsets": {name: 1}}).status == 200
    assert _sample(queue).lag == {}


@pytest.mark.plain_only
def test_look_11_a_sample_gives_the_event_loop_to_others(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    billing = queue.group("billing")
    queue.send("a")
    billing.pop(1)
    begun = queue.api.service.lanes.begun
    monkeypatch.setattr(queue.api.service.lanes, "begun", lambda: [*begun()] * 200_000)
    gauges = queue.api.service.gauges

    async def turns_of_others() -> int:
        turns, sampling = 0, asyncio.ensure_future(gauges.now(fresh_s=0.0))
        while not sampling.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert queue.run(turns_of_others()) > 10
