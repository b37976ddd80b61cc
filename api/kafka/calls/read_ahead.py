"""What consumers will ask for next, read before they ask.

    fetch at 0 ----> read, and there is more: a client is expected at 100
    fetch at 100 --> expected: read, and at once a task reads on from 200
    fetch at 200 --> its answer is there, and a task reads on from 300
                     no client asks within a second: it is dropped

A consumer asks again for a partition once it has handled what it got of it. Without this it would wait then, for a
read that could have been done meanwhile. A client that comes once, or seldom, costs nothing: only one that came back
within a second is read ahead for, one answer of each partition.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from deltamq.api.wire.request import Admission, Ticket
from deltamq.mq.errors import DeltaMQError, Overloaded
from deltamq.mq.limits import MIB
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.tables.log.fetch import FetchStatus

log = logging.getLogger("deltamq.api")

#: Seconds for which a client is expected, and what was read for it is kept.
_EXPECTED_S: Final = 1.0
#: How much is read ahead at most, for all clients together.
_BYTES_MAX: Final = 64 * MIB
_CHUNKS_MAX: Final = 1_024


class Position(NamedTuple):
    """Where a client reads on. Topics have another id in each of their lives."""

    topic_id: str
    partition: int
    offset: int


class Chunk(msgspec.Struct, frozen=True):
    """One partition's part of an answer: record batches, empty if there are no messages, and its bounds then."""

    status: FetchStatus
    records: bytes
    messages: int
    next_offset: int
    min_offset: int
    max_offset: int
    #: The logical queue of a static topic as it was when this was read.
    queue: LogicalQueue | None


Read = Callable[[Ticket], Awaitable[Chunk]]


class _Expected(msgspec.Struct):
    """A client that is expected at a position, and the task that reads for it, if one does."""

    until: float
    bytes_max: int
    task: asyncio.Task[Chunk | None] | None = None
    ticket: Ticket | None = None


class ReadAhead:
    """The positions where clients are expected; used on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = Admission("read-ahead", bytes_max=_BYTES_MAX, requests_max=_CHUNKS_MAX)
        #: In the order in which their times end.
        self._expected: dict[Position, _Expected] = {}
        self._tasks: set[asyncio.Task[Chunk | None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        #: How many messages were taken.
        self.taken = 0

    @property
    def bytes(self) -> int:
        """The bytes that are reserved for what is read ahead."""
        return self._room.bytes

    def __contains__(self, position: Position) -> bool:
        """Whether a client is expected here now."""
        expected = self._expected.get(position)
        return expected is not None and expected.until > self._loop.time()

    async def take(self, position: Position, bytes_max: int) -> Chunk | None:
        """Return what was read ahead for a client that takes `bytes_max`, once; None if there is nothing for it.

        There is nothing either if the service stops while it is read: the client's own read answers then.
        """
        if position not in self or self._expected[position].bytes_max > bytes_max:
            return None
        expected = self._expected.pop(position)
        _release(expected)
        if expected.task is None:
            return None
        try:
            chunk = await asyncio.shield(expected.task)  # it goes on if this client leaves: it ends by itself
        except asyncio.CancelledError:
            client = asyncio.current_task()
            if not expected.task.cancelled() or (client is not None and client.cancelling()):
                raise
            return None
        self.taken += 0 if chunk is None else chunk.messages
        return chunk

    def expect(self, position: Position, bytes_max: int, read: Read | None) -> None:
        """Expect a client that takes `bytes_max`; with `read`, read for it, if there is room."""
        if self._is_over or position in self:
            return
        self._drop(self._loop.time())
        expected = self._expected[position] = _Expected(self._loop.time() + _EXPECTED_S, bytes_max)
        if self._timer is None:
            self._timer = self._loop.call_at(expected.until, self._look)
        if read is None:
            return
        try:
            expected.ticket = self._room.enter(bytes_max)
        except Overloaded:
            return
        expected.task = self._loop.create_task(_read(read, expected.ticket, position))
        self._tasks.add(expected.task)
        expected.task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """Read nothing ahead from now on."""
        self._is_over = True
        self._drop(math.inf)
        for task in self._tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _drop(self, until: float) -> None:
        """Drop clients that are expected until then at most, by the loop's clock."""
        while self._expected:
            position, expected = next(iter(self._expected.items()))
            if expected.until > until:
                return
            del self._expected[position]
            _release(expected)

    def _look(self) -> None:
        self._timer = None
        self._drop(self._loop.time())
        if self._expected:
            self._timer = self._loop.call_at(next(iter(self._expected.values())).until, self._look)


def _release(expected: _Expected) -> None:
    """Give back what is reserved, once nothing is read into it any more."""
    task, ticket = expected.task, expected.ticket
    if task is not None and ticket is not None:
        task.add_done_callback(lambda _: ticket.release())


async def _read(read: Read, ticket: Ticket, position: Position) -> Chunk | None:
    """Read ahead; what fails is left to the client's own read, whose answer can say why."""
    try:
        return await read(ticket)
    except DeltaMQError:
        return None
    except Exception:
        log.exception("event=kafka_read_ahead_failed topic=%s partition=%d", position.topic_id, position.partition)
        return None
