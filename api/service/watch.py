"""The watch for other processes' commits: often where a reader waits, now and then in other partitions in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_topic import Topics
from deltamq.api.log.partition import Partition, Partitions
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.overdue import settle_overdue
from deltamq.mq.errors import DeltaMQError

log = logging.getLogger("deltamq.api")


class Watch:
    """Looks at partitions from `start` to `stop`; used on the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        topics: Topics,
        groups: Groups,
        lanes: Lanes,
        *,
        every_s: float,
        end_waiting: Callable[[], None] | None = None,
    ) -> None:
        """`end_waiting` ends requests that wait and whose right to do so is over."""
        self._partitions = partitions
        self._topics = topics
        self._groups = groups
        self._lanes = lanes
        self._every_s = every_s
        self._end_waiting = end_waiting
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = self._partitions.loop.create_task(self._run())

    async def stop(self) -> None:
        """End the watch, if it was started."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Remove what a kill left of deleted topics and groups, then look again and again."""
        partitions = self._partitions
        await _guarded(self._topics.sweep, None)
        await _guarded(self._groups.sweep, None)
        while True:
            await asyncio.sleep(self._every_s)
            await _guarded(partial(settle_overdue, self._lanes), None)
            if self._end_waiting is not None:
                self._end_waiting()
            for partition in list(partitions.awaited):
                if not partition.has_waiters:
                    partitions.awaited.discard(partition)
                elif partitions.loop.time() - partition.refreshed_at >= self._every_s:
                    await _guarded(partition.refresh, partition)
            for partition in partitions.tending.take():
                await _guarded(partition.tend, partition)


async def _guarded(refresh: Callable[[], Awaitable[None]], partition: Partition | None) -> None:
    """Run one refresh; a failure is logged, wakes the partition's readers, and does not end the watch."""
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
