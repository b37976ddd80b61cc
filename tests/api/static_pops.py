"""Static topics in running services: create, remap, seal, and messages that go where the placement says."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from deltamq.api.host.hosted_topic import HostedTopic
from deltamq.api.service.service import Service
from deltamq.mq.errors import Fenced
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.static_topics import RemapMode, StaticRequest, decide_put_static, decide_remap
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.log.batch import Batch
from deltamq.tables.schema import INTERNAL_SCHEMA
from tests.api.running import Api

__all__ = ["Static", "queue_name"]

T = TypeVar("T")
_ROWS = pa.schema([INTERNAL_SCHEMA.field(name) for name in ("key", "tag", "body")])


@dataclass
class Static:
    """A static topic, changed and written through one service."""

    api: Api
    name: str = "orders"

    @property
    def service(self) -> Service:
        return self.api.service

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.service.loop).result(30)

    def submit(self, decide: Callable[[Meta], Sequence[AnyEvent]]) -> None:
        self.run(self.service.meta.submit_any(decide))

    def put(self, total: int, brokers: tuple[str, ...] | None = None, *, strict: bool = False) -> Static:
        """Create the topic, or add queues."""
        settings = TopicRequest(order_strategy="strict" if strict else None)
        request = StaticRequest(total_queues=total, brokers=brokers, settings=settings)
        new_id = str(uuid.uuid4())
        now_ms = self.service.now_ms()
        self.submit(lambda meta: decide_put_static(meta, self.name, request, meta.brokers.available, new_id, now_ms))
        self.run(self.hosted.logs())
        return self

    def remap(
        self,
        *brokers: str,
        mode: RemapMode = "strict",
        queues: Collection[int] | None = None,
        seal: bool = True,
    ) -> None:
        """Move queues; without `seal`, the remapping stays as it is between its two steps."""
        now_ms = self.service.now_ms()
        if not seal:
            self.hold_seals()
        self.submit(lambda meta: decide_remap(meta, self.name, brokers, mode, now_ms, queues))
        if seal:
            self.seal()

    def hold_seals(self) -> None:
        """Keep the service from sealing by itself, until `seal` is called."""
        self.service.loop.call_soon_threadsafe(self.service.sealer.stop_looking)

    def seal(self) -> None:
        """Seal what waits."""
        self.run(_sealed(self.service, self.hosted))
        assert not self.service.meta.now.moved_keys(self.topic.id).waiting

    @property
    def hosted(self) -> HostedTopic:
        found = self.service.topics.find(self.name)
        assert found is not None
        return found

    @property
    def topic(self) -> Topic:
        return self.service.meta.now.topics.topic(self.name)

    def queue(self, index: int = 0) -> LogicalQueue:
        """A logical queue, as this service knows it."""
        queues = self.service.topics.queues(self.hosted)
        assert queues is not None
        return queues.served[index]

    def send(self, index: int, *bodies: str, key: str | None = None, tag: str | None = None) -> None:
        """Append messages to a logical queue, by the placement of now."""
        while True:
            placement = self.service.topics.placement(self.hosted)
            partition = placement.partitions[placement.names[queue_name(index)]]
            rows = [{"key": key, "tag": tag, "body": body.encode()} for body in bodies]
            log = self.hosted.partition(partition).open()
            try:
                batch = Batch(pa.RecordBatch.from_pylist(rows, schema=_ROWS))
                log.append([batch], fence_epochs=placement.fence_epochs[partition])
            except Fenced:
                self.run(_refreshed(self.service))
                continue
            self.run(_looked(self.hosted, partition))
            return


async def _sealed(service: Service, topic: HostedTopic) -> None:
    await service.sealer.seal(topic)


async def _refreshed(service: Service) -> None:
    await service.meta.refresh()


async def _looked(topic: HostedTopic, partition: str) -> None:
    """Wake the readers, since the append did not go through the service."""
    await topic.partition(partition).look()
    topic.partition(partition).wake()
