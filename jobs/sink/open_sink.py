"""The warehouse in a process of the sink: opened once for each process, with its metadata followed.

Spark reuses its Python workers for later tasks and batches, so the warehouse stays open: a batch then reads only
new events of `sys/meta`.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.warehouses import with_little_memory
from deltamq.mq.backoff import Backoff
from deltamq.mq.errors import Fenced, NotFound, Unavailable
from deltamq.mq.limits import MIB
from deltamq.mq.meta.access_changes import brokers_for_new
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.moved_keys import moves_of
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic, decide_put_topic
from deltamq.mq.names import broker_of, check_client_topic
from deltamq.tables.config import Config
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.meta_fences import seal_moves
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.placement import FenceEpochs, Placement, fence_epochs_of
from deltamq.tables.queue.refs import DELAY, system_ref
from deltamq.tables.queue.topic_codecs import TopicCodecs
from deltamq.tables.settings import Flush, LogSettings

#: Seconds for which an append that a fence refuses is retried. The event of a fence follows within milliseconds, or
#: within a lease if the fence's writer died in between.
_FENCED_S: Final = 15.0
_AGAIN_S: Final = Backoff(0.005, 0.25)
_CACHE_BYTES_MAX: Final = 32 * MIB


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a sink needs, in the form in which tasks get them."""

    warehouse: str
    cluster: str
    brokers: tuple[str, ...]
    auto_create: bool
    log: LogSettings

    @classmethod
    def of(cls, conf: Config, warehouse: str) -> SinkSettings:
        """Return the settings for a warehouse; its memory limits, which are meant for a service, are lowered."""
        service = conf.service
        return cls(
            warehouse=warehouse,
            cluster=conf.warehouse.cluster,
            brokers=service.brokers,
            auto_create=service.auto_create_topics,
            log=with_little_memory(conf.log, _CACHE_BYTES_MAX),
        )


class OpenSink:
    """A warehouse that is open for a sink: its topics, placements and partitions. Safe for threads."""

    def __init__(
        self, settings: SinkSettings, warehouse: Warehouse | None = None, *, fenced_s: float = _FENCED_S
    ) -> None:
        """Open the warehouse; an append that a fence refuses is retried for `fenced_s`."""
        self.settings = settings
        self.fenced_s = fenced_s
        self.warehouse = warehouse or Warehouse.open(settings.warehouse, settings=settings.log, create=False)
        self.meta = MetaLog(self.warehouse)
        self.codecs = TopicCodecs(lambda: self.meta.meta)

    def now_ms(self) -> int:
        """Return the wall clock's time, for the stamps and delays of messages."""
        return self.warehouse.clock.wall_us() // 1000

    def refresh(self) -> Meta:
        """Return the newest metadata."""
        self.meta.refresh()
        return self.meta.meta

    def check_topic(self, name: str) -> None:
        """Raise unless messages may be sent to the topic; nothing is created.

        Raises
        ------
        Refused
            `system_name`, `invalid_topic_name`.
        NotFound
            The topic does not exist, and the settings do not create it.
        """
        check_client_topic(name)
        if name not in self.meta.state.topics and name not in self.refresh().topics.topics:
            self._check_may_create(name)

    def topic(self, name: str) -> Topic:
        """Return the topic as last known; create it with the default route if the settings say so (SPEC ROUTE-2)."""
        topic = self.meta.state.topics.get(name) or self.refresh().topics.topics.get(name)
        if topic is not None:
            return topic
        check_client_topic(name)
        self._check_may_create(name)
        decide = partial(self._new_topic, name, str(uuid.uuid4()), self.now_ms())
        return self.meta.submit_any(decide).topics.topic(name)

    def _check_may_create(self, name: str) -> None:
        if not self.settings.auto_create:
            detail = f"there is no topic {name}: create it (deltamq topic create), or set service.auto_create_topics"
            raise NotFound(detail, code="topic_not_found", field="topic")

    def _new_topic(self, name: str, new_id: str, now_ms: int, meta: Meta) -> Sequence[AnyEvent]:
        brokers = brokers_for_new(meta, name, self.settings.brokers, now_ms)
        events = decide_put_topic(meta.topics, name, TopicRequest(), brokers, new_id, now_ms)
        return [*moves_of(meta.topics, events), *events]

    def routed(self, name: str) -> tuple[Topic, Placement]:
        """Return a topic and its placement, both from one state of the metadata."""
        while True:
            self.topic(name)
            meta = self.meta.meta
            topic = meta.topics.topics.get(name)
            if topic is not None:  # None: deleted a moment ago
                return topic, Placement.of(topic, meta, meta.access.at(self.now_ms()))

    def seal(self, topic: Topic) -> None:
        """Seal the moves of a topic that are not sealed yet, so that its old partitions get no more messages."""
        seal_moves(self.meta, topic, partial(self.log, topic), self.now_ms)

    def log(self, topic: Topic, partition: str) -> PartitionLog:
        """Return a topic's partition; a missing table is created."""
        ref = PartitionRef(Space.TOPICS, topic.name, partition, topic.generation)
        # the id is the same in every process that creates the table, and differs for each life of the topic
        return self.warehouse.create(ref, table_id=str(uuid.uuid5(uuid.UUID(topic.id), partition)))

    def delay_log(self, partition: str) -> PartitionLog:
        """Return the delay partition of the broker of a partition."""
        return self.warehouse.create(system_ref(DELAY, self.settings.cluster, broker_of(partition)))

    def delay_fence_epochs(self, partition: str) -> FenceEpochs:
        """Return the fence epochs that an append to the delay partition knows."""
        return fence_epochs_of(self.meta.meta.brokers, broker_of(partition))

    def flush_of(self, topic: Topic, option: Flush | None) -> Flush:
        """Return whether appends wait for the disk: by the writer's option, else the topic's or warehouse's setting."""
        setting = topic.settings.flush
        return option or (Flush(setting) if setting is not None else self.settings.log.flush)

    def learn(self, topic: Topic, refused: Fenced, until_s: float) -> None:
        """Seal the topic's moves, and return once the metadata contains the fence that refused an append.

        Raises
        ------
        Unavailable
            `fenced`: the metadata does not contain the fence by `until_s`.
        """
        fence, epoch = str(refused.extra.get("fence")), refused.extra.get("epoch")
        for failures in itertools.count(1):
            meta = self.refresh()
            self.seal(topic)
            _, placement = self.routed(topic.name)
            brokers = {broker_of(partition) for partition in placement.partitions}
            fence_epochs = [
                *placement.fence_epochs.values(),
                *(fence_epochs_of(meta.brokers, broker) for broker in brokers),
            ]
            if isinstance(epoch, int) and any(epochs.get(fence, 0) >= epoch for epochs in fence_epochs):
                return
            if time.monotonic() >= until_s:
                detail = f"topic {topic.name} is being taken over ({refused.detail}); the query may be started again"
                raise Unavailable(detail, code="fenced")
            time.sleep(_AGAIN_S.after(failures))


_lock: Final = threading.Lock()
_opened: Final[dict[SinkSettings, OpenSink]] = {}


def open_sink(settings: SinkSettings) -> OpenSink:
    """Return the open sink of these settings; the first call in a process opens it, or raises `NotFound`."""
    with _lock:
        opened = _opened.get(settings)
        if opened is None:
            storage(settings.warehouse)  # raises for a misspelt warehouse, which must not be created
            opened = _opened[settings] = OpenSink(settings)
        return opened
