"""The metadata log on the event loop: blocking calls go to a thread, and followers are notified of every change by any
process.

    submit, submit --.                                     .--> each caller: the state after its change, or its refusal
    refresh ---------+-- wait --> one round: look, append -+
    submit ----------'            (meanwhile others wait)  '--> followers

What waits shares a round: one look at the log, or one append, however many callers there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias, TypeVar

from deltamq.api.audit.acts import noting
from deltamq.api.log.partition import Partitions
from deltamq.mq.errors import DeltaMQError, Unavailable
from deltamq.mq.meta.fold import AnyEvent, Meta, parts_told
from deltamq.mq.meta.group import GroupEvent
from deltamq.mq.meta.topics import Event, MetaState
from deltamq.tables.queue.metadata import Change, MetaLog

log = logging.getLogger("deltamq.api")

#: Seconds from a change to the upkeep for it and all changes since.
_UPKEEP_AFTER_S: Final = 1.0
#: All processes refuse a revoked caller within 5 s (SPEC SEC-5), so metadata that was read earlier does not count.
_READ_WITHIN_S: Final = 5.0
#: So long before that metadata which is seldom read is read again, and so long the answer is waited for.
_READ_AHEAD_S: Final = 1.0
#: How long a request waits for metadata that was not read for too long, in seconds.
_ANSWER_S: Final = 5.0

#: Most changes in one append: deciding each takes about half a millisecond.
_CHANGES_MAX: Final = 200

#: A callback on the event loop with the state before and after a change.
Follower: TypeAlias = Callable[[Meta, Meta], None]

T = TypeVar("T")


class HostedMeta:
    """One process's view of the metadata; all changes by this process go through it."""

    def __init__(self, log: MetaLog, partitions: Partitions, *, read_within_s: float = _READ_WITHIN_S) -> None:
        """Metadata that was read longer than `read_within_s` ago admits no caller (`check_read`)."""
        self._log = log
        self._loop = partitions.loop
        self._keep_up = partitions.keep_up
        self._in_upkeep = False
        # A thread of its own: the lease is renewed on it, and must not wait for others' reads from a disk. More threads
        # would not help, since the log takes one call at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mq-meta")
        self._notified = log.meta
        self._read_within_s = read_within_s
        self._read_at = self._loop.time()
        self._failure: DeltaMQError | None = None
        #: When the calls of the thread that are under way were made.
        self._asked: list[float] = []
        self._reading: asyncio.Task[None] | None = None
        #: The changes that wait for the next round, and the future of all looks that do.
        self._waiting: list[tuple[Change, asyncio.Future[None]]] = []
        self._look: asyncio.Future[None] | None = None
        self._rounds: asyncio.Task[None] | None = None
        self._followers: list[Follower] = []
        #: Called when this process has stored a change that is about more than a lease.
        self.stored: list[Callable[[], None]] = []

    @property
    def now(self) -> Meta:
        """The newest known state; it is immutable."""
        return self._log.meta

    @property
    def warehouse_id(self) -> str:
        """The id of the warehouse, which stays when its folder is moved."""
        return self._log.warehouse_id

    @property
    def offset(self) -> int:
        """The offset up to which the newest known state includes the log."""
        return self._log.offset

    def check(self) -> None:
        """Return if the metadata can be read and written; raise `Unavailable` (`metadata_stopped`) if not.

        A process that cannot read others' changes knows neither whether it still has its roles, nor where keys belong,
        nor the access rules (SPEC RELY-10).
        """
        stopped = self._log.stopped
        if stopped is not None:
            raise Unavailable(f"the metadata log sys/meta is stopped: {stopped.detail}", code="metadata_stopped")

    def check_read(self) -> None:
        """Return if the metadata was read lately; raise `Unavailable` (`metadata_unread`) if not (SPEC SEC-45)."""
        unread = self.unread()
        if unread is not None:
            raise unread

    def unread(self) -> Unavailable | None:
        """Return the error that `check_read` raises; None if the metadata was read lately."""
        if self.unread_s <= self._read_within_s:
            return None
        return Unavailable(
            f"the metadata was not read for {self.unread_s:.0f} s, so revocations since then are unknown{self.why}",
            code="metadata_unread",
        )

    @property
    def unread_s(self) -> float:
        """Seconds since the last look at the metadata that ended well."""
        return self._loop.time() - self._read_at

    @property
    def why(self) -> str:
        """What is wrong with the store, with a colon before it; empty if nothing is."""
        if self._failure is not None:
            return f": {self._failure.detail}"
        return f": the store has not answered for {self._loop.time() - self._asked[0]:.0f} s" if self._asked else ""

    async def ensure_read(self) -> None:
        """Read the metadata if that was long ago, as after a pause of the process; raises as `check_read` does.

        It does so, too, if the store has not answered after a while.
        """
        if self.unread_s > self._read_within_s:
            await self._read(_ANSWER_S)
            self.check_read()

    async def keep_read(self) -> None:
        """Read the metadata if that would soon be too long ago, or is; return after a second though it is not read."""
        if self.unread_s > self._read_within_s - _READ_AHEAD_S:
            await self._read(_READ_AHEAD_S)

    async def _read(self, within_s: float) -> None:
        """Read the metadata, once for all that wait for it; return after `within_s` though it is not read."""
        if self._reading is None:
            self._reading = self._loop.create_task(self._read_again())
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._reading)

    async def _read_again(self) -> None:
        try:
            with suppress(DeltaMQError):  # `check_read` reports it
                await self.refresh()
        finally:
            self._reading = None

    async def reach(self, offset: int) -> None:
        """Read the log at least up to `offset`, which another process has seen."""
        if self.offset < offset:
            await self.refresh()

    def follow(self, follower: Follower) -> None:
        """Notify `follower` of every change from now on."""
        self._followers.append(follower)

    async def run(self, work: Callable[[], T]) -> T:
        """Run short blocking work that belongs to a change of the metadata."""
        began = self._loop.time()
        self._asked.append(began)
        try:
            return await asyncio.wrap_future(self._thread.submit(work), loop=self._loop)
        finally:
            self._asked.remove(began)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    async def refresh(self) -> Meta:
        """Read the changes of other processes; raises `Unavailable` as `check` does."""
        self.check()
        if self._look is None:
            self._look = self._loop.create_future()
        await asyncio.shield(self._next_round(self._look))
        return self.now

    async def submit(self, decide: Callable[[MetaState], Sequence[Event]]) -> MetaState:
        """Change topics (see `MetaLog.submit`)."""
        return (await self.submit_any(lambda meta: decide(meta.topics))).topics

    async def submit_groups(self, decide: Callable[[Meta], Sequence[GroupEvent]]) -> Meta:
        """Change groups (see `MetaLog.submit_groups`)."""
        return await self.submit_any(decide)

    async def submit_any(self, decide: Callable[[Meta], Sequence[AnyEvent]]) -> Meta:
        """Change anything (see `MetaLog.submit_any`); an act under way notes the changes (SPEC SEC-40)."""
        self.check()
        with noting(decide) as (noted, act):
            change, done = Change(noted, act), self._loop.create_future()
            self._waiting.append((change, done))
            # Shielded, because the others of its round go on without a caller that is cancelled.
            await asyncio.shield(self._next_round(done))
        return change.after

    def _next_round(self, done: asyncio.Future[None]) -> asyncio.Future[None]:
        if self._rounds is None:
            self._rounds = self._loop.create_task(self._run_rounds())
        return done

    async def _run_rounds(self) -> None:
        try:
            while self._waiting or self._look is not None:
                taken, self._waiting = self._waiting[:_CHANGES_MAX], self._waiting[_CHANGES_MAX:]
                look, self._look = self._look, None
                await self._round(taken, look)
        finally:
            self._rounds = None

    async def _round(
        self, taken: Sequence[tuple[Change, asyncio.Future[None]]], look: asyncio.Future[None] | None
    ) -> None:
        """Look at the log if that is wanted, and store the changes with one append."""
        began = self._loop.time()
        changes = [change for change, _ in taken]
        failure: Exception | None = None
        try:
            store = partial(self._log.submit_all, changes, look=look is not None)
            await self.run(store if changes else self._log.refresh)
        except Exception as error:
            failure = error
            if look is not None and isinstance(error, DeltaMQError):
                self._failure = error
        else:
            if look is not None:
                self._read_at, self._failure = began, None
            self._tell()
            events = [event for change in changes for event in change.events]
            if events:
                self._plan_upkeep()
            if any(map(parts_told, events)):
                for tell in self.stored:
                    tell()
        for change, done in taken:
            _end(done, failure or change.error)
        if look is not None:
            _end(look, failure)

    def _plan_upkeep(self) -> None:
        if not self._in_upkeep:
            self._in_upkeep = True
            self._loop.call_later(_UPKEEP_AFTER_S, self._keep_up, self._maintain)

    def _maintain(self) -> None:
        """Keep the log short; on the upkeep thread."""
        self._in_upkeep = False
        try:
            self._log.maintain()
        except DeltaMQError as error:
            # Upkeep is due again after the next change; reads and changes report the same fault themselves.
            log.error("event=upkeep_failed partition=meta code=%s detail=%r", error.code, error.detail)

    def _tell(self) -> None:
        before, after = self._notified, self._log.meta
        self._notified = after
        if after is not before:
            for follower in self._followers:
                follower(before, after)


def _end(done: asyncio.Future[None], error: Exception | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        done.exception()  # the caller may be gone
