"""An ordered pop whose answer was lost is repeated with its `attempt_id` (SPEC POP-20)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltamq.api.ports import Ports
from deltamq.mq.limits import WAIT_MS_MAX
from tests.api.queue_calls import Queue, queue_in
from tests.api.running import until
from tests.faulty_store import HeldReads, faulty_disk

MINUTE = 60_000
ORDERS = pytest.mark.parametrize("order", [True, "key"])

pytestmark = pytest.mark.static_too


@ORDERS
def test_pop_20_a_repeated_pop_gets_the_same_messages_with_good_handles(queue: Queue, order: Any) -> None:
    queue.send(*"abcdef")
    billing = queue.consumer("billing")
    lost = billing.pop(3, order=order, attempt_id="x")
    queue.advance(MINUTE - 1)
    again = billing.pop(3, order=order, attempt_id="x")
    assert again.bodies == lost.bodies == ["a", "b", "c"] and again.attempts == [1, 1, 1]
    queue.advance(MINUTE - 1)
    assert billing.ack(lost.handles) == dict.fromkeys(lost.handles, "handle_expired"), "nobody else has them"
    assert billing.ack(again.handles) == {}, "their leases began anew"
    assert billing.pop(3, order=order, attempt_id="y").bodies == ["d", "e", "f"]


@ORDERS
def test_pop_20_another_id_and_none_get_what_they_got_before(queue: Queue, order: Any) -> None:
    queue.send(*"ab", key="k")
    billing = queue.consumer("billing")
    billing.pop(2, order=order, attempt_id="x")
    assert billing.pop(order=order, attempt_id="y").bodies == billing.pop(order=order).bodies == []
    assert queue.consumer("audit").pop(order=order, attempt_id="x").bodies == (["a", "b"] if order is True else ["a"])


def test_pop_20_the_messages_of_all_partitions_come_again_and_no_others(queue: Queue) -> None:
    first, second = queue.topic(partitions=2, name="events")
    queue.send("a", "b", topic="events", partition=first)
    billing = queue.consumer("billing", "events")
    assert billing.pop(1, order=True, attempt_id="x").bodies == ["a"]
    queue.send("c", "d", topic="events", partition=second)
    assert billing.pop(1, order=True, attempt_id="x").bodies == ["a"], "it was an answer, and not a place"
    assert billing.pop(2, order=True, attempt_id="y").bodies == ["c", "d"]
    queue.advance(MINUTE + 10)
    lost = billing.pop(3, order=True, attempt_id="z")
    again = billing.pop(3, order=True, attempt_id="z")
    assert sorted(lost.bodies) == sorted(again.bodies) == ["a", "c", "d"]
    assert {m["partition"] for m in again.messages} == {first, second}


def test_pop_20_what_does_not_fit_into_the_repetition_is_free_at_once(queue: Queue) -> None:
    queue.send(*"abcd")
    billing = queue.consumer("billing")
    assert billing.pop(4, order="key", attempt_id="x").bodies == ["a", "b", "c", "d"]
    assert billing.pop(1, order="key", attempt_id="x").bodies == ["a"]
    rest = billing.pop(order="key")
    assert rest.bodies == ["b", "c", "d"] and rest.attempts == [2, 2, 2]


def test_pop_20_an_answer_in_arrow_is_repeated_in_json(queue: Queue) -> None:
    queue.send(*"ab")
    billing = queue.consumer("billing")
    lost = pa.ipc.open_stream(billing.pop_arrow(order=True, attempt_id="x").body).read_all()
    again = billing.pop(order=True, attempt_id="x")
    assert [body.decode() for body in lost.column("body").to_pylist()] == again.bodies == ["a", "b"]
    assert not set(lost.column("handle").to_pylist()) & set(again.handles)


@ORDERS
def test_pop_20_what_was_settled_stays_settled(queue: Queue, order: Any) -> None:
    queue.send(*"abcd")
    billing = queue.consumer("billing")
    found = billing.pop(4, order=order, attempt_id="x")
    billing.ack(found.handles[:1])
    billing.nack(found.handles[1:2])
    billing.dead(found.handles[2:3])
    assert billing.pop(4, order=order, attempt_id="x").bodies == ["d"]
    assert [dead["body"] for dead in queue.dead_letters("billing")] == [b"c"]


@ORDERS
@pytest.mark.parametrize("clean", [True, False])
def test_pop_20_after_a_restart_the_messages_come_after_their_time_and_never_twice_at_once(
    queue: Queue, order: Any, clean: bool
) -> None:
    queue.send(*"ab")
    found = queue.consumer("billing").pop(order=order, attempt_id="x", invisible_ms=10_000)
    queue.restart() if clean else queue.crash()
    billing = queue.consumer("billing")
    assert billing.pop(order=order, attempt_id="x").bodies == []
    assert billing.ack(found.handles[:1]) == {}, "the first answer may have arrived"
    queue.advance(10_000)
    assert billing.pop(order=order, attempt_id="x").bodies == ["b"]


def test_pop_20_the_repeated_lease_is_stored_before_its_answer(queue: Queue) -> None:
    queue.send(*"ab")
    billing = queue.consumer("billing")
    billing.pop(order=True, attempt_id="x")
    queue.advance(MINUTE - 1)
    again = billing.pop(order=True, attempt_id="x")
    queue.crash()
    queue.advance(MINUTE - 2)
    assert queue.consumer("billing").ack(again.handles) == {}


def test_pop_20_after_a_reset_the_id_means_nothing(queue: Queue) -> None:
    queue.send(*"ab")
    billing = queue.consumer("billing")
    lost = billing.pop(1, order=True, attempt_id="x")
    reset = queue.api.call("POST", "/v1/groups/billing/topics/orders/offsets/reset", {"to": "first"})
    assert reset.status == 200, reset
    again = billing.pop(2, order=True, attempt_id="x")
    assert again.bodies == ["a", "b"]
    assert billing.ack(lost.handles) == {lost.handles[0]: "handle_expired"}


def test_pop_20_a_pop_that_still_waits_ends_when_it_is_repeated(queue: Queue) -> None:
    """Else it would take the next message, which nobody would get for a lease."""
    billing, lanes = queue.group("billing", order=True), queue.api.service.lanes
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(billing.pop, wait_ms=WAIT_MS_MAX, attempt_id="x")
        until(lambda: lanes.waiting == 1)
        second = pool.submit(billing.pop, wait_ms=WAIT_MS_MAX, attempt_id="x")
        assert first.result(20).bodies == []
        until(lambda: lanes.waiting == 1)
        queue.send("a")
        assert second.result(20).bodies == ["a"]


@pytest.mark.plain_only("it holds reads of the partition's files")
def test_pop_20_a_pop_that_still_reads_gives_its_messages_to_its_repetition(tmp_path: Path) -> None:
    with queue_in(tmp_path / "other") as queue:
        queue.topic()
        queue.send("a", "b")
    store, reads = faulty_disk(tmp_path / "other"), HeldReads()
    with queue_in(tmp_path / "other", Ports(store=store, lane_busy_ms=60_000)) as queue, ThreadPoolExecutor(2) as pool:
        queue.group("billing", order=True)
        billing = queue.consumer("billing")
        reads.begin(store)
        lost = pool.submit(billing.pop, 1, attempt_id="x")
        reads.wait()
        again = pool.submit(billing.pop, 1, attempt_id="x")
        reads.release()
        assert lost.result(30).bodies == again.result(30).bodies == ["a"]
        assert billing.ack(lost.result().handles) == {lost.result().handles[0]: "handle_expired"}
        assert billing.ack(again.result().handles) == {}


def test_pop_20_a_repetition_counts_no_message_again(queue: Queue) -> None:
    queue.send(*"ab")
    billing = queue.consumer("billing")
    for _ in range(3):
        billing.pop(order=True, attempt_id="x")
    assert queue.api.service.metrics.popped_messages["billing", "orders"] == 2
    assert billing.in_flight() == 2
