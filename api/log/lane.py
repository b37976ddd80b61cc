"""The commits of one event loop: coroutines that await calls of the store, all driven by the loop's own thread.

    loop       [ encode A ][ encode B ][ requests ... ][ answer A ][ encode C ][ answer B ]
    native      '-- write, fsync, link A ---------'     '-- ... C
                            '-- write, fsync, link B ------------'
    network    '-- put D ------------------------------------------------------'
    thread      '-- encode E, which is large, open the log of F ---'

A commit's Python takes less than a millisecond. In threads it would have to hand the interpreter's lock over for each
call, so the loop does it in turn with everything else, and only what takes long goes aside (`tables.store.calls`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeAlias

from deltamq.tables.store.calls import StoreCall, Work
from deltamq.tables.store.native import NativePool, NativePublication

log = logging.getLogger("deltamq.api")

#: Most calls of an object store that are under way at once.
_CALLS_MAX: Final = 256
#: Takes the exception that a commit raised, None for none.
Done: TypeAlias = Callable[[Exception | None], None]


class _Ended(NamedTuple):
    error: Exception | None


class Lane:
    """The commits of one event loop that are under way; used on that loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pool: NativePool | None, *, calls_max: int = _CALLS_MAX
    ) -> None:
        """Without a `pool` threads make the file calls; at most `calls_max` calls of an object store are under way."""
        self._loop = loop
        self._pool = pool
        self._calls = asyncio.Semaphore(calls_max)
        self._native: dict[int, tuple[Work[None], Done]] = {}
        #: Calls of an object store and of threads; kept here, since the loop keeps no task alive.
        self._tasks: set[asyncio.Task[None]] = set()
        if pool is not None:
            loop.add_reader(pool.fd, self._go_on)

    @classmethod
    def start(cls, loop: asyncio.AbstractEventLoop, threads: int, calls_max: int) -> Self:
        """Start with so many native threads, where there is the native part."""
        try:
            return cls(loop, NativePool(threads), calls_max=calls_max)
        except OSError:
            return cls(loop, None, calls_max=calls_max)

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
            if isinstance(call, NativePublication) and self._pool is not None:
                self._native[self._pool.begin(call)] = work, done
            else:
                task = self._loop.create_task(self._aside(call, work, done))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except StopIteration:
            return _Ended(None)
        except Exception as error:
            return _Ended(error)
        return None

    async def _aside(self, call: StoreCall[Any], work: Work[None], done: Done) -> None:
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

    def stop(self) -> None:
        """End the native threads; nothing is under way."""
        assert not self._native, "their commits have ended"
        if self._pool is not None:
            self._loop.remove_reader(self._pool.fd)
            self._pool.stop()


def _tell(done: Done, ended: _Ended) -> None:
    try:
        done(ended.error)
    except Exception:  # one waiting request's failure: the other commits go on
        log.exception("event=commit_not_told")


class Threads:
    """All threads of a service except its metadata's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, commits: int, work: int, calls_max: int) -> None:
        self.lane = Lane.start(loop, commits, calls_max)
        self._upkeep = ThreadPoolExecutor(1, thread_name_prefix="mq-upkeep")
        self.work = ThreadPoolExecutor(work, thread_name_prefix="mq-work")
        self._stopping = False

    def keep_up(self, work: Callable[[], None]) -> None:
        """Do upkeep of a partition after that of others; once the threads stop, it is left to the next start."""
        if not self._stopping:  # a timer may end after the threads have
            self._upkeep.submit(work).add_done_callback(_note_failure)

    async def stop(self) -> None:
        """Finish everything that was submitted. The lane's commits have ended."""
        self._stopping = True
        for threads in (self._upkeep, self.work):
            await asyncio.to_thread(threads.shutdown)


def _note_failure(done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        log.error("event=upkeep_failed kind=%s", type(error).__name__, exc_info=error)
