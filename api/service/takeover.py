"""What this process does with brokers that it has taken, before it serves them (SPEC META-3).

fence the brokers' own logs against earlier owners --> read their lanes from the tables --> adopt the lanes
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from deltamq.api.host.hosting import Hosting
from deltamq.api.log.partition import Partitions
from deltamq.api.queue.lanes import Lanes
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.tables.failpoints import failpoint
from deltamq.tables.queue.recovery import recover
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, LOST, OFFSETS, revive_refs, system_ref

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
        """Keep the broker's previous owner from writing to the broker's logs."""
        epoch = self._hosting.fence(broker)
        if epoch is None:
            return
        revives = [self._partitions.of(ref) for ref in revive_refs(self._cluster, broker)]
        others = [self._partitions.of(system_ref(kind, self._cluster, broker)) for kind in _OWN_LOGS]
        found = await asyncio.gather(*(one.look() for one in [*revives, *others]))
        # A revive log that does not exist yet is made here: a previous owner that wakes up must find the fence in it.
        makes = revives if self._hosting.may_wake(broker) else []
        there = [one for one, log in zip([*revives, *others], found, strict=True) if log is not None or one in makes]
        await asyncio.gather(*(one.fenced(epoch) for one in there))
