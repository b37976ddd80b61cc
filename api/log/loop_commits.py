"""Commits that the event loop makes itself, while threads without Python make their file calls.

    loop       [ encode A ][ encode B ][ requests ... ][ answer A ][ encode C ][ answer B ]
    native      '-- write, fsync, link A ---------'     '-- ... C
                            '-- write, fsync, link B ------------'

A commit's Python takes less than a millisecond, and threads would have to hand the interpreter's lock over for it. So
the loop does it in turn with everything else, and nobody waits for the lock. That pays while several partitions commit
at once (a fifth less CPU); one alone is faster in a thread, which has the lock while the loop is idle (a twentieth).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Self, TypeAlias

from deltamq.tables.store.file_system import Failed
from deltamq.tables.store.native import NativePool
from deltamq.tables.store.publishing import Work

log = logging.getLogger("deltamq.api")

#: For how long commits count as overlapping after two have, in seconds.
_OVERLAP_S: Final = 0.1
#: Takes the exception that a commit raised, None for none.
Done: TypeAlias = Callable[[Exception | None], None]


class _Ended(NamedTuple):
    """The end of a commit, and what it raised."""

    error: Exception | None


class LoopCommits:
    """The commits of one event loop that are under way; used on that loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pool: NativePool | None, *, overlap_s: float = _OVERLAP_S
    ) -> None:
        """Without a `pool` the loop makes no commit itself.

        `overlap_s` is for how long commits count as overlapping after two have, in seconds.
        """
        self._loop = loop
        self._pool = pool
        self._overlap_s = overlap_s
        self._under_way: dict[int, tuple[Work[None], Done]] = {}
        #: The number of partitions that have a commit under way, here or in a thread.
        self._partitions = 0
        #: Until when commits count as overlapping, by the loop's clock.
        self._overlap_until_s = 0.0
        self._is_ending = False
        if pool is not None:
            loop.add_reader(pool.fd, self._go_on)

    @classmethod
    def start(cls, loop: asyncio.AbstractEventLoop, threads: int) -> Self:
        """Start with so many native threads, where there is the native part."""
        try:
            return cls(loop, NativePool(threads))
        except OSError:
            return cls(loop, None)

    def enter(self) -> bool:
        """Note that a partition's commits begin; return whether the loop should make them: those of several overlap."""
        now = self._loop.time()
        if self._partitions:
            self._overlap_until_s = now + self._overlap_s
        self._partitions += 1
        return now < self._overlap_until_s and self._pool is not None and not self._is_ending

    def leave(self) -> None:
        """Note that a partition has no commit under way any more."""
        self._partitions -= 1

    def begin(self, work: Work[None], done: Done) -> None:
        """Run a commit, and call `done` at its end, never before this returns.

        A commit without file calls, of repeats alone, ends at once; the caller has not noted yet who waits for it.
        """
        ended = self._step(work, done, None)
        if ended is not None:
            self._loop.call_soon(_tell, done, ended)

    def _step(self, work: Work[None], done: Done, outcome: Failed | None) -> _Ended | None:
        """Run a commit to its next file calls, or to its end; return None while it is under way."""
        assert self._pool is not None, "`enter` says so"
        try:
            self._under_way[self._pool.begin(work.send(outcome))] = work, done
        except StopIteration:
            return _Ended(None)
        except Exception as error:
            return _Ended(error)
        return None

    def _go_on(self) -> None:
        """Go on with the commits whose file calls were made."""
        assert self._pool is not None, "it is its outcomes that are there"
        for number, outcome in self._pool.outcomes():
            work, done = self._under_way.pop(number)
            ended = self._step(work, done, outcome)
            if ended is not None:
                _tell(done, ended)

    def end(self) -> None:
        """Leave all further commits to threads."""
        self._is_ending = True

    def stop(self) -> None:
        """End the native threads; nothing is under way any more, and `end` keeps it so."""
        assert self._is_ending and not self._under_way, "their commits have ended"
        if self._pool is not None:
            self._loop.remove_reader(self._pool.fd)
            self._pool.stop()


def _tell(done: Done, ended: _Ended) -> None:
    try:
        done(ended.error)
    except Exception:  # a waiting request's own: the other commits go on
        log.exception("event=commit_not_told")
