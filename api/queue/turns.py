"""Pops of one lane take turns: a lane at which one is at work is busy, and others pass it by (SPEC POP-2).

A pop may work for as long as no other wants the lane. If its read hangs and another pop wants the lane, the first one
is ended without messages, so that another has its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType

from deltamq.mq.errors import Conflict, Corrupt, Unavailable
from deltamq.mq.queue.checkpoint import LaneKey

log = logging.getLogger("deltamq.api")


class TurnOver(Unavailable):
    """A pop was ended: its read took too long, and another pop wants the lane; ask again."""


class Turns:
    """The lanes of this process at which a pop is at work; used on the event loop."""

    def __init__(self, *, busy_ms: int, on_over: Callable[[LaneKey], None]) -> None:
        """A pop may be at work for `busy_ms` when another one wants the lane.

        `on_over` is called if it is ended then, or fails: the others have passed a lane by that may have messages.
        """
        self._busy_s = busy_ms / 1000
        self.on_over = on_over
        self._busy: dict[LaneKey, _Turn] = {}
        #: The limits, in seconds, of lanes where the last pop took longer than its limit.
        self._slow_s: dict[LaneKey, float] = {}

    def is_busy(self, lane: LaneKey) -> bool:
        """Return whether a pop is at work in the lane; from this call on its time is limited.

        It is cancelled where it waits, so a later result of its read changes nothing: a lane changes on the event loop
        only, and by the pop whose turn it is. Records that it may have been storing count once if they are stored
        again. Messages that it had marked as delivered are delivered again, as after a crash.
        """
        turn = self._busy.get(lane)
        if turn is not None:
            turn.limit(self._limit_s(lane))
        return turn is not None

    async def free(self, lane: LaneKey) -> None:
        """Wait until no pop is at work in the lane; from now on the time of those that are is limited."""
        while self.is_busy(lane):
            await self._busy[lane].over()

    def take(self, lane: LaneKey) -> _Turn:
        """Return the turn of a pop in a lane that is not busy: `async with` it while the pop is at work.

        Raises
        ------
        TurnOver
            By the block: it took too long, and another pop wants the lane.
        """
        assert lane not in self._busy, "one pop at a time"
        turn = self._busy[lane] = _Turn(self, lane)
        return turn

    def ended(self, lane: LaneKey, *, well: bool) -> None:
        """Note that the pop in a lane has ended; one that ended well lifts the limit that a late one had doubled."""
        del self._busy[lane]
        if well:
            self._slow_s.pop(lane, None)

    def was_late(self, lane: LaneKey) -> None:
        """Double the limit of a lane whose pop was ended because another one wants it."""
        limit_s = self._limit_s(lane)
        log.warning("event=pop_ended partition=%s group=%s busy_ms=%d", lane.partition, lane.group, limit_s * 1_000)
        self._slow_s[lane] = 2 * limit_s
        self.on_over(lane)

    def _limit_s(self, lane: LaneKey) -> float:
        return self._slow_s.get(lane, self._busy_s)


class _Turn:
    """A pop at work in a lane."""

    __slots__ = ("_began_s", "_is_wanted", "_lane", "_over", "_timeout", "_turns")

    def __init__(self, turns: Turns, lane: LaneKey) -> None:
        self._turns = turns
        self._lane = lane
        self._began_s = asyncio.get_running_loop().time()
        #: Whether another pop has wanted the lane since.
        self._is_wanted = False
        self._timeout = asyncio.timeout(None)
        #: Set at the end of the turn, if somebody waits for it.
        self._over: asyncio.Event | None = None

    def limit(self, limit_s: float) -> None:
        """End the pop when it has worked for `limit_s`, or now if it has already."""
        if not self._is_wanted:
            self._is_wanted = True
            self._timeout.reschedule(self._began_s + limit_s)

    async def over(self) -> None:
        """Wait for the end of the turn."""
        self._over = self._over or asyncio.Event()
        await self._over.wait()

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns.ended(self._lane, well=error is None)
        if self._over is not None:
            self._over.set()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            self._turns.was_late(self._lane)
            raise TurnOver(f"{self._lane.partition} could not be read in time; ask again") from late
        # After a `Corrupt` or a `Conflict` pops wait on: two of them would wake each other without an end.
        if self._is_wanted and error is not None and not isinstance(error, Corrupt | Conflict):
            self._turns.on_over(self._lane)
