"""The topics as the service sees them: the metadata log's state, and the objects that run for each topic's life.

Looking a topic up never blocks. Before an unknown name is refused or created, the metadata log is read once, since
another process may have created the topic a moment ago. Access begins and ends by this process's clock (ROUTE-9).
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from deltamq.api.host.access_in_force import AccessInForce, wake_readers
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.producers import ProducerGate
from deltamq.api.host.tables import Life, Tables
from deltamq.api.host.typed_topics import WantedSchema, with_schema
from deltamq.api.log.partition import Partition, Partitions
from deltamq.mq.errors import Conflict, Corrupt, DeltaMQError, NotFound, Unavailable
from deltamq.mq.meta.access import AccessState
from deltamq.mq.meta.access_changes import brokers_for_new, check_routes
from deltamq.mq.meta.features import KAFKA_PARTITIONER, decide_use
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.moved_keys import MovedKeys, moves_of
from deltamq.mq.meta.topic_settings import TopicRequest, TopicSettings
from deltamq.mq.meta.topics import MetaState, Topic, TopicPut, decide_delete_topic, decide_put_topic
from deltamq.mq.names import CONSUMER_OFFSETS, CONSUMER_OFFSETS_ID, broker_of, check_topic
from deltamq.mq.routing import Route, equal_ranges
from deltamq.mq.schemas.registry import RegistryState
from deltamq.mq.static.global_queues import shown_queue
from deltamq.mq.static.logical_queue import LogicalQueue, ShownQueue, TopicQueues
from deltamq.mq.static.mappings import TopicMappings
from deltamq.mq.static.segments import UNDECIDED
from deltamq.tables.delta.snapshot import PartitionNotFound
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.stored_requests import REMEMBERED_MS
from deltamq.tables.paths import Space
from deltamq.tables.queue.placement import Placement
from deltamq.tables.queue.refs import OFFSETS, quarantine_life, system_ref
from deltamq.tables.store.store import FileMissing

log = logging.getLogger("deltamq.api")

T = TypeVar("T")

#: The errors met when a partition's files are gone (see `Topics.explained`).
GONE: Final = (Corrupt, FileMissing, PartitionNotFound)
#: Seconds for which a draw is kept: about the time of a few commits.
_DRAW_KEPT_S: Final = 0.01
#: Milliseconds between two looks for the segments that may remember requests.
_RECENT_MS: Final = 60_000


class HostedTopic:
    """One life of a topic: its newest metadata, its partitions and its producers' requests under way."""

    def __init__(
        self, topic: Topic, partitions: Partitions, tables: Tables, named: Mapping[str, Partition] | None = None
    ) -> None:
        """`named` are partitions that are not in folders of this life of the topic."""
        self.topic = topic
        self._tables = tables
        self.gate = ProducerGate()
        self._partitions = partitions
        self._named: dict[str, Partition] = {**(named or {})}
        self._logs: dict[str, PartitionLog] = {}
        #: The route to which `_logs` belongs.
        self._logs_of: Route | None = None
        #: A static topic's queues, until when they count, how many partitions may remember requests, and their logs.
        self._recent: tuple[TopicQueues, int, int, dict[str, PartitionLog]] | None = None
        self._drawn = 0
        self._drawn_until_s = 0.0
        #: The placement, behind the values that it was made from.
        self._placement: tuple[Topic, MovedKeys, TopicMappings, int, AccessState, Placement] | None = None
        #: The sealed end offsets up to which the logs were read.
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
        """Return the draw that places messages without a key now (SPEC ROUTE-5).

        It is random and kept for a few milliseconds, so that small requests that arrive together share a commit instead
        of making one in each partition.
        """
        if now_s >= self._drawn_until_s:
            self._drawn = random.getrandbits(30)
            self._drawn_until_s = now_s + _DRAW_KEPT_S
        return self._drawn

    def placement(self, meta: Meta, access: AccessState | None = None) -> Placement:
        """Return where messages go by `meta`; if the topic has ended there, by its last known metadata.

        `access` is the access in force; None if the caller does not need it.
        """
        present = meta.topics.topics.get(self.topic.name)
        if present is not None and present.id == self.topic.id:
            self.topic = present
        moved, mappings = meta.moved_keys(self.topic.id), meta.mappings(self.topic.id)
        epoch, known = meta.brokers.epoch, self._placement
        if (
            known is None
            or known[0] is not self.topic
            or known[1] is not moved
            or known[2] is not mappings
            or known[3] != epoch
            or (access is not None and known[4] is not access)
        ):
            access = meta.access if access is None else access
            placement = Placement.of(self.topic, meta, access)
            known = self._placement = self.topic, moved, mappings, epoch, access, placement
        return known[5]

    def without_stopped(self, places: Placement, *, known: bool) -> Placement:
        """Return the placement for messages that may go anywhere: without partitions that have stopped (SPEC RELY-10).

        With `known`, partitions whose log was never read stay: they may hold the request that this one repeats.
        """
        if not self._partitions.warehouse.stopped:
            return places
        named = [(number, self._named.get(name)) for number, name in enumerate(places.partitions)]
        stopped = [number for number, at in named if at is not None and at.fault and (at.log is not None or not known)]
        return places.avoiding(frozenset(stopped))

    def queues(self, meta: Meta) -> TopicQueues | None:
        """Return the logical queues of a static topic by `meta`; None for a plain topic."""
        return None if self.topic.static is None else self.placement(meta).queues

    async def gone(self) -> dict[PartitionLog, Corrupt]:
        """Return the open logs that are no longer stored, each with the error that says so."""
        opened = [at.log for at in self._named.values() if at.log is not None]
        return await self.run(lambda: {log: error for log in opened if (error := log.gone()) is not None})

    async def see(self, ends: Mapping[str, int]) -> None:
        """Read what other processes appended before these ends; it may include copies of this process's requests."""
        if ends is self._reached:
            return
        for name, end_offset in ends.items():
            partition = self._named.get(name)
            if partition is not None and partition.log is not None and partition.log.end_offset < end_offset:
                await partition.look()
        self._reached = ends

    async def look(self, names: Iterable[str]) -> None:
        """Read what other processes appended to these partitions of the route."""
        looks = [self.partition(name).look() for name in names]
        await asyncio.gather(*looks, return_exceptions=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a thread."""
        return await self._partitions.run(work)

    def partition(self, name: str) -> Partition:
        """Return a partition of this life of the topic; the route must have it."""
        partition = self._named.get(name)
        if partition is None:
            partition = self._named[name] = self._partitions.get(self.topic, name)
        return partition

    @property
    def partitions(self) -> list[Partition]:
        """All partitions, in route order."""
        return [self.partition(name) for name in self.route.partitions]

    def forget(self, names: Collection[str]) -> None:
        """Forget partitions that left the route."""
        self._partitions.forget(self.topic, names)
        for name in names:
            self._named.pop(name, None)

    async def logs(self, *, new: bool = False) -> Mapping[str, PartitionLog]:
        """Return the open logs of all partitions, by name; a damaged one is left out, so that the others serve.

        `new` says that this life of the topic has just begun (see `Tables.open`).
        """
        route = self.route
        if self._logs_of is not route or len(self._logs) != len(route.partitions):
            self._logs = await self.open(route.partitions, new=new)
            self._logs_of = route
        return self._logs

    async def remembering(self, queues: TopicQueues | None, now_ms: int) -> Mapping[str, PartitionLog]:
        """Return the open logs of the partitions that may remember a request; a damaged one is left out.

        In a plain topic these are all partitions. In a static topic, segments that were sealed before the duplicate
        window are not opened, however many there are (SPEC STATIC-21).
        """
        if queues is None:
            return await self.logs()
        made = self._recent
        if made is None or made[0] is not queues or now_ms >= made[1] or len(made[3]) != made[2]:
            names = [name for name in self.route.partitions if _may_remember(queues, name, now_ms)]
            made = self._recent = queues, now_ms + _RECENT_MS, len(names), await self.open(names)
        return made[3]

    async def open(self, names: Iterable[str], *, new: bool = False) -> dict[str, PartitionLog]:
        """Open the tables of partitions as `Tables.open` does."""
        return await self._tables.open(map(self.partition, names), new=new)


def _may_remember(queues: TopicQueues, partition: str, now_ms: int) -> bool:
    """Whether a partition may hold a request that a client still repeats."""
    place = queues.of_partition(partition)
    if place is None or not place.segment.is_sealed or place.segment.end_ms <= 0:
        return True
    return now_ms - place.segment.end_ms <= REMEMBERED_MS


class Topics:
    """All topics of the warehouse."""

    def __init__(
        self,
        meta: HostedMeta,
        partitions: Partitions,
        tables: Tables,
        *,
        cluster: str,
        brokers: tuple[str, ...],
        auto_create: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` is the clock for a new topic's time of creation."""
        self._meta = meta
        meta.follow(self._forget_deleted)
        meta.follow(partial(wake_readers, partitions))
        self._partitions = partitions
        self._tables = tables
        self._brokers = brokers
        self._auto_create = auto_create
        self._now_ms = now_ms
        self._hosted: dict[str, HostedTopic] = {}
        self._in_force = AccessInForce(now_ms)
        self._cluster = cluster
        self._offsets: HostedTopic | None = None

    @property
    def offsets(self) -> HostedTopic:
        """The offsets logs as a topic, which Kafka's clients read (SPEC KAFKA-30): each broker's log is a partition."""
        refs = [system_ref(OFFSETS, self._cluster, broker) for broker in self._meta.now.brokers.numbered]
        if self._offsets is None or len(self._offsets.route.partitions) != len(refs):
            named = {ref.name: self._partitions.of(ref) for ref in refs}
            topic = Topic(
                name=CONSUMER_OFFSETS,
                id=CONSUMER_OFFSETS_ID,
                # The first has all keys, as one must; nobody writes by this route.
                route=Route(1, tuple(named), equal_ranges(1), retired=tuple(range(1, len(named)))),
                settings=TopicSettings(),
                created_ms=0,
                kafka={"cleanup.policy": "compact"},
            )
            self._offsets = HostedTopic(topic, self._partitions, self._tables, named)
        return self._offsets

    async def of_group(self, name: str) -> HostedTopic:
        """Return a topic in which groups commit offsets: that of `offsets`, too; raises as `require` does."""
        return self.offsets if name == CONSUMER_OFFSETS else await self.require(name)

    @property
    def schemas(self) -> RegistryState:
        """The schema registry, as far as this process knows."""
        return self._meta.now.schemas

    @property
    def access(self) -> AccessState:
        """What may not be read or written to now, as far as this process knows (SPEC ROUTE-9)."""
        stored = self._meta.now.access
        return self._in_force.of(stored) if stored else stored

    def check_readable(self, hosted: HostedTopic, partition: str, name: str | None = None) -> None:
        """Return if the topic's partition may be read now, else raise `not_readable`; clients know it by `name`."""
        access = self.access
        if access:
            access.check_readable(hosted.topic.id, partition, name)

    @property
    def state(self) -> MetaState:
        return self._meta.now.topics

    def find(self, name: str) -> HostedTopic | None:
        """Return the topic, as far as this process knows."""
        topic = self.state.topics.get(name)
        return None if topic is None else self._host(topic)

    def placement(self, hosted: HostedTopic) -> Placement:
        """Return where messages of the topic go now, as far as this process knows.

        Raises
        ------
        Unavailable
            `metadata_stopped`: the metadata cannot be read any more.
        """
        self._meta.check()
        return hosted.placement(self._meta.now, self.access)

    def queues(self, hosted: HostedTopic) -> TopicQueues | None:
        """Return the logical queues of a static topic, as far as this process knows; None for a plain topic."""
        return hosted.queues(self._meta.now)

    def queues_of(self, topic: Topic, meta: Meta | None = None) -> TopicQueues | None:
        """Return the logical queues of this life of a static topic, by `meta` or now; None for a plain topic."""
        if topic.static is None:
            return None
        hosted = self._hosted.get(topic.id) or HostedTopic(topic, self._partitions, self._tables)
        return hosted.queues(meta or self._meta.now)

    def require_queue(self, hosted: HostedTopic, name: str, field: str) -> LogicalQueue:
        """Return the logical queue of a static topic that a client names; raises as `TopicQueues.require` does."""
        queues = self.queues(hosted)
        assert queues is not None, "the topic is static"
        return queues.require(name, hosted.name, field)

    def queue_name(self, topic_id: str, partition: str) -> str | None:
        """Return the name of the logical queue of a physical partition; None if it has none, or the topic is over."""
        hosted = self._hosted.get(topic_id)
        queues = None if hosted is None else self.queues(hosted)
        place = None if queues is None else queues.of_partition(partition)
        return None if place is None else place.queue.name

    def broker_of(self, topic: Topic, partition: str, meta: Meta | None = None) -> str:
        """Return the broker whose process grants locks of a partition as clients see it: a queue's leader's broker.

        `meta` is the metadata to look in; None for the newest.

        Raises
        ------
        Unavailable
            `queue_unserved`: the mapping of the logical queue is incomplete.
        """
        queues = self.queues_of(topic, meta)
        return broker_of(partition) if queues is None else queues.require(partition, topic.name).leader.broker

    def shown_queue_of(self, topic: str, partition: str) -> ShownQueue | None:
        """Return the place of a partition in a static or global topic's queues, as far as this process knows."""
        present = self.state.topics.get(topic)
        queues = None if present is None else self.queues_of(present)
        return None if present is None or queues is None else shown_queue(queues, present.world, partition)

    def shown_at(self, topic: str, partition: str, offset: int) -> tuple[str, int]:
        """Return partition and offset of a stored message as clients know it: in a static topic its logical queue's.

        One whose logical offset is not decided yet is known by the physical one.
        """
        queue = self.shown_queue_of(topic, partition)
        if queue is None or (shown := queue.shown(offset)) == UNDECIDED:
            return partition, offset
        return queue.name, shown

    def _host(self, topic: Topic) -> HostedTopic:
        hosted = self._hosted.get(topic.id)
        if hosted is None:
            hosted = self._hosted[topic.id] = HostedTopic(topic, self._partitions, self._tables)
        elif hosted.topic is not topic:
            hosted.topic = topic
        return hosted

    async def require(self, name: str) -> HostedTopic:
        """Return the topic; raise `NotFound` if no process has created it."""
        hosted = self.find(check_topic(name))
        if hosted is None:
            await self.refresh()
            hosted = self._host(self.state.topic(name))
        return hosted

    async def for_produce(
        self,
        name: str,
        check: Callable[[Route], None],
        permit: Callable[[bool], None],
        partitions: int | None = None,
    ) -> HostedTopic:
        """Return the topic; create it if it is unknown and the settings allow, with the default route (SPEC ROUTE-2) or
        so many `partitions`.

        `check` raises if the request would be refused with that route; then the topic is not created. Nor is it if
        `permit` refuses the caller (see `put`).
        """
        hosted = self.find(name)
        if hosted is None and self._auto_create:
            hosted, _ = await self.put(name, TopicRequest(partitions=partitions), check, only_new=True, permit=permit)
        return hosted or await self.require(name)

    async def put(
        self,
        name: str,
        request: TopicRequest,
        check: Callable[[Route], None] | None = None,
        *,
        only_new: bool = False,
        permit: Callable[[bool], None],
        schema: Callable[[MetaState], WantedSchema] | None = None,
    ) -> tuple[HostedTopic, bool]:
        """Create or change a topic and make its tables; return it, and True if it was created.

        `schema` says what schema the topic gets, by the topics that are changed.

        `check` sees the route of a topic that is about to be created, and may raise. With `only_new` a topic that
        another process has created meanwhile stays as it is; it may be static. `permit` is called with whether the
        topic exists, and raises if the caller may not change it, or make it.
        """
        new_id = str(uuid.uuid4())
        now_ms = self._now_ms()

        def decide(meta: Meta) -> Sequence[AnyEvent]:
            if only_new and name in meta.topics.topics:
                return ()
            permit(name in meta.topics.topics)
            if request.routes is not None:
                check_routes(meta, name, request.routes, self._now_ms())
            asked, before = with_schema(meta, name, request, schema)
            if asked.partitioner == "kafka":
                before += decide_use(meta.features, meta.brokers.features, KAFKA_PARTITIONER)
            events = decide_put_topic(meta.topics, name, asked, self.available(meta, name), new_id, now_ms)
            for event in events:
                if check is not None and isinstance(event, TopicPut) and event.topic.id == new_id:
                    check(event.topic.route)
            # The moves come first: a reader of only some of the events must not see the new route without them.
            return [*before, *moves_of(meta.topics, events), *events]

        topic = (await self._meta.submit_any(decide)).topics.topic(name)
        hosted = self._host(topic)
        created = topic.id == new_id
        await hosted.logs(new=created)
        log.info("event=topic_put topic=%r created=%s partitions=%d", name, created, len(topic.route.partitions))
        return hosted, created

    def available(self, meta: Meta, name: str) -> Sequence[str]:
        """Return the brokers for new partitions of the topic `name`, in the order in which they get them."""
        return brokers_for_new(meta, name, self._brokers, self._now_ms())

    async def delete(self, name: str) -> Topic:
        """Delete a topic: first its metadata, so that no more requests go there, then its data. Return the topic."""
        topic = (await self.require(name)).topic
        await self._meta.submit(lambda state: decide_delete_topic(state, name))
        log.info("event=topic_deleted topic=%r", name)
        await self._tables.drop(_lives(topic.name, topic.generation))
        return topic

    def check_there(self, hosted: HostedTopic) -> None:
        """Raise `PartitionNotFound` if this life of the topic has ended, as far as this process knows."""
        present = self.state.topics.get(hosted.name)
        if present is None or present.id != hosted.topic.id:
            raise PartitionNotFound(f"topic {hosted.name} was deleted", code="topic_not_found", field="topic")

    async def require_life(self, name: str, topic_id: str) -> HostedTopic:
        """Return the topic in the life with this id (SPEC MODEL-6).

        Raises
        ------
        NotFound
            `topic_not_found`: there is none.
        Conflict
            `topic_made_again`: it was deleted and made again, so earlier offsets mean nothing.
        """
        hosted = await self.require(name)
        if _id_of(hosted) != topic_id:
            await self.refresh()
            hosted = await self.require(name)
        if _id_of(hosted) != topic_id:
            raise Conflict(
                f"topic {name} was deleted and made again: offsets from before do not count; begin again",
                code="topic_made_again",
                field="topic_id",
                extra={"topic_id": _id_of(hosted)},
            )
        return hosted

    async def explained(self, hosted: HostedTopic, error: DeltaMQError) -> DeltaMQError:
        """Explain an error of `GONE`: the topic was deleted, maybe by another process, or it is damaged.

        Partitions whose logs are gone are stopped.
        """
        name = hosted.name
        # Looked for before the metadata, which shows whether their topic was deleted, and the disk is there.
        gone = {} if isinstance(error, Corrupt) else await hosted.gone()
        await self.refresh()
        present = self.state.topics.get(name)
        if present is None:
            return NotFound(f"topic {name} was deleted", code="topic_not_found", field="topic")
        if present.id != hosted.topic.id:
            return Unavailable(f"topic {name} was deleted and made again meanwhile; ask again", code="topic_changed")
        if isinstance(error, Corrupt):
            return error
        # Retention drops segments of static topics from the route before their folders.
        lost = {at: damage for at, damage in gone.items() if at.ref.name in present.route.index_of}
        for at, damage in lost.items():
            at.stop(damage)
        # Do not pass on the store's message: it names local paths.
        named = "; ".join(damage.detail for damage in lost.values())
        return Corrupt(named or f"{name}: files of a partition are missing")

    async def sweep(self) -> None:
        """Remove the folders of topics whose deletion was cut short after their metadata was gone."""
        warehouse = self._partitions.warehouse
        # List folders before the metadata: a topic's metadata exists before its folders do.
        stored = {
            (ref.topic, ref.generation) for ref in await self._partitions.run(partial(warehouse.refs, Space.TOPICS))
        }
        await self.refresh()
        alive = {(topic.name, topic.generation) for topic in self.state.topics.values()}
        ended = [(name, life) for name, life in stored - alive if name in self.state.ended]
        await self._tables.drop(table for name, life in ended for table in _lives(name, life))

    async def refresh(self) -> None:
        """Read the changes of other processes."""
        await self._meta.refresh()

    def _forget_deleted(self, before: Meta, after: Meta) -> None:
        if after.topics is before.topics:
            return
        alive = {topic.id for topic in after.topics.topics.values()}
        for topic_id in [i for i in self._hosted if i not in alive]:
            topic = self._hosted.pop(topic_id).topic
            for life in _lives(topic.name, topic.generation):
                self._partitions.drop(*life)
        for hosted in self._hosted.values():
            was, now = before.topics.topics.get(hosted.name), after.topics.topics[hosted.name]
            if was is not None and was.id == now.id and was.route is not now.route:
                hosted.forget(was.route.index_of.keys() - now.route.index_of.keys())


def _lives(name: str, generation: int) -> tuple[Life, ...]:
    """Return what goes with a topic: the marks of its quarantine, and its own tables."""
    return quarantine_life(name, generation), (Space.TOPICS, name, generation)


def _id_of(hosted: HostedTopic) -> str:
    """Return the id for clients, which is the same in all clusters of a global topic."""
    topic = hosted.topic
    return topic.id if topic.world is None else topic.world.id
