"""Pops that wait: woken by what arrives, by whichever way (SPEC POP-15)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltamq.api.ports import Ports
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.schema import INGEST_SCHEMA
from tests.api.as_static import is_static
from tests.api.queue_calls import Consumer, Popped, Queue, queue_in
from tests.api.running import Reply, until
from tests.faulty_store import HeldReads, faulty_disk

#: Far longer than a wake-up takes, and than the test runner's patience is short.
WAIT_MS = 20_000

pytestmark = pytest.mark.static_too


@pytest.fixture
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse", static=is_static(request)) as found:
        found.topic(partitions=4)
        yield found


class Waiting:
    """A pop in a thread of its own; begun when the service has it among those that wait."""

    def __init__(self, consumer: Consumer, **ask: Any) -> None:
        self.answers: list[Reply] = []
        lanes = consumer.api.service.lanes
        before = lanes.waiting
        self._thread = threading.Thread(target=lambda: self.answers.append(consumer.ask(**{"wait_ms": WAIT_MS, **ask})))
        self.began = time.monotonic()
        self._thread.start()
        until(lambda: lanes.waiting > before or self.answers)

    def answer(self) -> Reply:
        """What it was answered, before the end of its wait."""
        self._thread.join(60)
        (reply,) = self.answers
        assert time.monotonic() - self.began < WAIT_MS / 1000, "it was not woken"
        return reply

    def result(self) -> Popped:
        reply = self.answer()
        assert reply.status == 200, reply
        return Popped(reply.json["messages"], reply.json["rest"], reply.json["invisible_ms"], {})


@pytest.mark.parametrize("at", range(4))
def test_pop_15_an_arrival_in_any_partition_wakes(queue: Queue, at: int) -> None:
    waiting = Waiting(queue.consumer("billing"))
    queue.send("a", partition=list(queue.api.partitions("orders"))[at])
    assert waiting.result().bodies == ["a"]


def test_pop_08_what_a_pop_acknowledges_is_done_while_the_pop_waits(tmp_path: Path) -> None:
    """It would be stored too late to be believed, if it were noted at the end of the wait."""
    with queue_in(tmp_path / "warehouse", memory_match=False) as queue:
        queue.topic()
        queue.send("a")
        billing = queue.consumer("billing")
        waiting = Waiting(billing, ack=billing.pop(invisible_ms=10_000).handles)
        until(lambda: billing.in_flight() == 0)
        queue.advance(11_000)
        queue.send("b")
        reply = waiting.answer()
        assert [message["body"] for message in reply.json["messages"]] == ["b"]
        assert reply.json["failed_acks"] == []


def test_pop_15_arrivals_wake_every_group(queue: Queue) -> None:
    waiting = [Waiting(queue.consumer(group)) for group in ("billing", "audit")]
    queue.send("a")
    assert [one.result().bodies for one in waiting] == [["a"], ["a"]]


def test_pop_15_a_commit_of_another_process_wakes(queue: Queue) -> None:
    waiting = Waiting(queue.consumer("billing"))
    warehouse = Warehouse.open(str(queue.folder), clock=queue.clock)
    log = warehouse.open_partition(queue.api.hosted("orders", "orders@broker-b").ref)
    log.append([Batch(pa.RecordBatch.from_pydict({"body": [b"a"]}, schema=pa.schema([INGEST_SCHEMA.field("body")])))])
    warehouse.close()
    assert waiting.result().bodies == ["a"]


def test_pop_15_a_retried_message_wakes(queue: Queue) -> None:
    queue.send("a")
    billing = queue.consumer("billing")
    billing.pop(invisible_ms=10_000)
    waiting = Waiting(billing)
    queue.advance(11_000)
    queue.revive()
    again = waiting.result()
    assert again.bodies == ["a"] and again.attempts == [2]


def test_pop_15_an_arrival_in_a_partition_that_was_added_wakes(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse") as queue:
        first, added = "orders@broker-a", "orders#x@broker-a"
        queue.api.put_topic("orders", routes=[first])
        waiting = Waiting(queue.consumer("billing"))
        queue.api.put_topic("orders", routes=[first, added])
        queue.send("a", partition=added)
        assert waiting.result().bodies == ["a"]


def test_pop_15_a_wait_ends_with_nothing(queue: Queue) -> None:
    began = time.monotonic()
    assert queue.consumer("billing").pop(wait_ms=200).bodies == []
    assert time.monotonic() - began >= 0.2


def test_pop_15_what_a_pop_leaves_is_for_those_that_wait(tmp_path: Path) -> None:
    """One lane whose pop is at the disk: others pass it by, and are told when it leaves something."""
    with queue_in(tmp_path / "warehouse") as queue:
        queue.topic()
        queue.send("a", "b")
    store, reads = faulty_disk(tmp_path / "warehouse"), HeldReads()
    # The messages are on the disk only, since another process took them.
    with queue_in(tmp_path / "warehouse", Ports(store=store, lane_busy_ms=60_000)) as queue:
        billing = queue.group("billing")
        assert sum(queue.api.stored("orders").values()) == 2, "it is open"
        reads.begin(store)
        answers: list[list[str]] = []
        first = threading.Thread(target=lambda: answers.append(billing.pop(1).bodies))
        first.start()
        reads.wait()
        waiting = Waiting(billing)
        assert not waiting.answers
        reads.release()
        first.join(30)
        assert sorted([*answers[0], *waiting.result().bodies]) == ["a", "b"]


def test_pop_15_tags_that_do_not_fit_do_not_end_a_wait(queue: Queue) -> None:
    waiting = Waiting(queue.consumer("billing"), tags="x")
    queue.send("a", tag="y")
    queue.send("b", tag="x")
    assert waiting.result().bodies == ["b"]


def test_pop_16_a_wait_in_order_ends_when_the_partition_is_free(queue: Queue) -> None:
    for order in (True, "key"):
        billing = queue.consumer(f"billing-{order}")
        queue.send("a", "b", partition="orders@broker-a", key="k")
        found = billing.pop(1, order=order)
        waiting = Waiting(billing, order=order, max_messages=1)
        assert billing.ack(found.handles) == {}
        more = waiting.result()
        assert len(more.messages) == 1 and more.messages[0]["offset"] == found.messages[0]["offset"] + 1
        waiting = Waiting(billing, order=order, max_messages=1)
        assert billing.nack(more.handles, delay_ms=0) == {}
        assert waiting.result().attempts == [2]


@pytest.mark.parametrize(
    ("one", "other"), [(True, True), ("key", "key"), (True, False), ("key", False), (True, "key"), ("key", True)]
)
@pytest.mark.parametrize("crash", [False, True])
def test_pop_16_a_wait_in_any_order_ends_when_the_invisible_time_does(
    tmp_path: Path, one: object, other: object, crash: bool
) -> None:
    with queue_in(tmp_path / "warehouse", invisible_ms_min=100) as queue:
        queue.topic()
        queue.send("a", key="k")
        billing = queue.consumer("billing")
        assert billing.pop(order=one, invisible_ms=300).bodies == ["a"]
        if crash:
            queue.crash()
            billing = queue.consumer("billing")
        waiting = Waiting(billing, order=other)
        # The loop's own clock runs; the one that says what is due is set to that time.
        queue.clock.advance_ms(300)
        again = waiting.result()
        assert again.bodies == ["a"] and again.attempts == [2]


def test_pop_15_a_wait_for_a_lane_in_another_order_looks_seldom_while_anything_is_leased(tmp_path: Path) -> None:
    wait_ms = 600
    with queue_in(tmp_path / "warehouse") as queue:
        queue.topic()
        queue.send("a", "b")
        billing = queue.consumer("billing")
        assert billing.pop(1, order="key", invisible_ms=10_000).bodies == ["a"]
        assert billing.pop(1, order="key").bodies == ["b"]
        queue.advance(11_000)
        # Each look asks what time it is, to see what is overdue.
        looks, now_us = itertools.count(), queue.now_ms * 1_000
        queue.clock.wall_us = lambda: next(looks) * 0 + now_us  # type: ignore[method-assign] # a clock that counts
        assert billing.ask(order=True, wait_ms=wait_ms).json["code"] == "order_conflict"
        assert 0 < next(looks) < wait_ms / 10


def test_a_stop_ends_waits_at_once(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse") as queue:
        queue.topic()
        waiting = Waiting(queue.consumer("billing"))
        queue.restart()
        assert waiting.result().bodies == []


def test_pop_18_a_wait_goes_on_in_the_new_epoch_after_a_reset(queue: Queue) -> None:
    queue.send("a")
    billing = queue.consumer("billing")
    billing.ack(billing.pop().handles)
    waiting = Waiting(billing)
    path = f"{billing.path}/topics/orders/offsets/reset"
    assert queue.api.call("POST", path, {"to": "first"}).status == 200
    assert waiting.result().bodies == ["a"]


def test_a_wait_is_told_that_its_topic_was_deleted(queue: Queue) -> None:
    waiting = Waiting(queue.consumer("billing"))
    assert queue.api.call("DELETE", "/v1/topics/orders").status == 204
    reply = waiting.answer()
    assert (reply.status, reply.json["code"]) == (404, "topic_not_found")


def test_a_wait_is_told_that_its_group_was_deleted(queue: Queue) -> None:
    billing = queue.group("billing")
    waiting = Waiting(billing)
    assert queue.api.call("DELETE", billing.path).status == 204
    reply = waiting.answer()
    assert (reply.status, reply.json["code"]) == (404, "group_not_found")


def test_a_client_that_hangs_up_while_it_waits_takes_nothing(queue: Queue) -> None:
    import socket

    billing = queue.consumer("billing")
    body = b'{"wait_ms": 20000}'
    request = b"POST /v1/groups/billing/topics/orders/pop HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", queue.api.port)) as client:
        client.sendall(request + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: queue.api.service.lanes.waiting)
    until(lambda: not queue.api.service.lanes.waiting)
    queue.send("a")
    assert billing.pop().bodies == ["a"]
