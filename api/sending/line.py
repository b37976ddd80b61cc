"""Requests for one partition or one logical queue, in their order of arrival, also at a fence.

    request --> [ under way in the commit queue ] --> stored
                   | refused by a fence
                   v
                the line waits until no request is under way, reads the newest metadata, and queues the refused requests
                again, in their order; later requests stand behind them

The commit queue keeps the order of requests with the same target: if a fence refuses one of them, it refuses those
behind it. So a request goes there at once if the one before it went to the same partition and knows the same fences;
otherwise it waits for that one. Kafka's producers have several requests under way, and one that counts its messages
stops for good when they are stored out of turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from deltamq.api.host.fences import FENCED_S
from deltamq.api.log.parts import RecordRows, RequestPart
from deltamq.api.wire.rows import ArrowRows
from deltamq.api.wire.steps import Steps
from deltamq.mq.errors import DeltaMQError, Fenced, Unknown
from deltamq.mq.producer import OutOfSequence
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.queue.placement import FenceEpochs
from deltamq.tables.settings import Flush

log = logging.getLogger("deltamq.api")

LineRows: TypeAlias = ArrowRows | RecordRows[Any]
#: An unexpected error in a line's own work: the outcome of a request is unknown.
_LOST: Final = "event=line_failed kind=%s"


class LineRequest(NamedTuple):
    """The rows of one request, and how to append them."""

    rows: LineRows
    flush: Flush
    stamp: ProducerStamp | None
    now_ms: int = 0
    #: How long they wait for others that share their commit, in seconds.
    window_s: float = 0.0
    #: Gets the commit's steps, if the call is traced.
    steps: Steps | None = None


class StoredOffset(NamedTuple):
    """The physical partition and offset of a stored request."""

    partition: str
    offset: int


class Queue(Protocol):
    """The commit queue of a partition."""

    def put(self, part: RequestPart) -> None:
        """Queue one part; its `pending` is notified when it is committed or refused, never before this returns."""


class Target(NamedTuple):
    """Where a request goes, and the fences that it knows."""

    partition: str
    fence_epochs: FenceEpochs
    queue: Queue
    #: The request's stamp, completed.
    stamp: ProducerStamp | None

    def is_as(self, other: Target) -> bool:
        """Whether the commit queue keeps the order of requests with these targets, also if it refuses some."""
        same = self.fence_epochs is other.fence_epochs or self.fence_epochs == other.fence_epochs
        return same and self.partition == other.partition


class Placing(Protocol):
    """Decides where the requests of one line go."""

    def target(self, request: LineRequest) -> Target | None:
        """Return where a request goes; None if only `looked` can say. Raises `DeltaMQError` if it can go nowhere."""

    async def looked(self, request: LineRequest, until: float) -> Target | StoredOffset:
        """Find where a request goes, or is stored; raises `DeltaMQError` if it can go nowhere, or not in time.

        There must be no `await` between its last look and its return.
        """

    async def caught_up(self, partition: str, refused: Fenced | OutOfSequence, until: float) -> None:
        """Read the metadata until it has the cause of the refusal; raises `Unavailable` if it does not in time."""


class InLine:
    """One request in a line."""

    __slots__ = ("_line", "_waiter", "outcome", "part", "refused", "request", "settled", "target", "until")

    def __init__(self, line: _Line, request: LineRequest) -> None:
        self._line = line
        self._waiter: asyncio.Future[None] | None = None
        self.request = request
        #: None until it is known.
        self.outcome: StoredOffset | DeltaMQError | None = None
        #: Called when the outcome is known.
        self.settled: Callable[[], None] | None = None
        #: Where it is under way, and its part there; None while it waits.
        self.target: Target | None = None
        self.part: RequestPart | None = None
        #: Where and why it was refused the last time.
        self.refused: tuple[str, Fenced | OutOfSequence] | None = None
        #: Until when a new target is looked for, on the loop's clock; 0 for a request that was never refused.
        self.until = 0.0

    async def stored(self) -> StoredOffset:
        """Return where the request is stored; raise the error that refused it, or `Unknown`.

        If the waiter is cancelled, the request is stored all the same.
        """
        if self.outcome is None:
            self._waiter = self._line.loop.create_future()
            await self._waiter
        assert self.outcome is not None, "it was waited for"
        if isinstance(self.outcome, DeltaMQError):
            raise self.outcome
        return self.outcome

    def part_done(self) -> None:
        """Note that the commit queue has an outcome."""
        self._line.delivered(self)

    def settle(self, outcome: StoredOffset | DeltaMQError) -> None:
        self.outcome = outcome
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.settled is not None:
            self.settled()


class _Line(msgspec.Struct):
    """The requests of one partition or logical queue that are not settled."""

    placing: Placing
    loop: asyncio.AbstractEventLoop
    #: Called when the line is empty.
    emptied: Callable[[], object]
    requests: deque[InLine]
    #: Queues refused requests again.
    again: asyncio.Task[None] | None = None
    #: Done when nothing of the line is under way.
    at_rest: asyncio.Future[None] | None = None

    def begin(self, request: LineRequest) -> InLine:
        """Put a request behind all others; raises as `Placing.target` does, and then the request is not in the line."""
        entry = InLine(self, request)
        last = self.requests[-1] if self.requests else None
        target = None
        if self.again is None:
            target = self.placing.target(request)
            if target is not None and last is not None:
                assert last.target is not None, "only a line that queues again has requests without a target"
                target = target if target.is_as(last.target) else None
        self.requests.append(entry)
        if target is None:
            self._look()
        else:
            _queue(entry, target)
        return entry

    def delivered(self, entry: InLine) -> None:
        """Take the outcome of a request under way; called in the order of the commit queue."""
        part, target = entry.part, entry.target
        assert part is not None and target is not None, "it was under way"
        error = part.error
        if error is None:
            assert part.appended is not None, "a part without an error has its place"
            self._settle(entry, StoredOffset(target.partition, part.appended.base_offset))
        elif isinstance(error, Fenced | OutOfSequence) and self._is_looked_again(entry, error):
            entry.until = entry.until or self.loop.time() + FENCED_S
            entry.part = entry.target = None
            self._look()
        else:
            self._settle(entry, error)
        if self.at_rest is not None and not self._is_under_way:
            self.at_rest.set_result(None)
            self.at_rest = None

    def _is_looked_again(self, entry: InLine, error: Fenced | OutOfSequence) -> bool:
        """Return whether a refused request is queued again; if so, note the fence for which it waits."""
        assert entry.target is not None, "it was under way"
        if isinstance(error, OutOfSequence):
            if any(other.target is None for other in takewhile(lambda other: other is not entry, self.requests)):
                return True  # out of turn, since a fence has refused a request before it
            if entry.until:
                return False
        entry.refused = entry.target.partition, error
        return True

    @property
    def _is_under_way(self) -> bool:
        return any(entry.target is not None for entry in self.requests)

    def _settle(self, entry: InLine, outcome: StoredOffset | DeltaMQError) -> None:
        self.requests.remove(entry)  # it is the first, nearly always
        entry.settle(outcome)
        if not self.requests and self.again is None:
            self.emptied()

    def _look(self) -> None:
        """Let no request pass until those without a target are queued again."""
        if self.again is None:
            self.again = self.loop.create_task(self._queue_again())

    async def _queue_again(self) -> None:
        while (entry := next((entry for entry in self.requests if entry.target is None), None)) is not None:
            try:
                await self._queue_first(entry)
            except DeltaMQError as error:
                self._settle(entry, error)
            except Exception as error:
                log.exception(_LOST, type(error).__name__)
                self._settle(entry, Unknown())
        self.again = None
        if not self.requests:
            self.emptied()

    async def _queue_first(self, entry: InLine) -> None:
        """Queue the first request without a target, or settle it; return also if it has to be tried again."""
        entry.until = entry.until or self.loop.time() + FENCED_S
        if entry.refused is not None:
            await self.placing.caught_up(*entry.refused, entry.until)
            entry.refused = None
        target = await self.placing.looked(entry.request, entry.until)
        if isinstance(target, StoredOffset):
            self._settle(entry, target)
        elif self._follows(entry, target):
            _queue(entry, target)
        else:
            await self._rest()

    def _follows(self, entry: InLine, target: Target) -> bool:
        """Whether a request with this target would be stored in its turn."""
        before: InLine | None = None
        is_behind = False
        for other in self.requests:
            if other is entry:
                is_behind = True
            elif is_behind and other.target is not None:
                return False
            elif not is_behind and other.target is None:
                return False  # refused again meanwhile
            elif not is_behind:
                before = other
        return before is None or (before.target is not None and target.is_as(before.target))

    async def _rest(self) -> None:
        if self._is_under_way:
            self.at_rest = self.loop.create_future()
            await self.at_rest


def _queue(entry: InLine, target: Target) -> None:
    request = entry.request
    entry.target = target
    entry.part = RequestPart(
        request.rows,
        entry,
        request.flush,
        stamp=target.stamp,
        fence_epochs=target.fence_epochs,
        window_s=0.0 if entry.until else request.window_s,  # what was refused has waited
        steps=request.steps,
    )
    target.queue.put(entry.part)


class Lines:
    """The lines in which requests stand; used on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[Hashable, _Line] = {}

    def begin(self, key: Hashable, placing: Callable[[], Placing], request: LineRequest) -> InLine:
        """Put a request behind all others of its line; queue it now if possible.

        `placing` makes the placing of a new line.

        Raises
        ------
        DeltaMQError
            As `Placing.target` raises: nothing was stored.
        """
        line = self._lines.get(key)
        if line is None:
            line = _Line(placing(), self._loop, partial(self._lines.pop, key), deque())
            entry = line.begin(request)
            self._lines[key] = line
            return entry
        return line.begin(request)
