"""Requests for one partition or one logical queue, in the order in which they came: nobody overtakes, at a fence, too.

    request --> [ under way in the commit queue ] --> stored
                   | refused by a fence
                   v
                the line waits until nothing of it is under way, reads the newest metadata, and queues the refused
                requests again, in their order; what comes meanwhile stands behind them

The commit queue keeps the order of what is queued with the same knowledge: if a fence refuses one request, it refuses
those behind it. So a request goes there at once if the one before it went to the same partition and knows of the same
fences; otherwise it waits for that one. Kafka's producers have several requests under way, and one that counts its
messages stops for good when they are stored out of turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from deltamq.api.host.fences import FENCED_S
from deltamq.api.log.parts import RecordRows, RequestPart
from deltamq.api.wire.rows import ArrowRows
from deltamq.mq.errors import DeltaMQError, Fenced, Unknown
from deltamq.mq.producer import OutOfSequence
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.queue.placement import FenceEpochs
from deltamq.tables.settings import Flush

log = logging.getLogger("deltamq.api")

LineRows: TypeAlias = ArrowRows | RecordRows[Any]
#: An unexpected error of a line's own work: of a request it is not known what became of it.
_LOST: Final = "event=line_failed kind=%s"


class LineRequest(NamedTuple):
    """What one request appends."""

    rows: LineRows
    flush: Flush
    stamp: ProducerStamp | None
    now_ms: int = 0


class StoredPlace(NamedTuple):
    """Where a request is: the physical partition and offset."""

    partition: str
    offset: int


class Queue(Protocol):
    """The commit queue of a partition."""

    def put(self, part: RequestPart) -> None:
        """Queue one part; its `pending` is notified when it is committed or refused, never before this returns."""


class Target(NamedTuple):
    """Where a request goes, and with what knowledge."""

    partition: str
    fence_epochs: FenceEpochs
    queue: Queue
    #: The request's stamp, completed.
    stamp: ProducerStamp | None

    def is_as(self, other: Target) -> bool:
        """Whether the commit queue keeps the order of requests with these targets, whatever it refuses."""
        same = self.fence_epochs is other.fence_epochs or self.fence_epochs == other.fence_epochs
        return same and self.partition == other.partition


class Placing(Protocol):
    """Where the requests of one line go."""

    def target(self, request: LineRequest) -> Target | None:
        """Return where it goes; None if that has to be looked for. Raises `DeltaMQError` if it can go nowhere."""

    async def looked(self, request: LineRequest, until: float) -> Target | StoredPlace:
        """Look where it goes, or where it is stored; raises `DeltaMQError` if it can go nowhere, or not in time.

        There must be no `await` between what it looked at and its return.
        """

    async def caught_up(self, partition: str, refused: Fenced | OutOfSequence, until: float) -> None:
        """Read the metadata until it has what the refusal is about; raises `Unavailable` if it does not in time."""


class InLine:
    """One request in a line."""

    __slots__ = ("_line", "_waiter", "outcome", "part", "refused", "request", "settled", "target", "until")

    def __init__(self, line: _Line, request: LineRequest) -> None:
        self._line = line
        self._waiter: asyncio.Future[None] | None = None
        self.request = request
        #: What became of it; None until that is known.
        self.outcome: StoredPlace | DeltaMQError | None = None
        #: Called when the outcome is known.
        self.settled: Callable[[], None] | None = None
        #: Where it is under way, and as what; None while it waits.
        self.target: Target | None = None
        self.part: RequestPart | None = None
        #: Where and why it was refused the last time.
        self.refused: tuple[str, Fenced | OutOfSequence] | None = None
        #: Until when it is looked where it goes, on the loop's clock; 0 for a request that was never refused.
        self.until = 0.0

    async def stored(self) -> StoredPlace:
        """Return where the request is; raise the error for which it is not stored, or `Unknown`.

        Who waits may be cancelled; the request is stored all the same.
        """
        if self.outcome is None:
            self._waiter = self._line.loop.create_future()
            await self._waiter
        assert self.outcome is not None, "it was waited for"
        if isinstance(self.outcome, DeltaMQError):
            raise self.outcome
        return self.outcome

    def part_done(self) -> None:
        """Take the outcome of the commit."""
        self._line.delivered(self)

    def settle(self, outcome: StoredPlace | DeltaMQError) -> None:
        self.outcome = outcome
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.settled is not None:
            self.settled()


@dataclass(slots=True)
class _Line:
    """The requests of one partition or logical queue that are not settled yet."""

    placing: Placing
    loop: asyncio.AbstractEventLoop
    #: Called when the line is empty.
    emptied: Callable[[], object]
    requests: deque[InLine]
    #: Queues again what was refused.
    again: asyncio.Task[None] | None = None
    #: Done when nothing of the line is under way.
    at_rest: asyncio.Future[None] | None = None

    def begin(self, request: LineRequest) -> InLine:
        """Put a request behind all others; raises what `Placing.target` does, and then it is not in the line."""
        one = InLine(self, request)
        last = self.requests[-1] if self.requests else None
        target = None
        if self.again is None:
            target = self.placing.target(request)
            if target is not None and last is not None:
                assert last.target is not None, "only a line that looks for places has requests without one"
                target = target if target.is_as(last.target) else None
        self.requests.append(one)
        if target is None:
            self._look()
        else:
            _queue(one, target)
        return one

    def delivered(self, one: InLine) -> None:
        """Take what became of a request under way; called in the order of the commit queue."""
        part, target = one.part, one.target
        assert part is not None and target is not None, "it was under way"
        error = part.error
        if error is None:
            assert part.appended is not None, "a part without an error has its place"
            self._settle(one, StoredPlace(target.partition, part.appended.base_offset))
        elif isinstance(error, Fenced | OutOfSequence) and self._is_looked_again(one, error):
            one.until = one.until or self.loop.time() + FENCED_S
            one.part = one.target = None
            self._look()
        else:
            self._settle(one, error)
        if self.at_rest is not None and not self._is_under_way:
            self.at_rest.set_result(None)
            self.at_rest = None

    def _is_looked_again(self, one: InLine, error: Fenced | OutOfSequence) -> bool:
        """Whether a refused request is queued again, and note what it waits for."""
        assert one.target is not None, "it was under way"
        if isinstance(error, OutOfSequence):
            if any(other.target is None for other in takewhile(lambda other: other is not one, self.requests)):
                return True  # a fence has refused one before it, so it has come out of turn
            if one.until:
                return False
        one.refused = one.target.partition, error
        return True

    @property
    def _is_under_way(self) -> bool:
        return any(one.target is not None for one in self.requests)

    def _settle(self, one: InLine, outcome: StoredPlace | DeltaMQError) -> None:
        self.requests.remove(one)  # it is the first, nearly always
        one.settle(outcome)
        if not self.requests and self.again is None:
            self.emptied()

    def _look(self) -> None:
        """Let nobody pass until what has no place is queued again."""
        if self.again is None:
            self.again = self.loop.create_task(self._queue_again())

    async def _queue_again(self) -> None:
        while (one := next((one for one in self.requests if one.target is None), None)) is not None:
            try:
                await self._queue_one(one)
            except DeltaMQError as error:
                self._settle(one, error)
            except Exception as error:
                log.exception(_LOST, type(error).__name__)
                self._settle(one, Unknown())
        self.again = None
        if not self.requests:
            self.emptied()

    async def _queue_one(self, one: InLine) -> None:
        """Queue the first request without a place, or settle it; return also if it has to be tried again."""
        one.until = one.until or self.loop.time() + FENCED_S
        if one.refused is not None:
            await self.placing.caught_up(*one.refused, one.until)
            one.refused = None
        found = await self.placing.looked(one.request, one.until)
        if isinstance(found, StoredPlace):
            self._settle(one, found)
        elif self._follows(one, found):
            _queue(one, found)
        else:
            await self._rest()

    def _follows(self, one: InLine, target: Target) -> bool:
        """Whether a request with this target would be stored behind all before it, and before all behind it."""
        before: InLine | None = None
        is_behind = False
        for other in self.requests:
            if other is one:
                is_behind = True
            elif is_behind and other.target is not None:
                return False
            elif not is_behind and other.target is None:
                return False  # refused again meanwhile
            elif not is_behind:
                before = other
        return before is None or (before.target is not None and target.is_as(before.target))

    async def _rest(self) -> None:
        """Return when nothing of the line is under way."""
        if self._is_under_way:
            self.at_rest = self.loop.create_future()
            await self.at_rest


def _queue(one: InLine, target: Target) -> None:
    request = one.request
    one.target = target
    one.part = RequestPart(request.rows, one, request.flush, stamp=target.stamp, fence_epochs=target.fence_epochs)
    target.queue.put(one.part)


class Lines:
    """The lines in which requests stand; used on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[Hashable, _Line] = {}

    def begin(self, key: Hashable, placing: Callable[[], Placing], request: LineRequest) -> InLine:
        """Put a request behind all others of its line; queue it now if nothing stands against that.

        `placing` is asked for a line that is new.

        Raises
        ------
        DeltaMQError
            What `Placing.target` raises: nothing was stored.
        """
        line = self._lines.get(key)
        if line is None:
            line = _Line(placing(), self._loop, partial(self._lines.pop, key), deque())
            one = line.begin(request)
            self._lines[key] = line
            return one
        return line.begin(request)
