"""Fences: the epochs that this process knows, the seals of moves, and why a fence refused an append.

The process that serves a broker appends to the queue's own logs with the epoch since which it serves it. If such an
append is refused, another process serves the broker (SPEC META-2):

    append --Fenced--> read the metadata --known now--> append again
                            '--not yet--> 503: its cause is not in the metadata yet, or this process is cut off

Sealing stops a partition from receiving messages of keys or of a queue that it gave up (SPEC ROUTE-6, STATIC-8, 9):

    expansion or remapping: `KeysMoved` in the metadata        the messages still go to the old partition
    fence "route" in the old partition                         appends that know no seal are refused there
    `MoveSealed` with the end offset behind the fence          the messages go to the new partition

(An `available` remapping differs in the first line: its messages go to the new partition at once.)

Each step is idempotent. After a kill in between another process finishes the work: the owner of the old partition's
broker, which looks for it every second, or one whose produce request is delayed by it. Any process may do
it, since the fence is in the log, and the first event counts.

A remapping moves up to a thousand queues at once. So the fences of up to 64 partitions are put up together, and the
seals of one topic are stored with one append.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import HostedTopic, Topics
from deltamq.api.log.partition import Partitions, fence_not_known
from deltamq.mq.backoff import Backoff
from deltamq.mq.errors import DeltaMQError, Fenced
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.moved_keys import MoveEvent, decide_seal
from deltamq.mq.names import broker_of
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.fences import BROKER_FENCE, ROUTE_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.queue.placement import FenceEpochs, fence_epochs_of

if TYPE_CHECKING:
    from deltamq.api.host.hosted_meta import HostedMeta


class Fencing:
    """The fence epochs that one process knows, for all partitions; used on the event loop."""

    def __init__(self, meta: HostedMeta, held_since: Callable[[str], int | None], suspect: Callable[[], None]) -> None:
        """`held_since` returns the epoch since which this process has a broker; None if it has not.

        `suspect` lets it look whether it still has its brokers.
        """
        self._meta = meta
        self._held_since = held_since
        self._suspect = suspect
        self._epochs: dict[str, FenceEpochs] = {}
        self._known_epoch = -1

    def epochs(self, partition: str) -> FenceEpochs:
        """Return the fence epochs for an append to the partition, by kind of fence."""
        broker = broker_of(partition)
        held = self._held_since(broker)
        if held is not None:
            return {BROKER_FENCE: held}
        brokers = self._meta.now.brokers
        if brokers.epoch != self._known_epoch:
            self._epochs.clear()
            self._known_epoch = brokers.epoch
        epochs = self._epochs.get(broker)
        if epochs is None:
            epochs = self._epochs[broker] = fence_epochs_of(brokers, broker)
        return epochs

    def is_ours(self, partition: str) -> bool:
        """Whether this process has the partition's broker."""
        return self._held_since(broker_of(partition)) is not None

    def lost(self) -> None:
        """Note that a fence refused what this process appended as the owner of a broker: another has it by now."""
        self._suspect()

    async def learn(self, partition: str, error: Fenced) -> None:
        """Return when this process knows of the fence that refused an append, if any process may make that append.

        Raises
        ------
        Unavailable
            `fenced`: this process does not know of the fence yet.
        """
        await self._meta.refresh()
        if not passes(self.epochs(partition), error):
            raise fence_not_known(partition, error)


def passes(fence_epochs: FenceEpochs, error: Fenced) -> bool:
    """Return whether an append with these fence epochs passes the fence that raised `error`."""
    epoch = error.extra.get("epoch")
    return isinstance(epoch, int) and fence_epochs.get(str(error.extra.get("fence")), 0) >= epoch


log = logging.getLogger("deltamq.api")

#: Retry interval of seals that failed.
_LOOK_S: Final = 1.0
#: How many partitions are sealed at the same time.
_TOGETHER_MAX: Final = 64


class _Seal(NamedTuple):
    source: str
    epoch: int
    end_offset: int
    #: When the fence was begun, on the clock of `time.monotonic`.
    began_s: float


