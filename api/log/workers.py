"""Blocking work of the event loop: on threads, or, for commits, on the loop itself and threads without Python.

Work is begun in the order of its arrival. A `ThreadPoolExecutor` spends about 20 microseconds a task on a
future. A commit answers through its own callback and needs none, so a queue is enough for it.

    loop       [ encode A ][ encode B ][ requests ... ][ answer A ][ encode C ][ answer B ]
    native      '-- write, fsync, link A ---------'     '-- ... C
                            '-- write, fsync, link B ------------'

A commit's Python takes less than a millisecond, and threads would have to hand the interpreter's lock over for it. So
the loop does it in turn with everything else, and no thread waits for the lock. That pays while several partitions
commit at once (a fifth less CPU); one by itself is faster in a thread, which has the lock while the loop is idle (a
twentieth).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Self, TypeAlias, cast

from deltamq.tables.store.calls import AsideCall, StoreCall, Work
from deltamq.tables.store.native import NativePool, NativePublication
from deltamq.tables.store.waits import waited_s

log = logging.getLogger("deltamq.api")


Task = Callable[[], None]
_Inbox: TypeAlias = "SimpleQueue[Task]"
#: Fewest tasks that are under way at once: while one waits for the disk, another computes.
_WIDTH_MIN: Final = 2
#: The share of the newest task in the means.
_NEWEST: Final = 1 / 16
#: Least computing time of a task, in seconds: a thread's clock may be coarse.
_COMPUTES_MIN: Final = 1e-6
#: If no task was begun for this long while some wait, one more thread begins one, in seconds.
_STUCK_S: Final = 0.02


def _look() -> None:
    """Sent to an idle thread that should look for a task by itself; never run."""


def _watch() -> None:
    """Sent to an idle thread that should watch the waiting tasks; never run."""


_LOOK: Final[Task] = _look
_WATCH: Final[Task] = _watch


class Workers:
    """`count` threads; a task that raises is logged and does not end its thread.

    The thread that was busy last gets the next task: its core's caches hold what a commit needs, and with little to do
    the same thread does it all.

    Not all threads work at once. Of computing threads only one makes progress, and each hand-over of the interpreter's
    lock costs, so `width` follows the time for which tasks wait for the store: with a disk that syncs in 0.1 ms it is
    two; with one that takes 2 ms, or with an object store, all.
    """

    def __init__(self, count: int, *, name: str, waited: Callable[[], float] = waited_s) -> None:
        """`waited` returns the seconds for which the calling thread has waited for the store until now."""
        self._lock = threading.Lock()
        self._waited = waited
        self._count = count
        #: How many tasks may be under way.
        self.width = count
        #: The inboxes of idle threads, the one that was busy last at the end.
        self._idle: list[_Inbox] = []
        #: The inbox of the thread that looks whether those at work are stuck; None if no thread does.
        self._watcher: _Inbox | None = None
        #: Tasks that no thread has begun, in the order of their arrival.
        self._waiting: deque[Task] = deque()
        self._under_way = self._begun = 0
        #: How long a task computes and waits, in seconds: means of the last tasks.
        self._computes = self._waits = 0.0
        self._is_stopping = False
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> None:
        """Run a task in the first thread that is idle and may work."""
        with self._lock:
            if not self._idle or self._under_way >= self.width:
                self._waiting.append(task)
                self._have_watched()
                return
            self._note_begin()
            idle = self._idle.pop()
        idle.put(task)

    @property
    def wanted(self) -> bool:
        """Whether a task waits for a free thread."""
        return bool(self._waiting)

    @property
    def idle(self) -> int:
        """The number of threads that wait for a task."""
        return len(self._idle)

    def _run(self) -> None:
        own: _Inbox = SimpleQueue()
        while (task := self._next(own)) is not None:
            computed, waited = time.thread_time(), self._waited()
            try:
                task()
            except Exception:
                log.exception("event=task_failed thread=%s", threading.current_thread().name)
            self._note_end(time.thread_time() - computed, self._waited() - waited)

    def _next(self, own: _Inbox) -> Task | None:
        was_busy = True
        while True:
            with self._lock:
                if self._waiting and (self._under_way < self.width or self._is_stopping):
                    return self._taken()
                if self._is_stopping:
                    return None
                self._idle.insert(len(self._idle) if was_busy else 0, own)
                if self._waiting:
                    self._have_watched()
            task = own.get()
            if task is _WATCH:
                task = self._watched(own)
            if task is not _LOOK:
                return task
            was_busy = False

    def _have_watched(self) -> None:
        """Let the thread that was idle longest watch the waiting tasks; the caller holds the lock."""
        if self._watcher is None and self._idle:
            self._watcher = self._idle.pop(0)
            self._watcher.put(_WATCH)

    def _watched(self, own: _Inbox) -> Task:
        """Wait until the threads at work are stuck, and return the next task; return `_LOOK` if none waits."""
        while True:
            begun = self._begun
            try:
                return own.get(timeout=_STUCK_S)
            except Empty:
                pass
            with self._lock:
                if self._waiting and self._begun != begun and self._under_way >= self.width:
                    continue
                self._watcher = None
                if not self._waiting:
                    return _LOOK
                task = self._taken()
                if self._waiting:
                    self._have_watched()
                return task

    def _taken(self) -> Task:
        self._note_begin()
        return self._waiting.popleft()

    def _note_begin(self) -> None:
        self._under_way += 1
        self._begun += 1

    def _note_end(self, computed: float, waited: float) -> None:
        with self._lock:
            self._under_way -= 1
            share = _NEWEST if self._computes else 1.0
            self._computes += share * (max(computed, _COMPUTES_MIN) - self._computes)
            self._waits += share * (waited - self._waits)
            self.width = min(self._count, max(_WIDTH_MIN, 1 + round(self._waits / self._computes)))

    def stop(self) -> None:
        """Run all submitted tasks, then end the threads."""
        with self._lock:
            self._is_stopping = True
            inboxes = [*self._idle, *([] if self._watcher is None else [self._watcher])]
            self._idle, self._watcher = [], None
        for inbox in inboxes:
            inbox.put(_LOOK)
        for thread in self._threads:
            thread.join()


class Threads:
    """All threads of a service except its metadata's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, commits: int, work: int, calls_max: int) -> None:
        #: Commits of the loop itself.
        self.loop_commits = LoopCommits.start(loop, commits, calls_max)
        self.commits = Workers(commits, name="mq-commit")
        self.upkeep = Workers(1, name="mq-upkeep")
        self.work = ThreadPoolExecutor(work, thread_name_prefix="mq-work")

    def stop(self) -> None:
        """Finish everything that was submitted, commits before upkeep; blocking. The loop's own commits have ended."""
        self.commits.stop()
        self.upkeep.stop()
        self.work.shutdown()


