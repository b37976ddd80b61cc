"""The shards of one job that this application holds: it looks for them, takes them, and gives them back between runs.

Two threads use them: the keeper, which takes this application's share at any time, and the job's thread, which begins
and ends runs. A shard that is to be given back while a run uses it is released when that run ends, so no two
applications ever work on one shard.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.locks import DriverBusy, ShardLock, holder_of, take_shard
from deltamq.jobs.run.registry import Job
from deltamq.mq.errors import DeltaMQError, Fenced
from deltamq.mq.jobs import shard_share
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.config import Config
from deltamq.tables.store.store import Store

#: Interval at which a job lists its shards, in milliseconds: brokers are added now and then.
_NAMES_EVERY_MS: Final = 5_000
#: Any application takes a shard that is free for this time: the application whose share it is does not take it.
_LEFT_MS: Final = 3_000
#: A shard that was taken this way is kept for this time: the other application would leave it again.
_KEPT_MS: Final = 60_000


class Tended(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `tend`."""

    #: The taken shards, each with its previous holder; None if no holder was seen.
    taken: Mapping[str, Holder | None]
    given: Sequence[str]


class JobShards:
    """The shards of one job, as this application sees them."""

    def __init__(self, job: Job, conf: Config, store: Store, me: Holder, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._job = job
        self._conf = conf
        self._store = store
        self._me = msgspec.structs.replace(me, engine=job.engine(conf))
        self._clock = clock
        self._mutex = threading.Lock()
        self._names: Sequence[str] = ()
        self._names_at_ms: int | None = None
        self._held: dict[str, ShardLock] = {}
        self._running = False
        self._surplus: Sequence[str] = ()
        #: The holders of the shards that this application does not hold.
        self._others: dict[str, Holder] = {}
        #: The last known holders of shards.
        self._had: dict[str, Holder] = {}
        self._free_since_ms: dict[str, int] = {}
        self._kept_until_ms: dict[str, int] = {}

    @property
    def held(self) -> tuple[str, ...]:
        """The shards that this application holds."""
        return tuple(sorted(self._held))

    @property
    def others(self) -> Mapping[str, Holder]:
        """The holders of the shards that this application does not hold, as of the last look."""
        return dict(self._others)

    @property
    def is_whole(self) -> bool:
        """Whether this application holds all shards that it knows."""
        return set(self._names) <= self._held.keys()

    def take_all(self) -> None:
        """Take every shard; raise `DriverBusy` if another process has one: shards that were taken before stay taken."""
        self._look_for_names(self._clock.boot_ms())
        for shard in self._names:
            if shard not in self._held:
                self._held[shard] = take_shard(self._store, self._job.name, shard, self._me)

    def take_free(self) -> Mapping[str, str]:
        """Take every free shard; return the reason of each refusal by shard."""
        self._look_for_names(self._clock.boot_ms())
        refused = {}
        for shard in self._names:
            try:
                self._held[shard] = take_shard(self._store, self._job.name, shard, self._me)
            except DriverBusy as error:
                refused[shard] = error.detail
        return refused

    def tend(self, taking_part: Collection[str]) -> Tended:
        """Take this application's share, and give back other applications' shards unless a run uses them.

        Parameters
        ----------
        taking_part
            The ids of the applications that share the shards now.
        """
        now_ms = self._clock.boot_ms()
        self._look_for_names(now_ms)
        self._look_for_owners(now_ms)
        mine = self._me.application
        owners = {shard: holder.application for shard, holder in self._others.items()}
        left = [shard for shard, since_ms in self._free_since_ms.items() if now_ms - since_ms >= _LEFT_MS]
        share = shard_share(mine, taking_part, self._names, owners | dict.fromkeys(self.held, mine), left)
        taken = [shard for shard in share.take if self._take(shard)]
        self._kept_until_ms |= {shard: now_ms + _KEPT_MS for shard in taken if shard in left}
        give = [shard for shard in share.give if self._kept_until_ms.get(shard, 0) <= now_ms]
        return Tended(taken={shard: self._had.pop(shard, None) for shard in taken}, given=self._give(give))

    def leave(self) -> Tended:
        """Give back every shard, unless a run uses them."""
        return Tended(taken={}, given=self._give(self.held))

    def begin_run(self) -> tuple[ShardLock, ...]:
        """Return the shards to work on, which stay held until the run ends; drop those whose lock is lost."""
        with self._mutex:
            for shard, lock in list(self._held.items()):
                try:
                    lock.check()
                except Fenced:
                    del self._held[shard]
                    _release(lock)
            self._running = bool(self._held)
            return tuple(self._held[shard] for shard in sorted(self._held))

    def end_run(self) -> None:
        """End the run, and give back other applications' shards."""
        with self._mutex:
            self._running = False
            surplus, self._surplus = self._surplus, ()
        self._give(surplus)

    def release(self) -> None:
        """Release all shards, except while a run uses them: then they are released when the process ends."""
        with self._mutex:
            if not self._running:
                for shard in list(self._held):
                    _release(self._held.pop(shard))

    def _look_for_names(self, now_ms: int) -> None:
        if self._names_at_ms is None or now_ms - self._names_at_ms >= _NAMES_EVERY_MS:
            self._names = tuple(dict.fromkeys(self._job.shards(self._conf)))
            self._names_at_ms = now_ms

    def _look_for_owners(self, now_ms: int) -> None:
        not_held = [shard for shard in self._names if shard not in self._held]
        holders = {shard: holder_of(self._store, self._job.name, shard) for shard in not_held}
        self._others = {shard: holder for shard, holder in holders.items() if holder is not None}
        self._had |= self._others
        free = [shard for shard, holder in holders.items() if holder is None]
        self._free_since_ms = {shard: self._free_since_ms.get(shard, now_ms) for shard in free}

    def _take(self, shard: str) -> bool:
        try:
            lock = take_shard(self._store, self._job.name, shard, self._me, tries=1)
        except DriverBusy:
            return False  # another process was faster, or is just looking
        with self._mutex:
            self._held[shard] = lock
        return True

    def _give(self, shards: Sequence[str]) -> Sequence[str]:
        with self._mutex:
            if self._running:
                self._surplus = shards
                return ()
            locks = [self._held.pop(shard) for shard in shards if shard in self._held]
        for lock in locks:
            _release(lock, forget=lock.shard not in self._names)
        return [lock.shard for lock in locks]


def _release(lock: ShardLock, *, forget: bool = False) -> None:
    """If the store cannot be reached, the lease expires."""
    with contextlib.suppress(DeltaMQError, OSError):
        lock.release(forget=forget)
