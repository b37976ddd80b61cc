"""The commits of an ordered consumer: now and then while a partition is consumed, and before its lock goes back.

    position  10 ... 25 ... 40 |handed over
    commit         20     35    40  ──► release          (SPEC ORDER-5: commit before release)

A crash repeats what was done since the last commit; a handover repeats nothing.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from mq.client.http import Workers, is_worth_retrying
from mq.client.orderly.calls import OrderlyCalls
from mq.client.orderly.work import OrderlyWork, Place, monotonic_ms
from mq.errors import Conflict, DeltaMQError
from mq.order import RunState

__all__ = ["Commits"]

log = logging.getLogger("deltamq.client")

_AGAIN_MS_MAX: Final = 1_000


class Commits:
    """Stores how far the works are. Safe for any number of threads.

    `refused` is told of a commit that was refused, `ended` when a work needs nothing more, and whether it was lost.
    """

    def __init__(
        self,
        calls: OrderlyCalls,
        requests: Workers,
        *,
        every_ms: int,
        refused: Callable[[OrderlyWork, Conflict], None],
        ended: Callable[[OrderlyWork, bool], None],
    ) -> None:
        self._calls = calls
        self._requests = requests
        self._every_ms = every_ms
        self._refused = refused
        self._ended = ended
        self._next_ms = 0
        self._failures = 0
        self.committed = 0

    def tick(self, works: Sequence[OrderlyWork]) -> None:
        """Commit what is due."""
        now_ms = monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + self._every_ms
        for work in works:
            with work.mutex:
                due = work.place is Place.ENDING or not work.is_committed
            if due:
                self.soon(work)

    def next_ms(self) -> int:
        """When to look again."""
        return self._next_ms

    def soon(self, work: OrderlyWork) -> None:
        """Commit a work now, unless that is under way, and end it if it only waits for that."""
        with work.mutex:
            if work.committing:
                return
            work.committing = True
        self._requests.submit(partial(self._commit, work))

    def now(self, work: OrderlyWork) -> bool:
        """Commit in the thread that calls; whether everything is committed."""
        self._store(work)
        with work.mutex:
            return work.is_committed

    def _commit(self, work: OrderlyWork) -> None:
        stored = False
        try:
            stored = self._store(work)
        finally:
            with work.mutex:
                work.committing = False
        if self._end(work) and stored:
            # It went on, and came to its end meanwhile.
            self.soon(work)

    def _store(self, work: OrderlyWork) -> bool:
        """Commit the position, if it may be; whether that was done."""
        with work.mutex:
            if not work.run.may_commit(monotonic_ms()):
                return False
            position, failures, number = work.run.position, work.run.failures, work.lock.number
            if work.is_committed:
                return False
        try:
            self._calls.commit(work, position, number, failures)
        except DeltaMQError as error:
            self._failed(work, error)
            return False
        self._failures = 0
        self.committed += 1
        with work.mutex:
            if position >= work.committed:
                work.committed, work.committed_failures = position, failures
        return True

    def _failed(self, work: OrderlyWork, error: DeltaMQError) -> None:
        log.warning("event=commit_failed partition=%s code=%s", work.partition, error.code)
        if isinstance(error, Conflict) and not is_worth_retrying(error):
            self._refused(work, error)
            return
        self._failures += 1
        wait_ms = round(self._calls.patience.wait_s(self._failures, random.random()) * 1000)
        self._next_ms = monotonic_ms() + min(wait_ms, _AGAIN_MS_MAX)

    def _end(self, work: OrderlyWork) -> bool:
        """End a work whose run is over; True when that must wait for another commit."""
        with work.mutex:
            if work.place is not Place.ENDING:
                return False
            handed_over = work.run.may_commit(monotonic_ms()) and work.run.state is RunState.HANDED_OVER
            if handed_over and not work.is_committed:
                return True
        self._ended(work, not handed_over)
        return False
