"""The commits of an ordered consumer: periodic while a partition is consumed, and a last one before its lock's release.

    position  10 ... 25 ... 40 |handed over
    commit         20     35    40  ──► release          (SPEC ORDER-5: commit before release)

After a crash, the messages since the last commit are processed again; after a handover, none are.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from deltamq.mq.client.http.retries import asked_s, is_worth_retrying
from deltamq.mq.client.orderly.calls import OrderlyCalls
from deltamq.mq.client.orderly.work import OrderlyWork, WorkState, monotonic_ms
from deltamq.mq.client.shells.shell import Workers
from deltamq.mq.errors import Conflict, DeltaMQError
from deltamq.mq.order.orderly import RunState

log = logging.getLogger("deltamq.client")

_AGAIN_MS_MAX: Final = 1_000


class Commits:
    """Commits the positions of the works.

    It calls `refused` after a refused commit, and `ended` with a work that needs no further commit and whether the
    partition was lost.
    """

    def __init__(
        self,
        calls: OrderlyCalls,
        requests: Workers,
        *,
        every_ms: int,
        refused: Callable[[OrderlyWork, Conflict], None],
        ended: Callable[[OrderlyWork, bool], Coroutine[Any, Any, None]],
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
        """Commit the works that are due."""
        now_ms = monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + self._every_ms
        for work in works:
            with work.mutex:
                due = work.state is WorkState.ENDING or not work.is_committed
            if due:
                self.soon(work)

    def next_ms(self) -> int:
        """Return when `tick` is due next."""
        return self._next_ms

    def soon(self, work: OrderlyWork) -> None:
        """Commit a work in the background, unless a commit is under way; then end it if it waits for nothing else."""
        with work.mutex:
            if work.committing:
                return
            work.committing = True
        self._requests.submit(partial(self._commit, work))

    async def now(self, work: OrderlyWork) -> bool:
        """Commit at once; returns whether everything is committed."""
        await self._store(work)
        with work.mutex:
            return work.is_committed

    async def _commit(self, work: OrderlyWork) -> None:
        stored = False
        try:
            stored = await self._store(work)
        finally:
            with work.mutex:
                work.committing = False
        if await self._end(work) and stored:
            # The run went on during the commit, and has ended since.
            self.soon(work)

    async def _store(self, work: OrderlyWork) -> bool:
        """Commit the position, if that is allowed and needed; returns whether it was stored."""
        with work.mutex:
            if not work.run.may_commit(monotonic_ms()):
                return False
            position, failures, number = work.run.position, work.run.failures, work.lock.number
            if work.is_committed:
                return False
        try:
            await self._calls.commit(work, position, number, failures)
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
        self._next_ms = monotonic_ms() + max(min(wait_ms, _AGAIN_MS_MAX), round(asked_s(error) * 1000))

    async def _end(self, work: OrderlyWork) -> bool:
        """End a work whose run is over; returns True if it needs another commit first."""
        with work.mutex:
            if work.state is not WorkState.ENDING:
                return False
            handed_over = work.run.may_commit(monotonic_ms()) and work.run.state is RunState.HANDED_OVER
            if handed_over and not work.is_committed:
                return True
        await self._ended(work, not handed_over)
        return False
