"""Requests of one line are stored in the order in which they came, whatever fences refuse (SPEC KAFKA-3, KAFKA-10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.log.parts import RecordRows, RequestPart
from deltamq.api.sending.line import InLine, LineRequest, Lines, StoredOffset, Target
from deltamq.mq.errors import Fenced, Unavailable
from deltamq.mq.producer import OutOfSequence
from deltamq.tables.log.batch import Appended, MessageIds
from deltamq.tables.settings import Flush

#: Turns of the loop after which all that can go on has gone on.
_TURNS = 20


def _never(_: Sequence[Any]) -> pa.RecordBatch:
    raise AssertionError("the fake log encodes nothing")


class Log:
    """A partition and its commit queue: a fence refuses those that do not know of it, and requests are counted."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.waiting: list[RequestPart] = []
        self.delivering: list[RequestPart] = []

    def put(self, part: RequestPart) -> None:
        self.waiting.append(part)

    def commit(self) -> None:
        """Decide about all that wait; the loop hears of it at `deliver`."""
        for part in self.waiting:
            (number,) = part.messages.records  # type: ignore[union-attr]
            stored = self.world.stored
            if self.world.is_counting and number != len(stored):
                part.error = OutOfSequence(str(number))  # this is looked at first, as in the real append
            elif part.fence_epochs["route"] < self.world.fence:  # type: ignore[index]
                part.error = Fenced("", extra={"fence": "route", "epoch": self.world.fence})
            else:
                part.appended = Appended(
                    base_offset=len(stored), count=1, duplicate=False, durable=True, version=1, message_ids=MessageIds()
                )
                stored.append((number, self.name))
        self.delivering += self.waiting
        self.waiting = []

    def deliver(self) -> None:
        parts, self.delivering = self.delivering, []
        for part in parts:
            part.pending.part_done()


class World:
    """Where a line's requests go: with each fence to the next partition. What a process knows of it may be older."""

    def __init__(self, *, is_counting: bool) -> None:
        self.is_counting = is_counting
        self.fence = self.known = 0
        self.logs = [Log(self, "0")]
        self.stored: list[tuple[int, str]] = []
        self.learned = asyncio.Event()
        self.is_closed = False

    def put_up(self) -> None:
        self.fence += 1
        self.logs.append(Log(self, str(self.fence)))

    def learn(self) -> None:
        self.known = self.fence
        self.learned.set()
        self.learned = asyncio.Event()

    # What a line asks.

    def target(self, request: LineRequest) -> Target:
        if self.is_closed:
            raise Unavailable("closed", code="not_writable")
        return Target(str(self.known), {"route": self.known}, self.logs[self.known], None)

    async def looked(self, request: LineRequest, until: float) -> Target | StoredOffset:
        await asyncio.sleep(0)
        return self.target(request)

    async def caught_up(self, partition: str, refused: Fenced | OutOfSequence, until: float) -> None:
        if isinstance(refused, OutOfSequence):
            raise refused
        while self.known < refused.extra["epoch"]:
            await self.learned.wait()


async def _settled() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _request(number: int) -> LineRequest:
    return LineRequest(RecordRows([number], _never), Flush.SYNC, None)


async def _played(actions: Sequence[str], *, is_counting: bool) -> None:
    world = World(is_counting=is_counting)
    lines = Lines(asyncio.get_running_loop())
    begun: list[InLine] = []
    for action in [*actions, "learn"]:
        if action == "begin":
            begun.append(lines.begin("line", lambda: world, _request(len(begun))))
        elif action == "fence":
            world.put_up()
        elif action == "learn":
            world.learn()
        for log in world.logs:
            if action == "commit":
                log.commit()
            elif action == "deliver":
                log.deliver()
        if action != "begin":
            await _settled()
    for _ in range(3 * len(begun) + 3):
        for log in world.logs:
            log.commit()
            log.deliver()
        await _settled()
    places = [await one.stored() for one in begun]
    assert [number for number, _ in world.stored] == list(range(len(begun)))
    assert places == [StoredOffset(name, at) for at, (_, name) in enumerate(world.stored)]
    assert not lines._lines, "nothing is kept of a line that is empty"


@pytest.mark.promise("PORT-1")
@given(st.lists(st.sampled_from(["begin", "begin", "commit", "deliver", "fence", "learn"]), max_size=30), st.booleans())
def test_kafka_03_requests_keep_their_order_whatever_fences_refuse(actions: list[str], is_counting: bool) -> None:
    asyncio.run(_played(actions, is_counting=is_counting))


def test_kafka_03_what_comes_behind_a_refused_request_waits_for_it() -> None:
    """What stopped librdkafka for good: the one behind a refused request came out of turn, or passed it."""
    decided_alone = ["begin", "fence", "commit", "begin", "deliver", "learn", "commit", "deliver"]
    at_a_fence = ["begin", "begin", "fence", "commit", "deliver", "learn", "begin", "commit", "deliver"]
    known_meanwhile = ["begin", "fence", "learn", "begin", "commit", "deliver"]
    for actions in (at_a_fence, known_meanwhile, decided_alone):
        for is_counting in (True, False):
            asyncio.run(_played(actions, is_counting=is_counting))


def test_kafka_03_a_request_that_can_go_nowhere_is_refused_and_those_behind_it_go_on() -> None:
    async def play() -> None:
        world = World(is_counting=False)
        lines = Lines(asyncio.get_running_loop())
        first = lines.begin("line", lambda: world, _request(0))
        world.put_up()
        world.logs[0].commit()
        world.is_closed = True
        world.logs[0].deliver()
        world.learn()
        with pytest.raises(Unavailable, match="closed"):
            await first.stored()
        with pytest.raises(Unavailable, match="closed"):
            lines.begin("line", lambda: world, _request(1))
        world.is_closed = False
        second = lines.begin("line", lambda: world, _request(2))
        world.logs[1].commit()
        world.logs[1].deliver()
        assert await second.stored() == StoredOffset("1", 0)
        assert world.stored == [(2, "1")]

    asyncio.run(play())
