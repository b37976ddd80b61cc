"""The turns of pops in one lane: one at a time, and none for ever (SPEC POP-2)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.errors import Unavailable
from deltamq.mq.meta.group_settings import Ordering
from tests.api.queue.test_pop_waiting import WAIT_MS, Waiting
from tests.api.queue_calls import Consumer, Popped, Queue, queue_in
from tests.api.running import Reply, until

ORDERS: list[Ordering] = [False, True, "key"]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse") as found:
        found.topic()
        yield found


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Queue]:
    """A queue where a pop that others wait behind is ended at once, and pops look for no commits of others."""
    with queue_in(tmp_path / "warehouse", Ports(lane_busy_ms=0), {"refresh_ms": 60_000}) as found:
        found.topic()
        yield found


class Hung:
    """The next reads of the service on a thread do not end until the block does; later ones do.

    Then they fail with `error`, if there is one.
    """

    def __init__(self, queue: Queue, *, reads: int = 1, error: Exception | None = None) -> None:
        self._hanging_reads = reads
        self._error = error
        self._logs = queue.api.service.lanes.logs
        self._run = self._logs.run
        self._clients = ThreadPoolExecutor(1)
        self._gate = threading.Event()
        self.reads = 0

    def __enter__(self) -> Hung:
        self._logs.run = self._hanging
        return self

    async def _hanging(self, work: Callable[[], Any]) -> Any:
        self.reads += 1
        return await self._run(self._late(work) if self.reads <= self._hanging_reads else work)

    def _late(self, work: Callable[[], Any]) -> Callable[[], Any]:
        def late() -> Any:
            assert self._gate.wait(60)
            if self._error is not None:
                raise self._error
            return work()

        return late

    def pop(self, consumer: Consumer, **ask: Any) -> Future[Reply]:
        """A pop that reads on a thread, because it has a filter; begun when its read hangs."""
        reply = self._clients.submit(consumer.ask, max_messages=1, tags="T", **ask)
        until(lambda: self.reads == 1 or reply.done())
        assert not reply.done()
        return reply

    def let_go(self) -> None:
        """Let the read end."""
        self._gate.set()

    def __exit__(self, *_: object) -> None:
        self._logs.run = self._run
        self._gate.set()
        self._clients.shutdown()


def _billing(queue: Queue, order: Ordering) -> Consumer:
    billing = queue.group("billing", order=order)
    queue.send("a", "b", tag="T")
    return billing


@pytest.mark.promise("GROUP-8")
@pytest.mark.parametrize("order", ORDERS)
def test_pop_02_a_lane_at_work_is_passed_by_and_its_pop_keeps_its_messages(queue: Queue, order: Ordering) -> None:
    billing = _billing(queue, order)
    with Hung(queue) as hung:
        first = hung.pop(billing)
        assert billing.pop(1, tags="T").bodies == [], "one at a time, and nobody waits"
        assert hung.reads == 1
        hung.let_go()
        assert [m["body"] for m in first.result(30).json["messages"]] == ["a"]
    assert billing.in_flight() == 1


@pytest.mark.promise("GROUP-8")
@pytest.mark.parametrize("order", ORDERS)
def test_pop_02_a_read_that_hangs_does_not_hold_the_lane(hasty: Queue, order: Ordering) -> None:
    billing = _billing(hasty, order)
    with Hung(hasty) as hung:
        first = hung.pop(billing)
        found = billing.pop_again(1, tags="T")
        assert found.bodies == ["a"]
        ended = first.result(30)
        assert (ended.status, ended.json["code"], ended.headers["retry-after"]) == (503, "unavailable", "1")
    # The late read has ended: what it found nobody gets, and nothing is lost of it.
    assert billing.in_flight() == 1
    assert billing.ack(found.handles) == {}
    rest = billing.pop(2, tags="T")
    assert rest.bodies == ["b"] and rest.attempts == [1]
    assert billing.ack(rest.handles) == {}
    assert billing.pop(2).bodies == []


def _hung_again(queue: Queue, billing: Consumer) -> Popped:
    """What is popped after a pop that hung when it was to give the first message again."""
    assert billing.pop(1, invisible_ms=10_000).bodies == ["a"]
    queue.advance(11_000)
    with Hung(queue) as hung:
        first = hung.pop(billing, invisible_ms=10_000)
        found = billing.pop_again(1)
        assert first.result(30).status == 503
    return found


def test_pop_02_a_hanging_pop_in_order_has_given_nothing_away(hasty: Queue) -> None:
    billing = _billing(hasty, True)
    found = _hung_again(hasty, billing)
    assert (found.bodies, found.attempts) == (["a"], [2])
    assert billing.ack(found.handles) == {}


def test_pop_02_what_a_hanging_pop_by_key_had_marked_as_given_comes_again(hasty: Queue) -> None:
    billing = _billing(hasty, "key")
    assert _hung_again(hasty, billing).bodies == ["b"], "the lease of what it marked has begun"
    hasty.advance(11_000)
    found = billing.pop(1)
    assert (found.bodies, found.attempts) == (["a"], [3])
    assert billing.ack(found.handles) == {}


@pytest.mark.parametrize("order", ORDERS)
def test_pop_15_a_pop_that_waits_gets_its_turn_after_one_that_hangs(hasty: Queue, order: Ordering) -> None:
    billing = _billing(hasty, order)
    with Hung(hasty) as hung:
        first = hung.pop(billing)
        assert Waiting(billing, max_messages=1, tags="T").result().bodies == ["a"]
        assert first.result(30).status == 503


@pytest.mark.parametrize("order", ORDERS)
def test_pop_15_a_pop_that_waits_gets_its_turn_after_one_that_fails(tmp_path: Path, order: Ordering) -> None:
    """It has passed the lane by, and nothing else would wake it."""
    with queue_in(tmp_path / "warehouse", Ports(lane_busy_ms=60_000), {"refresh_ms": 60_000}) as queue:
        queue.topic()
        billing = _billing(queue, order)
        with Hung(queue, error=Unavailable("the disk is away")) as hung:
            first = hung.pop(billing)
            waiting = Waiting(billing, max_messages=1, tags="T")
            assert not waiting.answers and hung.reads == 1, "it has passed the lane by"
            hung.let_go()
            assert first.result(30).status == 503
            assert waiting.result().bodies == ["a"]


def test_pop_02_after_a_pop_that_took_too_long_the_next_may_take_twice_as_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with queue_in(tmp_path / "warehouse", Ports(lane_busy_ms=1)) as queue, ThreadPoolExecutor(2) as clients:
        queue.topic()
        billing = _billing(queue, False)
        ask = {"max_messages": 1, "tags": "T", "wait_ms": WAIT_MS}
        with Hung(queue, reads=3) as hung:
            pops = [hung.pop(billing)]
            for reads in (2, 3):
                pops.append(clients.submit(billing.ask, **ask))
                until(lambda reads=reads: hung.reads == reads)
            assert [one.result(30).status for one in pops[:2]] == [503, 503], "each was ended by the next"
            hung.let_go()
            assert len(pops[2].result(30).json["messages"]) == 1
        with Hung(queue) as hung:
            first = hung.pop(billing)
            assert len(Waiting(billing, **ask).result().messages) == 1
            assert first.result(30).status == 503
    ended = [record.getMessage() for record in caplog.records if "event=pop_ended" in record.getMessage()]
    assert [line.rpartition("=")[2] for line in ended] == ["1", "2", "1"], "one that was in time makes up for it"