class _Batch(msgspec.Struct):
    """The seals of one topic that are stored together, once no fence of the batch is under way."""

    stored: asyncio.Future[None]
    seals: list[_Seal] = msgspec.field(default_factory=list)
    under_way: int = 0


class Sealer:
    """Seals the partitions whose keys or queues moved; used on the event loop."""

    def __init__(
        self, meta: HostedMeta, topics: Topics, hosts: Callable[[str], bool], now_ms: Callable[[], int]
    ) -> None:
        """`hosts` returns whether this process has a broker; `now_ms` is the clock for the time of a seal."""
        self._meta = meta
        self._topics = topics
        self._hosts = hosts
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._sealing: dict[tuple[str, str], asyncio.Task[float]] = {}
        self._permits = asyncio.Semaphore(_TOGETHER_MAX)
        #: The batch that seals of each topic join, by topic id.
        self._batches: dict[str, _Batch] = {}
        self._storing: set[asyncio.Task[None]] = set()
        self._looks = True
        self._timer = self._loop.create_task(self._watch())
        meta.follow(self._follow)

    async def seal(self, topic: HostedTopic, sources: Collection[str] | None = None) -> float:
        """Seal the waiting moves of a topic, whichever process has its brokers; failed ones are tried again later.

        With `sources`, only these partitions. Returns the longest time in seconds from the beginning of a fence to its
        stored seal: messages of one partition waited that long.
        """
        waiting = self._meta.now.moved_keys(topic.topic.id).waiting
        if sources is not None:
            waiting = waiting.intersection(sources)
        tasks = [self._start(topic, source) for source in sorted(waiting)]
        if not tasks:
            return 0.0
        # Not `gather`: a client that goes away must not cancel tasks for which other requests wait.
        await asyncio.wait(tasks)
        return max(0.0 if task.cancelled() or task.exception() else task.result() for task in tasks)

    def stop_looking(self) -> None:
        """Look for waiting moves no more; `seal` goes on."""
        self._looks = False
        self._timer.cancel()

    async def stop(self) -> None:
        """Stop looking, and wait for the seals under way."""
        self.stop_looking()
        await asyncio.gather(self._timer, *self._sealing.values(), return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(_LOOK_S)

    def _follow(self, _: Meta, __: Meta) -> None:
        self._look()

    def _look(self) -> None:
        """Begin to seal the waiting partitions of this process's brokers."""
        if not self._looks:
            return
        meta = self._meta.now
        waiting = {topic_id: moved.waiting for topic_id, moved in meta.moved.items() if moved.waiting}
        for topic in meta.topics.topics.values() if waiting else ():
            mine = {source for source in waiting.get(topic.id, ()) if self._hosts(broker_of(source))}
            hosted = self._topics.find(topic.name) if mine else None
            if hosted is not None:
                for source in sorted(mine):
                    self._start(hosted, source)

    def _start(self, topic: HostedTopic, source: str) -> asyncio.Task[float]:
        key = topic.topic.id, source
        task = self._sealing.get(key)
        if task is None:
            task = self._sealing[key] = self._loop.create_task(self._seal(topic, source))
            task.add_done_callback(lambda _: self._sealing.pop(key))
        return task

    async def _seal(self, topic: HostedTopic, source: str) -> float:
        """Seal the moves from a partition, oldest first; return the longest time of one, in seconds."""
        longest_s = 0.0
        try:
            async with self._permits:
                while waiting := self._meta.now.moved_keys(topic.topic.id).unsealed(source):
                    seal = await self._seal_one(topic, source, waiting[0])
                    longest_s = max(longest_s, time.monotonic() - seal.began_s)
                    log.info("event=keys_sealed partition=%s epoch=%d end_offset=%d", *seal[:3])
        except DeltaMQError as error:
            log.warning("event=seal_failed partition=%s code=%s detail=%r", source, error.code, error.detail)
        return longest_s

    async def _seal_one(self, topic: HostedTopic, source: str, epoch: int) -> _Seal:
        batch = self._batch(topic.topic.id)
        batch.under_way += 1
        try:
            opened = await topic.partition(source).opened()
            seal = await topic.run(partial(_fenced, opened, source, epoch))
            failpoint("seal.after_fence")
            batch.seals.append(seal)
        finally:
            batch.under_way -= 1
            if not batch.under_way:
                self._close(topic.topic.id)
        # Shielded, because the other seals of the batch wait for it, too.
        await asyncio.shield(batch.stored)
        return seal

    def _batch(self, topic_id: str) -> _Batch:
        batch = self._batches.get(topic_id)
        if batch is None:
            batch = self._batches[topic_id] = _Batch(self._loop.create_future())
        return batch

    def _close(self, topic_id: str) -> None:
        """Store the seals of a batch; later seals join the next batch."""
        batch = self._batches.pop(topic_id)
        if batch.seals:
            task = self._loop.create_task(self._store(topic_id, batch))
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def _store(self, topic_id: str, batch: _Batch) -> None:
        try:
            await self._meta.submit_any(partial(_decide, topic_id, tuple(batch.seals), self._now_ms()))
            failpoint("seal.after_event")
        except Exception as error:  # raised in each waiting task
            batch.stored.set_exception(error)
        else:
            batch.stored.set_result(None)


def _fenced(log: PartitionLog, source: str, epoch: int) -> _Seal:
    began_s = time.monotonic()
    return _Seal(source, epoch, log.fence(ROUTE_FENCE, epoch), began_s)


def _decide(topic_id: str, seals: Sequence[_Seal], now_ms: int, meta: Meta) -> Sequence[MoveEvent]:
    moved = meta.moved_keys(topic_id)
    return [
        event
        for seal in seals
        for event in decide_seal(moved, topic_id, seal.source, seal.epoch, seal.end_offset, now_ms)
    ]


#: Seconds to wait for the cause of a fence in the metadata.
FENCED_S: Final = 15.0
AGAIN_S: Final = Backoff(0.005, 0.25)


class FenceCauses:
    """The causes of the fences that refuse this process's appends; used on the event loop.

    A process puts the fence up before it stores the cause in the metadata, so the cause follows within milliseconds; or
    within a lease, by another process, if the one that fenced died in between.
    """

    def __init__(self, topics: Topics, meta: HostedMeta, partitions: Partitions, sealer: Sealer) -> None:
        self._topics = topics
        self._meta = meta
        self._partitions = partitions
        self._sealer = sealer
        self._loop = partitions.loop

    async def known(self, topic: HostedTopic, left: Callable[[], tuple[str, Fenced] | None], until: float) -> None:
        """Read the metadata until it has the cause of each fence that refused an append to partitions of the topic.

        `left` returns a partition and its refusal whose cause is not known yet, None if there is none; `until` is on
        the loop's clock.

        Raises
        ------
        Unavailable
            `fenced`: the metadata does not have the cause in time.
        """
        failures = 0
        while True:
            await self._meta.refresh()
            refused = left()
            if refused is None:
                return
            if self.is_over(until):
                raise fence_not_known(*refused)
            await self.sealed(topic, until)
            failures += 1
            await asyncio.sleep(AGAIN_S.after(failures))

    async def known_at(self, topic: HostedTopic, partition: str, refused: Fenced, until: float) -> None:
        """Do what `known` does for one fence, which refused an append to this partition."""

        def left() -> tuple[str, Fenced] | None:
            epochs = self._topics.placement(topic).fence_epochs[partition]
            return None if passes(epochs, refused) else (partition, refused)

        await self.known(topic, left, until)

    async def sealed(self, topic: HostedTopic, until: float) -> None:
        """Seal the topic's waiting moves; return when that is done or it is `until`, and the work goes on."""
        sealing = asyncio.ensure_future(self._sealer.seal(topic))
        await asyncio.wait({sealing}, timeout=max(0.0, until - self._loop.time()))

    def is_over(self, until: float) -> bool:
        """Whether to wait no longer."""
        return self._loop.time() >= until or self._partitions.stopping
