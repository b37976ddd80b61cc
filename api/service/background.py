"""A process's work without a request: it adopts the brokers that it has taken, and watches for others' commits.

    fence the taken brokers' own logs against earlier owners --> read their lanes from the tables --> adopt the lanes

Brokers are served after that (SPEC META-3). The watch looks often where a reader waits, and now and then in other used
partitions. Another watch ends what has lost its access.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from deltamq.api.auth.gate import Gate
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.host.hosting import Hosting
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.redelivered import OverdueLooks, settle_overdue
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.tables.failpoints import failpoint
from deltamq.tables.queue.recovery import recover
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, LOST, OFFSETS, revive_refs, system_ref

log = logging.getLogger("deltamq.api")

#: Most seconds between two looks for access that is over.
_ACCESS_S: Final = 1.0


class Background(ABC):
    """Work that goes on from `start` to `stop`; used on the event loop."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the work."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the work, if it was started."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @abstractmethod
    async def _run(self) -> None:
        """Work until it is cancelled."""


class Watch(Background):
    """Looks at partitions from `start` to `stop`; used on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        topics: Topics,
        groups: Groups,
        lanes: Lanes,
        *,
        every_s: float,
    ) -> None:
        self._partitions = partitions
        self._topics = topics
        self._groups = groups
        self._lanes = lanes
        self._every_s = every_s

    async def _run(self) -> None:
        """Remove remains of deleted topics and groups that a kill left, then look at partitions for ever."""
        partitions = self._partitions
        overdue = OverdueLooks(partitions.loop.time)
        await _guarded(self._topics.sweep, None)
        await _guarded(self._groups.sweep, None)
        while True:
            await asyncio.sleep(self._every_s)
            await _guarded(partial(settle_overdue, self._lanes, overdue.due(self._lanes)), None)
            awaited = [partition for partition in partitions.awaited if partition.has_waiters]
            partitions.awaited.intersection_update(awaited)
            due = (partition for partition in awaited if partition.is_look_due(self._every_s))
            await asyncio.gather(*(_guarded(partition.refresh, partition) for partition in due))
            for partition in partitions.tending.take():
                await _guarded(partition.tend, partition)


async def _guarded(refresh: Callable[[], Awaitable[None]], partition: Partition | None) -> None:
    """Run one refresh; log a failure, and wake the partition's readers, who then get it."""
    try:
        await refresh()
    except DeltaMQError as error:
        log.warning("event=refresh_failed partition=%s code=%s", partition.name if partition else "-", error.code)
    except Exception as error:
        name = partition.name if partition else "-"
        log.error("event=refresh_failed partition=%s kind=%s", name, type(error).__name__, exc_info=error)
    else:
        return
    if partition is not None:
        partition.wake()


class AccessWatch(Background):
    """Ends requests and connections whose access is over, or not known (SPEC SEC-5, SEC-45); used on the event loop.

    It waits for the store a second at most: a store that does not answer hides what was revoked.
    """

    def __init__(self, gate: Gate, meta: HostedMeta, *, every_s: float) -> None:
        self._gate = gate
        self._meta = meta
        self._every_s = min(every_s, _ACCESS_S)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await _guarded(self._look, None)

    async def _look(self) -> None:
        try:
            await self._meta.keep_read()
        finally:
            self._gate.end_waiting()


#: A broker's logs that its owner fences beside its revive logs.
_OWN_LOGS: Final = (OFFSETS, LOST, DELAY, DELAY_MARKS)


class Takeover:
    """Recovers the lanes of taken brokers; used on the event loop."""

    def __init__(self, partitions: Partitions, hosting: Hosting, lanes: Lanes, cluster: str) -> None:
        self._partitions = partitions
        self._hosting = hosting
        self._lanes = lanes
        self._cluster = cluster

    async def recover(self, roles: Mapping[str, int]) -> None:
        """Fence these brokers' logs against earlier owners, then read their lanes from the tables."""
        brokers = sorted(roles.keys() - {META_ROLE})
        if not brokers:
            return
        for broker in brokers:
            await self._fence(broker)
        failpoint("lease.after_fence")
        warehouse = self._partitions.warehouse
        recovered = await self._partitions.run(partial(recover, warehouse, self._cluster, brokers))
        for broker in brokers:
            self._lanes.adopt(broker, roles[broker], recovered.of(broker))

    async def _fence(self, broker: str) -> None:
        epoch = self._hosting.fence(broker)
        if epoch is None:
            return
        revives = [self._partitions.of(ref) for ref in revive_refs(self._cluster, broker)]
        others = [self._partitions.of(system_ref(kind, self._cluster, broker)) for kind in _OWN_LOGS]
        partitions = [*revives, *others]
        logs = await asyncio.gather(*(partition.look() for partition in partitions))
        # A revive log that does not exist yet is made here: a previous owner that wakes up must find the fence in it.
        makes = revives if self._hosting.may_wake(broker) else []
        there = [at for at, log in zip(partitions, logs, strict=True) if log is not None or at in makes]
        await asyncio.gather(*(partition.fenced(epoch) for partition in there))
