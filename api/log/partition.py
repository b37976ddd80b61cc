"""One partition as the service sees it: its log, opened on first use, its commit queue, and the readers that wait.

The log's calls block: it is opened, read from disk and refreshed on threads. Everything else runs on the event loop.
A queue of due times finds the partitions that need work without a request, so that others cost nothing:

    opened, committed --every `every_s` while it is used--> news of other processes, upkeep
                            '--not used--> at rest: nothing in memory for readers --upkeep is due--> upkeep

At rest a partition comes up again when its next clean-up or sweep is due, or after an hour.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from deltamq.api.log.group_commit import FAR, HERE, CommitQueue
from deltamq.api.log.lane import Threads
from deltamq.api.log.metrics import Metrics, PartitionGauges
from deltamq.api.log.parts import RequestPart
from deltamq.api.log.tending import Tending, UpkeepPace
from deltamq.mq.errors import READ_ONLY, DeltaMQError, Fenced, NotFound, Unavailable
from deltamq.mq.meta.topics import Topic
from deltamq.tables.delta.snapshot import PartitionNotFound
from deltamq.tables.log.fences import BROKER_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.placement import FenceEpochs
from deltamq.tables.typed.codec import Codec

log = logging.getLogger("deltamq.api")

T = TypeVar("T")

#: Seconds between two that come up from their rest on an object store, where calls are paid for.
_FAR_APART_S: Final = 20.0
#: Codes of commits that the store may not have taken.
_NOT_WRITTEN: Final = ("storage_error", "outcome_unknown", READ_ONLY)
#: Seconds after a failed opening during which requests get the same error without another try.
_OPEN_AGAIN_S: Final = 1.0
#: Most seconds between two looks in an object store for readers that wait.
_FAR_LOOK_S: Final = 2.0


class FenceEpochsOf(Protocol):
    """The fence epochs that one process knows."""

    def epochs(self, partition: str) -> FenceEpochs:
        """Return the fence epochs for an append to the partition, by kind of fence."""

    def is_ours(self, partition: str) -> bool:
        """Whether this process serves the partition's broker."""

    def lost(self) -> None:
        """Note that a fence refused what this process appended as the owner of a broker: another has it by now."""

    async def learn(self, partition: str, error: Fenced) -> None:
        """Return when this process knows of the fence that refused an append.

        Raises
        ------
        Unavailable
            `fenced`: this process does not know of the fence yet.
        """


