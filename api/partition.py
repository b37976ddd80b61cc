"""One partition as the service sees it: its log, opened on first use, its commit queue, and the readers that wait.

The log is blocking and is opened, read from disk and refreshed on threads; everything else happens on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from api.group_commit import CommitQueue, Part
from api.metrics import Metrics
from api.workers import Workers
from mq.errors import DeltaMQError, NotFound
from mq.topics import Topic
from tables.log import PartitionLog
from tables.paths import PartitionRef, Space
from tables.warehouse import Warehouse

__all__ = ["Partition", "Partitions"]

log = logging.getLogger("deltamq.api")

T = TypeVar("T")

#: A partition that could not be opened is not tried again by every request.
_OPEN_AGAIN_S: Final = 1.0
#: Upkeep follows a commit after this time, and then for all commits since: each run takes the interpreter from others.
_UPKEEP_AFTER_S: Final = 0.02


class Partition:
    """One physical partition of one life of a topic."""

    def __init__(self, owner: Partitions, topic: Topic, name: str) -> None:
        self.topic = topic.name
        self.name = name
        self.ref = PartitionRef(Space.TOPICS, topic.name, name, topic.generation)
        self._owner = owner
        # The same in every process that makes the table, and another in every life of the topic.
        self._table_id = str(uuid.uuid5(uuid.UUID(topic.id), name))
        self._opening = threading.Lock()
        self._failed: tuple[float, DeltaMQError] | None = None
        self._closed = False
        self.log: PartitionLog | None = None
        self.queue = CommitQueue(self.open, owner.commits, owner.loop, self)
        self._waiters: set[asyncio.Future[None]] = set()
        self.refreshed_at = 0.0
        self._in_upkeep = False

    def open(self) -> PartitionLog:
        """The log; blocking, for threads. Creates the table when the topic's creation was cut short."""
        opened = self.log
        if opened is not None:
            return opened
        with self._opening:
            if self._closed:
                raise NotFound(f"topic {self.topic} was deleted", code="topic_not_found", field="topic")
            opened = self.log or self._open_once()
            self.log = opened
            return opened

    def _open_once(self) -> PartitionLog:
        if self._failed is not None and time.monotonic() < self._failed[0]:
            raise self._failed[1]
        try:
            return self._owner.warehouse.create(self.ref, table_id=self._table_id)
        except DeltaMQError as error:
            self._failed = (time.monotonic() + _OPEN_AGAIN_S, error)
            log.error("event=partition_not_opened partition=%s code=%s", self.name, error.code)
            raise

    @property
    def fault(self) -> str | None:
        """The code of what keeps the partition from serving; None while it serves or was not opened yet."""
        if self.log is not None:
            return None if self.log.stopped is None else self.log.stopped.code
        return None if self._failed is None else self._failed[1].code

    def close(self) -> None:
        """The topic is gone: refuse what still comes, and wake who waits. The warehouse closes the log."""
        self._closed = True
        self.log = None
        self.wake()

    async def opened(self) -> PartitionLog:
        """The log, opened on a thread if need be."""
        opened = self.log
        return opened if opened is not None else await self._owner.run(self.open)

    async def refresh(self) -> None:
        """See the commits of other processes, and wake the readers if there are any."""
        opened = await self.opened()
        self.refreshed_at = self._owner.loop.time()
        if await self._owner.run(opened.refresh):
            self.wake()

    # Readers that wait for a message.

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiters)

    def wake(self) -> None:
        """Tell every waiting reader to look again."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def waiter(self) -> asyncio.Future[None]:
        """A future that is done at the next commit; the caller looks at the end offset after asking for it."""
        waiter: asyncio.Future[None] = self._owner.loop.create_future()
        self._waiters.add(waiter)
        return waiter

    def forget(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.discard(waiter)

    # CommitObserver.

    def committed(self, parts: Sequence[Part]) -> None:
        """After each commit: wake the readers, and let upkeep follow off the request path."""
        if self._waiters:
            self.wake()
        self._owner.metrics.committed(parts)
        if not self._in_upkeep:
            self._in_upkeep = True
            self._owner.loop.call_later(_UPKEEP_AFTER_S, self._owner.upkeep.submit, self._maintain)

    def _maintain(self) -> None:
        """On the upkeep thread: what roll-ups, checkpoints and clean-up are due."""
        self._in_upkeep = False
        opened = self.log
        try:
            if opened is not None and opened.stopped is None:
                opened.maintain()
        except DeltaMQError as error:
            # Upkeep is due again after the next commit; what it found wrong, readers and writers will be told.
            log.error("event=upkeep_failed partition=%s code=%s detail=%r", self.name, error.code, error.detail)


class Partitions:
    """The partitions that this process has touched, by topic life and name."""

    def __init__(
        self,
        warehouse: Warehouse,
        loop: asyncio.AbstractEventLoop,
        *,
        commits: Workers,
        upkeep: Workers,
        threads: ThreadPoolExecutor,
        metrics: Metrics,
    ) -> None:
        self.warehouse = warehouse
        self.loop = loop
        self.commits = commits
        self.upkeep = upkeep
        self.metrics = metrics
        self._threads = threads
        self._found: dict[tuple[str, str], Partition] = {}

    def get(self, topic: Topic, name: str) -> Partition:
        """The partition; its table is opened when it is first needed."""
        key = (topic.id, name)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Partition(self, topic, name)
        return found

    async def run(self, work: Callable[[], T]) -> T:
        """Blocking work on a thread."""
        return await self.loop.run_in_executor(self._threads, work)

    def drop(self, topic_id: str) -> None:
        """Forget a deleted topic's partitions."""
        for key in [k for k in self._found if k[0] == topic_id]:
            self._found.pop(key).close()

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._found.values()))
