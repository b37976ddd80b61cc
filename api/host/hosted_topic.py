"""The topics as the service sees them: the metadata log's state, and for each topic's life what runs for it.

Looking a topic up never blocks. A name that is not known is looked for once in the metadata log, since another
process may have made it a moment ago, before it is refused or made.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from api.host.hosted_meta import HostedMeta
from api.host.producers import ProducerGate
from api.log import Partition, Partitions
from mq.errors import Corrupt, DeltaMQError, NotFound, Unavailable
from mq.meta import (
    AnyEvent,
    Meta,
    MetaState,
    MovedKeys,
    Topic,
    TopicPut,
    TopicRequest,
    TopicSettings,
    brokers_for,
    decide_delete_topic,
    decide_put_topic,
    moves_of,
)
from mq.names import check_topic
from mq.routing import Route
from tables.delta import PartitionNotFound
from tables.log import PartitionLog
from tables.paths import Space
from tables.queue import Placement
from tables.store import FileMissing

__all__ = ["GONE", "HostedTopic", "Topics"]

log = logging.getLogger("deltamq.api")

T = TypeVar("T")

#: What is met where a partition's files are not there any more (see `Topics.explained`).
GONE: Final = (Corrupt, FileMissing, PartitionNotFound)
#: About the time of a few commits.
_DRAW_KEPT_S: Final = 0.01


class HostedTopic:
    """One life of a topic: its newest metadata, its partitions and its producers under way."""

    def __init__(self, topic: Topic, partitions: Partitions) -> None:
        self.topic = topic
        self.gate = ProducerGate()
        self._partitions = partitions
        self._named: dict[str, Partition] = {}
        self._logs: dict[str, PartitionLog] = {}
        self._drawn = 0
        self._drawn_until_s = 0.0
        #: With what it was made of.
        self._placement: tuple[Topic, MovedKeys, int, Placement] | None = None
        #: The sealed ends that our view of the logs has reached.
        self._reached: Mapping[str, int] = {}

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def route(self) -> Route:
        return self.topic.route

    @property
    def settings(self) -> TopicSettings:
        return self.topic.settings

    def draw(self, now_s: float) -> int:
        """Where messages without a key go now (SPEC ROUTE-5).

        A random place, kept for a few milliseconds: small requests that arrive together then share a commit
        instead of making one in each partition.
        """
        if now_s >= self._drawn_until_s:
            self._drawn = random.getrandbits(30)
            self._drawn_until_s = now_s + _DRAW_KEPT_S
        return self._drawn

    def placement(self, meta: Meta) -> Placement:
        """Where messages go by `meta`; by what was known last when the topic has ended there."""
        present = meta.topics.topics.get(self.topic.name)
        if present is not None and present.id == self.topic.id:
            self.topic = present
        moved, epoch = meta.moved_keys(self.topic.id), meta.brokers.epoch
        made = self._placement
        if made is None or made[0] is not self.topic or made[1] is not moved or made[2] != epoch:
            made = self._placement = self.topic, moved, epoch, Placement.of(self.topic, moved, meta.brokers)
        return made[3]

    async def see(self, ends: Mapping[str, int]) -> None:
        """Look for what other processes appended before these ends: it may be copies of a request of ours."""
        if ends is self._reached:
            return
        for name, end_offset in ends.items():
            log = self._logs.get(name)
            if log is not None and log.end_offset < end_offset:
                await self.partition(name).look()
        self._reached = ends

    async def run(self, work: Callable[[], T]) -> T:
        """Blocking work on a thread."""
        return await self._partitions.run(work)

    def partition(self, name: str) -> Partition:
        """The partition of this life of the topic; the caller knows that the route has it."""
        found = self._named.get(name)
        if found is None:
            found = self._named[name] = self._partitions.get(self.topic, name)
        return found

    @property
    def partitions(self) -> list[Partition]:
        """All partitions, in route order."""
        return [self.partition(name) for name in self.route.partitions]

    async def logs(self) -> Mapping[str, PartitionLog]:
        """The open logs of all partitions, by name; one that is damaged is left out, so that the others serve."""
        if len(self._logs) != len(self.route.partitions):
            found = zip(self.route.partitions, await self._open_all(), strict=True)
            self._logs = {name: opened for name, opened in found if opened is not None}
        return self._logs

    async def _open_all(self) -> list[PartitionLog | None]:
        """Open, and if need be make, the tables of all partitions, some at a time; None for a damaged one."""

        async def opened(partition: Partition) -> PartitionLog | None:
            try:
                return await partition.opened()
            except Corrupt:
                return None

        return await asyncio.gather(*map(opened, self.partitions))


class Topics:
    """All topics of the warehouse."""

    def __init__(
        self,
        meta: HostedMeta,
        partitions: Partitions,
        *,
        brokers: tuple[str, ...],
        auto_create: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` is what a new topic's time of creation is read from."""
        self._meta = meta
        meta.follow(self._forget_deleted)
        self._partitions = partitions
        self._brokers = brokers
        self._auto_create = auto_create
        self._now_ms = now_ms
        self._hosted: dict[str, HostedTopic] = {}

    @property
    def state(self) -> MetaState:
        return self._meta.now.topics

    def find(self, name: str) -> HostedTopic | None:
        """The topic as far as this process knows."""
        topic = self.state.topics.get(name)
        return None if topic is None else self._host(topic)

    def placement(self, hosted: HostedTopic) -> Placement:
        """Where messages of the topic go now, as far as this process knows."""
        return hosted.placement(self._meta.now)

    def _host(self, topic: Topic) -> HostedTopic:
        hosted = self._hosted.get(topic.id)
        if hosted is None:
            hosted = self._hosted[topic.id] = HostedTopic(topic, self._partitions)
        elif hosted.topic is not topic:
            hosted.topic = topic
        return hosted

    async def require(self, name: str) -> HostedTopic:
        """The topic, or `NotFound` when no process has made it."""
        found = self.find(check_topic(name))
        if found is None:
            await self.refresh()
            found = self._host(self.state.topic(name))
        return found

    async def for_produce(self, name: str, check: Callable[[Route], None]) -> HostedTopic:
        """The topic; made with the default route when it is unknown and the settings allow it (SPEC ROUTE-2).

        `check` raises what the request would be refused for by that route: then the topic is not made.
        """
        found = self.find(name)
        if found is None and self._auto_create:
            found, _ = await self.put(name, TopicRequest(), check)
        return found or await self.require(name)

    async def put(
        self, name: str, request: TopicRequest, check: Callable[[Route], None] | None = None
    ) -> tuple[HostedTopic, bool]:
        """Create or change a topic and make its tables; True if it was created.

        `check` sees the route of a topic that is about to be created, and may raise.
        """
        new_id = str(uuid.uuid4())
        now_ms = self._now_ms()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            events = decide_put_topic(meta.topics, name, request, self._available(meta, name), new_id, now_ms)
            for event in events:
                if check is not None and isinstance(event, TopicPut) and event.topic.id == new_id:
                    check(event.topic.route)
            # First: who reads only some of the events must not know the new route without what waits.
            return [*moves_of(meta.topics, events), *events]

        topic = (await self._meta.submit_any(decide)).topics.topic(name)
        hosted = self._host(topic)
        await hosted.logs()
        created = topic.id == new_id
        log.info("event=topic_put topic=%r created=%s partitions=%d", name, created, len(topic.route.partitions))
        return hosted, created

    def _available(self, meta: Meta, name: str) -> Sequence[str]:
        """The brokers for new partitions."""
        return brokers_for(name, meta.brokers.available, self._brokers)

    async def delete(self, name: str) -> Topic:
        """End a topic: first its metadata, so nobody is sent there any more, then its data. Returns what it was."""
        topic = (await self.require(name)).topic
        await self._meta.submit(lambda state: decide_delete_topic(state, name))
        log.info("event=topic_deleted topic=%r", name)
        await self._partitions.run(partial(self._drop, {(topic.name, topic.generation)}))
        return topic

    async def explained(self, hosted: HostedTopic, error: DeltaMQError) -> DeltaMQError:
        """What an error of `GONE` means: the topic was deleted, by another process a moment ago, or it is damaged."""
        name = hosted.name
        await self.refresh()
        present = self.state.topics.get(name)
        if present is None:
            return NotFound(f"topic {name} was deleted", code="topic_not_found", field="topic")
        if present.id != hosted.topic.id:
            return Unavailable(f"topic {name} was deleted and made again meanwhile; ask again", code="topic_changed")
        # The store's own words have places of this machine.
        return error if isinstance(error, Corrupt) else Corrupt(f"{name}: files of a partition are missing")

    async def sweep(self) -> None:
        """Remove the data of topics whose deletion was cut short: their metadata is gone, their folders are not."""
        warehouse = self._partitions.warehouse
        # Folders first: a topic's metadata is there before its folders are.
        stored = {
            (ref.topic, ref.generation) for ref in await self._partitions.run(partial(warehouse.refs, Space.TOPICS))
        }
        await self.refresh()
        alive = {(topic.name, topic.generation) for topic in self.state.topics.values()}
        ended = {(name, life) for name, life in stored - alive if name in self.state.ended}
        await self._partitions.run(partial(self._drop, ended))

    def _drop(self, lives: Iterable[tuple[str, int]]) -> None:
        for name, generation in lives:
            self._partitions.warehouse.drop_topic(Space.TOPICS, name, generation)

    async def refresh(self) -> None:
        """See what other processes did."""
        await self._meta.refresh()

    def _forget_deleted(self, before: Meta, after: Meta) -> None:
        if after.topics is before.topics:
            return
        alive = {topic.id for topic in after.topics.topics.values()}
        for topic_id in [i for i in self._hosted if i not in alive]:
            topic = self._hosted.pop(topic_id).topic
            self._partitions.drop(Space.TOPICS, topic.name, topic.generation)