class Partition:
    """One physical partition, of one life of a topic or of the queue's own logs."""

    __slots__ = (
        "_closed",
        "_failed",
        "_fenced",
        "_followed_until",
        "_in_upkeep",
        "_is_at_rest",
        "_is_lazy",
        "_looks_for_nothing",
        "_opening",
        "_owner",
        "_pace",
        "_upkeep_timer",
        "_waiters",
        "log",
        "name",
        "queue",
        "ref",
        "refreshed_at",
        "table_id",
        "tended_at_s",
        "topic",
    )

    def __init__(self, owner: Partitions, ref: PartitionRef, table_id: str | None = None) -> None:
        self.topic = ref.topic
        self.name = ref.name
        self.ref = ref
        self._owner = owner
        #: The id that its table gets; None for any.
        self.table_id = table_id
        #: Whether its first append makes its table; until then readers find it empty.
        self._is_lazy = ref.space is not Space.TOPICS
        self._opening = threading.Lock()
        self._failed: tuple[float, DeltaMQError] | None = None
        self._closed = False
        self.log: PartitionLog | None = None
        self.queue = CommitQueue(self, owner.lane, owner.loop, FAR if owner.is_far else HERE)
        # In the order of their coming; an empty set takes three times as much, and there may be very many partitions.
        self._waiters: dict[asyncio.Future[None], None] = {}
        self.refreshed_at = 0.0
        #: How many looks in a row have found no commit of another process.
        self._looks_for_nothing = 0
        #: The newest epoch of the broker's owner with which this process has fenced the log.
        self._fenced = 0
        self._followed_until = 0.0
        #: Whether upkeep will begin; from its beginning on, the next one may be planned.
        self._in_upkeep = False
        self._upkeep_timer: asyncio.TimerHandle | None = None
        self._pace = UpkeepPace()
        #: Whether it was unused when it last came up.
        self._is_at_rest = False
        #: When it comes up next in `Partitions.tending`; infinity for never.
        self.tended_at_s = float("inf")

    def open(self) -> PartitionLog:
        """Return the log, opened if need be; blocking. Makes the table if the topic's creation was cut short."""
        opened = self.log
        if opened is not None:
            return opened
        with self._opening:
            if self._closed:
                raise NotFound(f"{self.topic} was deleted", code="topic_not_found", field="topic")
            opened = self.log or self._open_once()
            self.log = opened
        self._owner.loop.call_soon_threadsafe(self._owner.tending.soon, self)
        return opened

    def _open_once(self) -> PartitionLog:
        if self._failed is not None and time.monotonic() < self._failed[0]:
            raise self._failed[1]
        try:
            return self._owner.warehouse.create(self.ref, table_id=self.table_id, codec=self.codec)
        except DeltaMQError as error:
            self._failed = (time.monotonic() + _OPEN_AGAIN_S, error)
            log.error("event=partition_not_opened partition=%s code=%s", self.name, error.code)
            raise

    def gauges(self) -> Iterator[PartitionGauges]:
        """Yield the gauges if the partition is open."""
        opened = self.log
        if opened is not None:
            stats = opened.stats()
            yield PartitionGauges(
                topic=self.topic,
                partition=self.name,
                end_offset=stats.max_offset,
                min_offset=stats.min_offset,
                version=stats.version,
                files=stats.files,
                bytes=stats.bytes,
            )

    @property
    def fault(self) -> str | None:
        """The code of the error that stopped the partition; None if it serves or was not opened yet."""
        if self.log is not None:
            return None if self.log.stopped is None else self.log.stopped.code
        return None if self._failed is None else self._failed[1].code

    @property
    def fencing(self) -> FenceEpochsOf | None:
        """The fence epochs of appends here; None in a process without fences."""
        return self._owner.fencing

    def codec(self) -> Codec | None:
        """Return the codec of a typed topic's partition, for the next rows; raise `Conflict` if it cannot be made."""
        return self._owner.codecs(self.ref)

    def close(self) -> None:
        """End a deleted topic's partition: refuse later calls and what waits. The warehouse closes the log."""
        self._closed = True
        self.log = None
        self._owner.tending.drop(self)
        self.wake()
        self.queue.hurry()

    def check_there(self) -> None:
        """Raise `PartitionNotFound` if the partition is deleted, as far as this process knows."""
        if self._closed:
            raise PartitionNotFound(f"{self.topic} was deleted", code="topic_not_found", field="topic")

    async def opened(self) -> PartitionLog:
        """Return the log, opened on a thread if need be."""
        opened = self.log
        return opened if opened is not None else await self._owner.run(self.open)

    async def fenced(self, epoch: int) -> PartitionLog:
        """Return the log, fenced with `epoch`, the epoch since which this process owns the broker.

        Previous owners can append no more, so the log holds all that this process must know (SPEC META-1).
        """
        opened = await self.opened()
        if self._fenced != epoch:
            await self._owner.run(partial(opened.fence, BROKER_FENCE, epoch))
            self._fenced = epoch
        return opened

    def is_fenced(self, epoch: int) -> bool:
        """Whether this process has fenced the log with `epoch`."""
        return self._fenced == epoch and self.log is not None

    async def refresh(self) -> None:
        """See the commits of other processes, and wake the readers if there are any."""
        await self.look()

    async def newest(self) -> PartitionLog:
        """Return the log with the commits of other processes; open or make it if need be."""
        await self.opened()
        await self.refresh()
        return await self.opened()

    async def look(self) -> PartitionLog | None:
        """Return the log with the commits of other processes; None before the first append, which makes it."""
        self.refreshed_at = self._owner.loop.time()
        known = self.log
        opened = known or await self._opened_if_made()
        has_news = opened is not None and (await self._owner.run(opened.refresh) or known is None)
        self._looks_for_nothing = 0 if has_news else self._looks_for_nothing + 1
        if has_news:
            self.wake()
        return opened

    async def _opened_if_made(self) -> PartitionLog | None:
        if self._is_lazy and not await self._owner.run(partial(self._owner.warehouse.exists, self.ref)):
            return None
        return await self.opened()

    # Readers that wait for a message.

    @property
    def has_waiters(self) -> bool:
        """Whether a reader waits for new messages, or follows the partition."""
        return bool(self._waiters) or self._followed_until > self._owner.loop.time()

    def is_look_due(self, every_s: float) -> bool:
        """Whether a partition with waiting readers is to be looked at for the commits of other processes now.

        In an object store, where each look is paid for, it is looked at less often while there is nothing new. A commit
        of this process has met what others committed before it, and one that is under way will.
        """
        if self.queue.is_committing:
            return False
        if self._owner.is_far:
            every_s = max(every_s, min(every_s * 2**self._looks_for_nothing, _FAR_LOOK_S))
        return self._owner.loop.time() - self.refreshed_at >= every_s

    def follow(self, until_s: float) -> None:
        """Look for the commits of other processes until `until_s`, even if no reader waits."""
        self._followed_until = until_s
        self._owner.awaited.add(self)

    def wake(self) -> None:
        """Let every waiting reader look again."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def waiter(self) -> asyncio.Future[None]:
        """Return a future that is done at the next commit. To miss none, look at the end offset after this call."""
        waiter: asyncio.Future[None] = self._owner.loop.create_future()
        self.watch(waiter)
        return waiter

    def watch(self, waiter: asyncio.Future[None]) -> None:
        """Complete the caller's future at the next commit; it may wait for several partitions."""
        self._waiters[waiter] = None
        self._owner.awaited.add(self)

    def forget(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.pop(waiter, None)

    # The owner of a queue of commits.

    def committed(self, parts: Sequence[RequestPart], took_s: float, published_s: float) -> None:
        """Wake the readers after a commit, and plan upkeep off the request path."""
        if any(part.appended is not None and not part.appended.duplicate for part in parts):
            self.refreshed_at = self._owner.loop.time()
        if self._waiters:
            self.wake()
        self._owner.metrics.committed(self.topic, parts, took_s, published_s)
        if any(part.error is not None and part.error.code in _NOT_WRITTEN for part in parts):
            self._owner.doubt_writes()
        self._owner.tending.soon(self)
        wait_s = self._pace.committed(self._owner.loop.time())
        if not self._in_upkeep:
            self._in_upkeep = True
            self._upkeep_timer = self._owner.loop.call_later(wait_s, self._begin_upkeep)
        elif not wait_s and self._upkeep_timer is not None:
            self._begin_upkeep()

    async def tend(self) -> None:
        """Do the work of an open partition without a request: see other processes' commits, run due upkeep.

        An unused partition frees its memory and rests until upkeep is due, for an hour at most, since other processes
        may remove files from its table.
        """
        opened = self.log
        if opened is None or opened.stopped is not None:
            return
        is_idle = not self.has_waiters and opened.rest()
        was_at_rest, self._is_at_rest = self._is_at_rest, False
        wait_s = opened.due_in_ms() / 1000 if is_idle and not was_at_rest else 0.0
        self._owner.tending.again(self, wait_s or self._owner.tending.every_s)
        if wait_s:
            self._is_at_rest = True
            return
        if was_at_rest or self.has_waiters or not self._owner.is_far:
            await self.look()
        if not self._in_upkeep:
            self._begin_upkeep()

    def _begin_upkeep(self) -> None:
        if self._upkeep_timer is not None:
            self._upkeep_timer.cancel()
            self._upkeep_timer = None
        self._in_upkeep = True
        self._pace.begun(self._owner.loop.time())
        self._owner.keep_up(self._maintain)

    def _maintain(self) -> None:
        self._in_upkeep = False
        opened = self.log
        try:
            if opened is not None and opened.stopped is None and not self._owner.stopping:
                opened.maintain()
        except DeltaMQError as error:
            # Upkeep is due again after the next commit; readers and writers report the same fault themselves.
            log.error("event=upkeep_failed partition=%s code=%s detail=%r", self.name, error.code, error.detail)


class Partitions:
    """The partitions that this process has touched, by topic life and name."""

    def __init__(
        self, warehouse: Warehouse, loop: asyncio.AbstractEventLoop, threads: Threads, metrics: Metrics
    ) -> None:
        self.warehouse = warehouse
        self.loop = loop
        #: Whether the service stops: then readers no longer wait, and no more upkeep begins until the next start.
        self.stopping = False
        self.lane = threads.lane
        self.keep_up = threads.keep_up
        self.metrics = metrics
        #: The fence epochs of appends; None in a process without fences.
        self.fencing: FenceEpochsOf | None = None
        #: Called when the store did not take a commit.
        self.doubt_writes: Callable[[], None] = _ignored
        #: The codecs of typed topics' partitions.
        self.codecs: Callable[[PartitionRef], Codec | None] = no_codec
        self._work = threads.work
        self._known: dict[PartitionRef, Partition] = {}
        self.is_far = warehouse.is_far
        self.tending = Tending[Partition](loop.time, apart_s=_FAR_APART_S if self.is_far else 0.0)
        #: The partitions at which readers wait or which they follow; some may have no reader any more.
        self.awaited: set[Partition] = set()

    def get(self, topic: Topic, name: str) -> Partition:
        """Return a topic's partition; its table is opened when it is first needed."""
        ref = PartitionRef(Space.TOPICS, topic.name, name, topic.generation)
        partition = self._known.get(ref)
        if partition is None:
            # Every process that makes the table derives the same id; another life of the topic has another id.
            table_id = str(uuid.uuid5(uuid.UUID(topic.id), name))
            partition = self._known[ref] = Partition(self, ref, table_id)
        return partition

    def of(self, ref: PartitionRef) -> Partition:
        """Return a partition of the queue's own: revive log, offsets, retries, dead letters (`tables.queue.refs`)."""
        assert ref.space is not Space.TOPICS, "these belong to a topic's life"
        partition = self._known.get(ref)
        if partition is None:
            partition = self._known[ref] = Partition(self, ref)
        return partition

    def find(self, ref: PartitionRef) -> Partition | None:
        """Return a partition that this process has touched, else None."""
        return self._known.get(ref)

    def begin_stop(self) -> None:
        """Let no reader wait any longer, nor messages for others that share their commit."""
        self.stopping = True
        for partition in self.awaited:
            partition.wake()
        for partition in self:
            partition.queue.hurry()

    async def finish(self) -> None:
        """Return when all queued commits have ended; no more may come."""
        await asyncio.gather(*(partition.queue.finish() for partition in self))

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a thread."""
        return await self.loop.run_in_executor(self._work, work)

    def drop(self, space: Space, topic: str, generation: int) -> None:
        """Forget the partitions of a topic's life that is over."""
        for ref in [r for r in self._known if (r.space, r.topic, r.generation) == (space, topic, generation)]:
            self._known.pop(ref).close()

    def forget(self, topic: Topic, names: Iterable[str]) -> None:
        """Forget partitions that left the route of a topic's life: segments that retention dropped."""
        for name in names:
            partition = self._known.pop(PartitionRef(Space.TOPICS, topic.name, name, topic.generation), None)
            if partition is not None:
                partition.close()

    def gauges(self, topics: Collection[str] | None = None) -> Iterator[PartitionGauges]:
        """Yield the gauges of the open partitions of these topics, or of all, as this process knows them."""
        for partition in self:
            if topics is None or partition.topic in topics:
                yield from partition.gauges()

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._known.values()))


def _ignored() -> None:
    """Do nothing."""


def no_codec(ref: PartitionRef) -> Codec | None:
    """Return that a partition's rows are not typed."""
    return None


def fence_not_known(partition: str, error: Fenced) -> Unavailable:
    """Return the error for an append that a fence refused of which this process does not know."""
    return Unavailable(f"{partition} is being taken over; ask again ({error.detail})", code="fenced")
