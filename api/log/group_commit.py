"""Group commit: one commit in flight for each partition; parts that arrive meanwhile go into the next one.

    put(A)            put(B) put(C)                          A done       B, C done
      |                  |     |                               ^             ^
      [ encode, fsync A .......... ][ encode, fsync B+C ........... ]

An idle partition commits at once, a busy one batches by itself. All waiting parts go into one Arrow batch and one Delta
commit, up to `COMMIT_BYTES_MAX`. A request is answered only after the commit that holds it (SPEC RELY-1). A part with
`expected_offset` is a commit of its own, since only it may be refused.

In an object store a commit is two round trips, and the data of the next one goes up during the second; it is committed
only when the one before is (SPEC RELY-14). Large data takes longer than its commit, so of large windows several go up.

    put(A)        put(B) put(C)      A done       B, C done
      [ data A ][ commit A ........ ]
                  [ data B+C ......... ][ commit B+C ]

Clients send again when their commit is done, one just after the other, and the first would have a commit for itself.
So after a small commit the next one begins when all clients that were answered have sent again, beside the parts that
wait already, or `Gather.seconds` after the first. A request that comes much later does not wait.

Clients of an object store that wait for two windows in turn would stay in two, each as long as the slower of a commit
and of the other's data. So those that send again as a commit ends wait for the clients of the commit under way, and go
with them from then on; where those do not come, nobody waits for them again for a while.

Parts of a topic with a window (`commit_window_ms`) wait for others until the first of them is due, or until they are as
large as a commit may be (SPEC SEND-14).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Final, NamedTuple, Protocol

from deltamq.api.log.lane import Lane
from deltamq.api.log.parts import RequestPart, Window, fail
from deltamq.mq.limits import COMMIT_BYTES_MAX, COMMIT_MESSAGES_MAX, KIB, MIB
from deltamq.tables.log.appender import Coming
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.store.calls import on_a_thread
from deltamq.tables.typed.codec import Codec

log = logging.getLogger("deltamq.api")

#: Of windows of so many bytes, so many are stored ahead of their commits.
_LARGE_BYTES: Final = 256 * KIB
_LARGE_AHEAD: Final = 4
#: A part follows a commit if it comes within so many times `Gather.seconds`.
_FOLLOWS: Final = 25
#: After how many seconds clients of two windows are tried to be joined again, if they did not come together.
_JOIN_AGAIN_S: Final = 10.0


class Gather(NamedTuple):
    """How parts that follow a commit wait for each other."""

    #: How long a part that follows a commit of several waits for others.
    seconds: float = 0.004
    #: Most bytes of a commit behind which the next one waits: more rows take longer than the fixed costs of a commit.
    bytes_max: int = 96 * KIB
    #: Whether clients of two windows are joined in one.
    joins: bool = False


HERE: Final = Gather()
#: A commit of an object store takes as long as the transfer of some megabytes.
FAR: Final = Gather(0.015, 4 * MIB, joins=True)


class CommitQueue:
    """The parts that wait for one partition; used on the event loop."""

    __slots__ = (
        "_ahead",
        "_began_s",
        "_coming",
        "_commit_s",
        "_committing",
        "_due_s",
        "_ended_s",
        "_expected",
        "_finishing",
        "_gather",
        "_gathering",
        "_is_joining",
        "_join_from_s",
        "_lane",
        "_loop",
        "_owner",
        "_published_s",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(self, owner: Owner, lane: Lane, loop: asyncio.AbstractEventLoop, gather: Gather = HERE) -> None:
        self._gather = gather
        self._owner = owner
        self._lane = lane
        self._loop = loop
        self._waiting: list[RequestPart] = []
        self._waiting_bytes = 0
        #: When the first of them is due, by the event loop's clock; infinity if none waits.
        self._due_s = inf
        #: For how many parts the next commit waits: as many as come again, unless they are large together.
        self._expected = 1
        #: When the last commit ended, by the event loop's clock.
        self._ended_s = 0.0
        #: Begins the window that waits for parts, if one does.
        self._gathering: asyncio.TimerHandle | None = None
        #: The window whose commit is under way, and when the last one began, also by the event loop's clock.
        self._committing: Window | None = None
        self._began_s = self._commit_s = self._published_s = 0.0
        #: The windows whose data is stored meanwhile, in the order in which they are committed.
        self._ahead: list[Window] = []
        #: What the last window under way will add, once that is known.
        self._coming: Coming | None = None
        #: Whether what waits goes with the clients of the commit under way, and from when on that is tried.
        self._is_joining = False
        self._join_from_s = 0.0
        #: Done when nothing waits any more; None while the queue goes on.
        self._finishing: asyncio.Future[None] | None = None

    def put(self, part: RequestPart) -> None:
        """Queue one part; its `pending` is notified when it is committed or refused, never before this returns."""
        now_s = self._loop.time()
        part.due_s = now_s + part.window_s
        is_first = not self._is_busy
        self._waiting.append(part)
        self._due_s = min(self._due_s, part.due_s)
        self._waiting_bytes += part.messages.nbytes
        if is_first and now_s >= self._ended_s + _FOLLOWS * self._gather.seconds:
            self._expected = 1
        if self._gathering is not None:
            self._gather_less(self._gathering, now_s)
        elif is_first:
            self._start_or_gather()
        else:
            self._look_ahead()

    @property
    def _is_busy(self) -> bool:
        """Whether a part waits, or a window is under way."""
        return bool(self._waiting or self._ahead) or self._committing is not None

    def hurry(self) -> None:
        """Let what waits now wait for no window any longer: the service stops."""
        for part in self._waiting:
            part.due_s = 0.0
        self._due_s = 0.0 if self._waiting else inf
        if self._gathering is not None:
            self._gathered()

    @property
    def is_committing(self) -> bool:
        """Whether a commit is under way, which meets the commits of other writers."""
        return self._committing is not None

    async def finish(self) -> None:
        """Return when all parts are committed; no more may be put."""
        if self._is_busy:
            self._finishing = self._loop.create_future()
            if self._gathering is not None:
                self._gathered()
            await self._finishing

    def _wait_s(self, now_s: float) -> float | None:
        """Return for how many seconds the next window waits for more parts; None if it begins now."""
        due_s = now_s if self._waiting_bytes >= COMMIT_BYTES_MAX else self._due_s
        is_enough = len(self._waiting) >= self._expected
        if self._finishing is not None or (is_enough and due_s <= now_s):
            return None
        return max(due_s - now_s, 0.0 if is_enough else self._gather.seconds)

    def _gather_for(self, wait_s: float) -> None:
        self._gathering = self._loop.call_later(wait_s, self._gathered)

    def _gather_less(self, gathering: asyncio.TimerHandle, now_s: float) -> None:
        """Begin the window that waits, now or sooner, if the newest part wants that."""
        wait_s = self._wait_s(now_s)
        if wait_s is None:
            self._gathered()
        elif now_s + wait_s < gathering.when() - self._gather.seconds:
            gathering.cancel()
            self._gather_for(wait_s)

    def _start_or_gather(self) -> None:
        wait_s = self._wait_s(self._loop.time())
        if wait_s is not None:
            self._gather_for(wait_s)
        else:
            self._start()

    def _gathered(self) -> None:
        assert self._gathering is not None, "parts wait for others"
        self._gathering.cancel()
        self._gathering = None
        if self._is_joining and len(self._waiting) < self._expected:
            self._join_from_s = self._loop.time() + _JOIN_AGAIN_S
        self._start()

    def _start(self) -> None:
        """Commit what waits, or store its data while a commit is under way."""
        self._is_joining = False
        if self._committing is None and not self._ahead:
            self._commit(Window(self._take(), self._owner.codec))
        else:
            self._put_ahead()

    def _commit(self, window: Window) -> None:
        self._committing = window
        self._began_s, self._commit_s, self._published_s = time.perf_counter(), self._loop.time(), 0.0
        self._lane.begin(self._committed(window), partial(self._ended, window))

    async def _committed(self, window: Window) -> None:
        log = self._owner.log
        if log is None:
            log = await on_a_thread(self._owner.open)
        if not log.turn.ask():
            # an upkeep's commit, or a fence, is under way
            await on_a_thread(partial(log.turn.wait, threading.get_ident()))
        before_s = log.published_s
        try:
            await window.commit(log, partial(self._is_coming, window))
        finally:
            self._published_s = log.published_s - before_s
            log.turn.give_back()

    def _is_coming(self, window: Window, coming: Coming) -> None:
        """Note where a window ends: what waits may be stored for the offsets behind it."""
        last = self._ahead[-1] if self._ahead else self._committing
        if window is last:
            self._coming = coming
            self._look_ahead()

    def _joins(self) -> bool:
        """Return whether what waits followed a commit at once, and is to go with the clients of the one under way."""
        window, now_s = self._committing, self._loop.time()
        if self._gather.joins and not self._is_joining and window is not None and window.is_stored and not self._ahead:
            # Its data went up during the commit before, whose clients send again now.
            is_following = now_s - self._commit_s <= self._gather.seconds and now_s >= self._join_from_s
            together = self._waiting_bytes + sum(part.messages.nbytes for part in window.parts)
            self._is_joining = is_following and together <= self._gather.bytes_max
        return self._is_joining

    def _look_ahead(self) -> None:
        if not self._waiting or self._joins():
            return
        most = _LARGE_AHEAD if self._waiting_bytes >= _LARGE_BYTES else 1
        if self._coming is not None and len(self._ahead) < most and self._gathering is None:
            self._start_or_gather()

    def _put_ahead(self) -> None:
        """Store the data of what waits, if it is known what is committed before; the commit under way has the turn."""
        log, coming = self._owner.log, self._coming
        if log is not None and coming is not None:
            before = frozenset[str]().union(*(one.producers for one in (self._committing, *self._ahead) if one))
            window = Window(self._take(), self._owner.codec)
            self._ahead.append(window)
            self._coming = None
            if window.producers & before:
                window.is_stored = True  # what they store decides what of this window is new
            else:
                noted = partial(self._is_coming, window)
                self._lane.begin(window.put_ahead(log, coming, noted), self._stored_ahead)

    def _stored_ahead(self, error: Exception | None) -> None:
        assert error is None, "its commit meets the error"
        self._commit_ahead()

    def _commit_ahead(self) -> None:
        if self._committing is None and self._ahead and self._ahead[0].is_stored:
            self._commit(self._ahead.pop(0))

    def _ended(self, window: Window, error: Exception | None) -> None:
        """Give the waiting requests their outcomes, and begin the next commit."""
        parts, took_s, published_s = window.parts, time.perf_counter() - self._began_s, self._published_s
        if error is not None:
            fail(parts, error)
        self._committing = None
        if not self._ahead or any(part.error is not None for part in parts):
            self._coming = None
        self._ended_s = self._loop.time()
        if self._is_busy:
            # Clients that were answered send again.
            together = sum(part.messages.nbytes for part in (*parts, *self._waiting))
            self._expected = len(parts) + len(self._waiting) if together <= self._gather.bytes_max else 1
        self._commit_ahead()
        try:
            for part in parts:
                _deliver(part)
            self._owner.committed(parts, took_s, published_s)
        finally:
            if self.is_committing or self._ahead:
                self._look_ahead()
            elif self._waiting and self._gathering is None:
                self._start_or_gather()
            elif self._finishing is not None and not self._is_busy and not self._finishing.done():
                self._finishing.set_result(None)

    def _take(self) -> list[RequestPart]:
        waiting = self._waiting
        nbytes = messages = end = 0
        for part in waiting:
            nbytes += part.messages.nbytes
            messages += part.messages.count
            if end and (nbytes > COMMIT_BYTES_MAX or messages > COMMIT_MESSAGES_MAX):
                break
            end += 1
        rest = self._waiting = waiting[end:]
        self._waiting_bytes = sum(part.messages.nbytes for part in rest)
        self._due_s = min((part.due_s for part in rest), default=inf)
        self._expected = end if nbytes <= self._gather.bytes_max else 1
        return waiting[:end]


def _deliver(part: RequestPart) -> None:
    """Give the outcome to the request of a part; a failure there must not hold up others."""
    try:
        part.pending.part_done()
    except Exception:
        log.exception("event=part_not_told")


class Owner(Protocol):
    """The partition whose parts wait."""

    @property
    def log(self) -> PartitionLog | None:
        """The log, if it is open."""

    def open(self) -> PartitionLog:
        """Return the log, opened if need be; blocking."""

    def codec(self) -> Codec | None:
        """Return the codec of a typed topic's partition; None for rows without a schema."""

    def committed(self, parts: Sequence[RequestPart], took_s: float, published_s: float) -> None:
        """Note a commit for waiting readers, upkeep and metrics; called on the event loop.

        It took `took_s` seconds, and was with the store for `published_s` of them; 0 if there was nothing to store.
        """