#: Most calls of an object store that are under way at once.
_CALLS_MAX: Final = 256
#: How long commits count as overlapping after two have overlapped, in seconds.
_OVERLAP_S: Final = 0.1
#: Takes the exception that a commit raised, None for none.
Done: TypeAlias = Callable[[Exception | None], None]


class _Ended(NamedTuple):
    error: Exception | None


class LoopCommits:
    """The commits of one event loop that are under way; used on that loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: NativePool | None,
        *,
        overlap_s: float = _OVERLAP_S,
        calls_max: int = _CALLS_MAX,
    ) -> None:
        """Without a `pool` the loop makes no commit to a local disk itself.

        `overlap_s` is how long commits count as overlapping after two have overlapped, in seconds. `calls_max` calls of
        an object store are under way at once; others wait for these.
        """
        self._loop = loop
        self._pool = pool
        self._overlap_s = overlap_s
        self._calls = asyncio.Semaphore(calls_max)
        self._native: dict[int, tuple[Work[None], Done]] = {}
        #: Calls of an object store and threads; kept here, since the loop itself keeps no task alive.
        self._tasks: set[asyncio.Task[None]] = set()
        #: The number of partitions that have a commit under way, here or in a thread.
        self._partitions = 0
        #: When commits stop to count as overlapping, by the loop's clock.
        self._overlap_until_s = 0.0
        self.is_ending = False
        if pool is not None:
            loop.add_reader(pool.fd, self._go_on)

    @classmethod
    def start(cls, loop: asyncio.AbstractEventLoop, threads: int, calls_max: int) -> Self:
        """Start with so many native threads, where there is the native part."""
        try:
            return cls(loop, NativePool(threads), calls_max=calls_max)
        except OSError:
            return cls(loop, None, calls_max=calls_max)

    def enter(self) -> bool:
        """Note that a partition's commits begin; return whether the loop makes those to a disk: several overlap."""
        now = self._loop.time()
        if self._partitions:
            self._overlap_until_s = now + self._overlap_s
        self._partitions += 1
        return now < self._overlap_until_s and self._pool is not None

    def leave(self) -> None:
        """Note that a partition's last commit has ended."""
        self._partitions -= 1

    def begin(self, work: Work[None], done: Done) -> None:
        """Run a commit, and call `done` at its end, never before this returns.

        A commit without calls of the store, only of repeats, ends at once; the caller has not yet noted the waiters by
        then.
        """
        ended = self._step(work, done, partial(work.send, None))
        if ended is not None:
            self._loop.call_soon(_tell, done, ended)

    def _step(self, work: Work[None], done: Done, go_on: Callable[[], StoreCall[Any]]) -> _Ended | None:
        """Run a commit to its next call of the store, or to its end; return None while it is under way."""
        try:
            call = go_on()
            if isinstance(call, NativePublication):
                assert self._pool is not None, "`enter` says so"
                self._native[self._pool.begin(call)] = work, done
            else:
                task = self._loop.create_task(self._aside(cast("AsideCall[Any]", call), work, done))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except StopIteration:
            return _Ended(None)
        except Exception as error:
            return _Ended(error)
        return None

    async def _aside(self, call: AsideCall[Any], work: Work[None], done: Done) -> None:
        try:
            async with self._calls:
                outcome = await call.aside()
        except Exception as error:
            self._next(work, done, partial(work.throw, error))
        else:
            self._next(work, done, partial(work.send, outcome))

    def _go_on(self) -> None:
        assert self._pool is not None, "the pool has called this"
        for number, outcome in self._pool.outcomes():
            work, done = self._native.pop(number)
            self._next(work, done, partial(work.send, outcome))

    def _next(self, work: Work[None], done: Done, go_on: Callable[[], StoreCall[Any]]) -> None:
        ended = self._step(work, done, go_on)
        if ended is not None:
            _tell(done, ended)

    def end(self) -> None:
        """Leave all further commits to threads."""
        self.is_ending = True

    def stop(self) -> None:
        """End the native threads; nothing is under way, and `end` keeps it so."""
        assert self.is_ending and not self._native, "their commits have ended"
        if self._pool is not None:
            self._loop.remove_reader(self._pool.fd)
            self._pool.stop()


def _tell(done: Done, ended: _Ended) -> None:
    try:
        done(ended.error)
    except Exception:  # one waiting request's failure: the other commits go on
        log.exception("event=commit_not_told")
