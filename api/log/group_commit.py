"""Group commit: one commit in flight for each partition; parts that arrive meanwhile go into the next one.

    put(A)            put(B) put(C)                          A done       B, C done
      |                  |     |                               ^             ^
      [ encode, fsync A .......... ][ encode, fsync B+C ........... ]

An idle partition commits at once, a busy one batches by itself. All waiting parts go into one Arrow batch and one Delta
commit, up to `COMMIT_BYTES_MAX`. A request is answered only after the commit that holds it (SPEC RELY-1). A part with
`expected_offset` is a commit of its own, since only it may be refused.

While several partitions commit at once, the event loop makes small commits itself, and native threads make the file
calls (`LoopCommits`). A commit thread makes all others: large ones, the first one of a partition, which opens its log,
and those that meet a roll-up's commit.

The loop makes all commits to an object store, since only the network is waited for. There a commit is two round trips,
and the data of the next one goes up during the second; it is committed only when the one before is.

    put(A)        put(B) put(C)      A done       B, C done
      [ data A ][ commit A ........ ]
                  [ data B+C ......... ][ commit B+C ]

Clients send again when their commit is done, one just after the other, and the first would have a commit for itself.
So after a small commit the next one begins when all clients that were answered have sent again, beside the parts that
wait already, or `GATHER_S` after the first. A request that comes more than 0.1 s later does not wait.

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
from typing import Final, Protocol

from deltamq.api.log.parts import RequestPart, Window, fail, flush_of
from deltamq.api.log.workers import LoopCommits, Workers
from deltamq.mq.limits import COMMIT_BYTES_MAX, COMMIT_MESSAGES_MAX, KIB
from deltamq.tables.delta.small_parquet import SMALL_FILE_ROWS_MAX
from deltamq.tables.log.appender import LONG_BYTES, Coming
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.store.calls import blocking

log = logging.getLogger("deltamq.api")

#: How long a part that follows a commit of several waits for others, in seconds.
GATHER_S: Final = 0.004
#: A part follows a commit if it comes within so many times `GATHER_S`.
_FOLLOWS: Final = 25
#: Most bytes of a commit behind which the next one waits: more rows take longer than the fixed costs of a commit.
_GATHER_BYTES_MAX: Final = 96 * KIB


class CommitQueue:
    """The parts that wait for one partition.

    `_run` and `_commit_waiting` run on commit threads, `_take` and `_note_end` on these and on the event loop, and all
    other methods on the event loop.
    """

    __slots__ = (
        "_ahead",
        "_began_s",
        "_busy",
        "_coming",
        "_due_s",
        "_ended_s",
        "_expected",
        "_finishing",
        "_gather_s",
        "_gathering",
        "_here",
        "_is_ahead_stored",
        "_is_handed_over",
        "_lock",
        "_loop",
        "_owner",
        "_took_s",
        "_waiting",
        "_waiting_bytes",
        "_workers",
    )

    def __init__(
        self,
        owner: Owner,
        workers: Workers,
        here: LoopCommits,
        loop: asyncio.AbstractEventLoop,
        *,
        gather_s: float = GATHER_S,
    ) -> None:
        """Take the partition, and its two ways to commit: on threads, or on the loop itself (`here`).

        `gather_s` is how long a part that follows a commit of several waits for others, in seconds.
        """
        self._gather_s = gather_s
        self._owner = owner
        self._workers = workers
        self._here = here
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: list[RequestPart] = []
        self._waiting_bytes = 0
        #: When the first of them is due, by the event loop's clock; infinity if none waits.
        self._due_s = inf
        self._busy = False
        #: For how many parts the next commit waits: as many as come again, unless they are large together.
        self._expected = 1
        #: When the last commit ended, by the event loop's clock.
        self._ended_s = 0.0
        #: Begins the commit that waits for parts, if one does.
        self._gathering: asyncio.TimerHandle | None = None
        #: When the commit under way began, and the seconds that the last one took.
        self._began_s = self._took_s = 0.0
        #: Whether the loop begins the next commit after it has delivered the last one's outcomes.
        self._is_handed_over = False
        #: What the commit under way will add, once its data is stored.
        self._coming: Coming | None = None
        #: The window whose data is stored meanwhile, and whether that has ended.
        self._ahead: Window | None = None
        self._is_ahead_stored = False
        #: Done when nothing waits any more; None while the queue goes on.
        self._finishing: asyncio.Future[None] | None = None

    def put(self, part: RequestPart) -> None:
        """Queue one part; its `pending` is notified when it is committed or refused, never before this returns."""
        now_s = self._loop.time()
        part.due_s = now_s + part.window_s
        with self._lock:
            self._waiting.append(part)
            self._due_s = min(self._due_s, part.due_s)
            self._waiting_bytes += part.messages.nbytes
            is_first = not self._busy
            self._busy = True
            if is_first and now_s >= self._ended_s + _FOLLOWS * self._gather_s:
                self._expected = 1
            wait_s = self._wait_s(now_s)
        if self._gathering is not None:
            if wait_s is None:
                self._gathered()
            elif now_s + wait_s < self._gathering.when() - self._gather_s:
                self._gathering.cancel()
                self._gather(wait_s)
        elif not is_first:
            self._look_ahead()
        elif wait_s is None:
            self._start()
        else:
            self._gather(wait_s)

    def hurry(self) -> None:
        """Let what waits now wait for no window any longer: the service stops."""
        with self._lock:
            for part in self._waiting:
                part.due_s = 0.0
            self._due_s = 0.0 if self._waiting else inf
        if self._gathering is not None:
            self._gathered()

    async def finish(self) -> None:
        """Return when all parts are committed; no more may be put."""
        if self._busy:
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
        return max(due_s - now_s, 0.0 if is_enough else self._gather_s)

    def _gather(self, wait_s: float) -> None:
        self._gathering = self._loop.call_later(wait_s, self._gathered)

    def _start_or_gather(self) -> None:
        wait_s = self._wait_s(self._loop.time())
        if wait_s is not None:
            self._gather(wait_s)
        elif self._coming is not None:
            self._put_ahead()
        else:
            self._start()

    def _gathered(self) -> None:
        assert self._gathering is not None, "parts wait for others"
        self._gathering.cancel()
        self._gathering = None
        if self._coming is not None:
            self._put_ahead()
        else:
            self._start()

    def _start(self) -> None:
        """Begin to commit, on the loop or on a thread; the loop has begun nothing for this partition."""
        self._is_handed_over = False
        overlaps, log = self._here.enter(), self._owner.log
        if log is not None and self._is_for_the_loop(log, overlaps=overlaps) and log.turn.ask():
            self._commit_here(log, Window(self._take()))
        else:
            self._workers.submit(self._run if log is not None else self._open)

    def _is_for_the_loop(self, log: PartitionLog, *, overlaps: bool) -> bool:
        if self._here.is_ending or log.is_remote:
            return not self._here.is_ending
        waiting = self._waiting
        nbytes = sum(part.messages.nbytes for part in waiting)
        rows = sum(part.messages.count for part in waiting)
        is_small = nbytes <= LONG_BYTES and rows <= SMALL_FILE_ROWS_MAX
        return overlaps and is_small and log.publishes_aside(flush_of(waiting))

    def _commit_here(self, log: PartitionLog, window: Window) -> None:
        self._began_s = time.perf_counter()
        self._here.begin(window.commit(log, partial(self._is_coming, log)), partial(self._ended_here, log, window))

    def _is_coming(self, log: PartitionLog, coming: Coming) -> None:
        """Note that only the commit is left to be put: what waits may be stored meanwhile."""
        self._coming = coming
        self._look_ahead()

    def _look_ahead(self) -> None:
        if self._coming is not None and self._ahead is None and self._waiting and self._gathering is None:
            self._start_or_gather()

    def _put_ahead(self) -> None:
        """Store the data of what waits; the commit under way has the turn, and its data is stored."""
        log, coming = self._owner.log, self._coming
        if log is None or coming is None or self._ahead is not None or self._here.is_ending:
            return
        window = self._ahead = Window(self._take())
        self._is_ahead_stored = False
        self._here.begin(window.put_ahead(log, coming), partial(self._stored_ahead, log, window))

    def _stored_ahead(self, log: PartitionLog, window: Window, error: Exception | None) -> None:
        assert error is None, "its commit meets the error"
        self._is_ahead_stored = True
        if self._coming is None:
            self._commit_ahead(log)

    def _commit_ahead(self, log: PartitionLog) -> None:
        window, self._ahead = self._ahead, None
        assert window is not None and self._is_ahead_stored, "its data is stored"
        if log.turn.ask():
            self._commit_here(log, window)
        else:
            self._workers.submit(partial(self._run, window))

    def _ended_here(self, log: PartitionLog, window: Window, error: Exception | None) -> None:
        log.turn.give_back()
        self._coming = None
        if error is not None:
            fail(window.parts, error)
        with self._lock:
            self._note_end(window.parts)
            self._is_handed_over = self._busy
        ahead = self._ahead
        if ahead is None:
            self._delivered(window.parts, self._took_s, goes_on=False)
            return
        self._is_handed_over = False
        if self._is_ahead_stored:
            self._commit_ahead(log)
        self._delivered(window.parts, self._took_s, goes_on=True)

    def _open(self) -> None:
        """Open the log on a thread; whoever commits to it begins then."""
        try:
            is_remote = self._owner.open().is_remote
        except Exception:
            is_remote = False  # the parts get the error from their commit
        if is_remote:
            self._loop.call_soon_threadsafe(self._opened)
        else:
            self._run()

    def _opened(self) -> None:
        self._here.leave()
        self._start()

    def _run(self, window: Window | None = None) -> None:
        """Commit on a thread until nothing waits, the loop takes over, or another partition wants this thread."""
        while self._commit_waiting(window):
            window = None
            if self._workers.wanted:
                self._workers.submit(self._run)
                return

    def _commit_waiting(self, window: Window | None) -> bool:
        """Make one commit; return True if this thread makes the next one."""
        window = window or Window(self._take())
        self._began_s = time.perf_counter()
        is_remote = False
        try:
            opened = self._owner.open()
            is_remote = opened.is_remote
            with opened.turn:
                blocking(window.commit(opened))
        except Exception as error:
            fail(window.parts, error)
        with self._lock:
            self._note_end(window.parts)
            goes_on = self._busy and not is_remote and self._wait_s(self._loop.time()) is None
            self._is_handed_over = self._busy and not goes_on
            # Within the lock: a client that gets its answer and puts the next part finds the queue in this state.
            self._loop.call_soon_threadsafe(self._delivered, window.parts, self._took_s, goes_on)
            return goes_on

    def _note_end(self, parts: Sequence[RequestPart]) -> None:
        self._ended_s = self._loop.time()
        self._took_s = time.perf_counter() - self._began_s
        self._busy = bool(self._waiting) or self._ahead is not None
        if self._busy:
            # Clients that were answered send again.
            together = sum(part.messages.nbytes for part in (*parts, *self._waiting))
            self._expected = len(parts) + len(self._waiting) if together <= _GATHER_BYTES_MAX else 1

    def _take(self) -> list[RequestPart]:
        with self._lock:
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
            self._expected = end if nbytes <= _GATHER_BYTES_MAX else 1
            return waiting[:end]

    def _delivered(self, parts: list[RequestPart], took_s: float, goes_on: bool) -> None:
        """Give the waiting requests their outcomes, and begin the next commit unless a thread makes it."""
        if not goes_on:
            self._here.leave()
        try:
            for part in parts:
                _deliver(part)
            self._owner.committed(parts, took_s)
        finally:
            if self._is_handed_over and self._gathering is None:
                self._start_or_gather()
            elif self._finishing is not None and not self._busy and not self._finishing.done():
                self._finishing.set_result(None)


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

    def committed(self, parts: Sequence[RequestPart], took_s: float) -> None:
        """Note a commit, and its seconds, for waiting readers, upkeep and metrics; called on the event loop."""
