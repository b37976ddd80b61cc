"""The tables of topics and groups as they come and go: made, opened and removed on threads of their own.

A call to an object store is mostly waiting, and a topic has several tables. The threads for decoding (`work_threads`)
are as few as a machine has cores, so 200 new topics would wait for one another there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeAlias, TypeVar

from deltamq.api.log.partition import Partition, Partitions
from deltamq.mq.errors import Corrupt
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.paths import Space

T = TypeVar("T")

#: One life of a topic, also of one of the queue's own, as `Warehouse.drop_topic` takes it.
Life: TypeAlias = tuple[Space, str, int]
#: Calls of this kind under way at once.
_THREADS: Final = 32


class Tables:
    """Makes, opens and removes tables; used on the event loop."""

    def __init__(self, partitions: Partitions) -> None:
        self._warehouse = partitions.warehouse
        self._loop = partitions.loop
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="mq-tables")

    async def open(self, partitions: Iterable[Partition], *, new: bool = False) -> dict[str, PartitionLog]:
        """Open these partitions, making missing tables; return the logs without those of damaged tables.

        `new`: they belong to a life that the metadata has only now, so no table is looked for before it is made.
        """
        wanted = list(partitions)
        logs = await asyncio.gather(*(self._opened(partition, new=new) for partition in wanted))
        return {partition.name: log for partition, log in zip(wanted, logs, strict=True) if log is not None}

    async def _opened(self, partition: Partition, *, new: bool) -> PartitionLog | None:
        if partition.log is not None:
            return partition.log
        began_s = self._loop.time()
        try:
            if new:
                make = partial(
                    self._warehouse.create, partition.ref, table_id=partition.table_id, codec=partition.codec
                )
                await self._run(partial(make, is_new=True))
            log = await self._run(partition.open)
        except Corrupt:
            return None
        partition.refreshed_at = max(partition.refreshed_at, began_s)
        return log

    async def drop(self, lives: Iterable[Life]) -> None:
        """Remove the tables of these lives."""
        await asyncio.gather(*(self._run(partial(self._warehouse.drop_topic, *life)) for life in lives))

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._threads, work)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()
