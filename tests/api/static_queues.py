"""A static topic of running services, remapped and sealed step by step, for tests of what clients read and commit."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from deltamq.mq.meta.static_topics import RemapMode, StaticRequest, decide_put_static, decide_remap
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.static.logical_queue import LogicalQueue, TopicQueues
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.log.log import PartitionLog
from tests.api.running import Api
from tests.rows import batch

__all__ = ["Q0", "Q1", "StaticTopic", "hold_seals", "on_loop"]

T = TypeVar("T")

Q0, Q1 = queue_name(0), queue_name(1)


def on_loop(api: Api, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work on a service's own loop."""
    return asyncio.run_coroutine_threadsafe(work, api.service.loop).result(30)


def hold_seals(*apis: Api) -> None:
    """Let the services seal nothing by themselves, so that a remapping stops where a test needs it."""
    for api in apis:
        api.service.loop.call_soon_threadsafe(api.service.sealer.stop_looking)


@dataclass
class StaticTopic:
    """One static topic; calls go to `api` unless they name another service."""

    api: Api
    name: str

    def put(self, total_queues: int, *brokers: str, strict: bool = False) -> StaticTopic:
        """Create the topic with queues on these brokers."""
        settings = TopicRequest(order_strategy="strict" if strict else None)
        request = StaticRequest(total_queues=total_queues, brokers=brokers, settings=settings)
        new_id = str(uuid.uuid4())
        meta = self.api.service.meta
        on_loop(
            self.api,
            meta.submit_any(lambda now: decide_put_static(now, self.name, request, now.brokers.available, new_id, 1)),
        )
        return self

    def begin_remap(self, *brokers: str, mode: RemapMode = "strict", queues: Collection[int] | None = None) -> None:
        """Begin a remapping; unless seals are held, the services finish it by themselves."""
        meta = self.api.service.meta
        on_loop(self.api, meta.submit_any(lambda now: decide_remap(now, self.name, brokers, mode, 2, queues)))

    def seal(self) -> None:
        """Finish a remapping."""

        async def seal() -> None:
            found = self.api.service.topics.find(self.name)
            assert found is not None
            await self.api.service.sealer.seal(found)

        on_loop(self.api, seal())
        assert not self.api.service.meta.now.moved_keys(self.id).waiting, "it is sealed"

    def remap(self, *brokers: str, mode: RemapMode = "strict", queues: Collection[int] | None = None) -> None:
        """Remap, and return when it is finished."""
        self.begin_remap(*brokers, mode=mode, queues=queues)
        self.seal()

    @property
    def id(self) -> str:
        return self.api.service.meta.now.topics.topic(self.name).id

    def queues(self, api: Api | None = None) -> TopicQueues:
        service = (api or self.api).service
        found = service.topics.find(self.name)
        queues = None if found is None else service.topics.queues(found)
        assert queues is not None
        return queues

    def queue(self, index: int = 0) -> LogicalQueue:
        return self.queues().served[index]

    def log(self, partition: str) -> PartitionLog:
        """Return the log of a physical partition."""
        found = self.api.service.topics.find(self.name)
        assert found is not None
        return on_loop(self.api, found.partition(partition).opened())

    def send(self, queue: int, *bodies: str) -> None:
        """Append messages where those of the queue go now."""
        service = self.api.service
        found = service.topics.find(self.name)
        assert found is not None
        placement = service.topics.placement(found)
        partition = placement.partitions[placement.names[queue_name(queue)]]
        log = self.log(partition)
        for body in bodies:  # a commit for each, so that retention may take any of them
            log.append([batch(body.encode())], fence_epochs=placement.fence_epochs[partition])

        async def wake() -> None:
            found.partition(partition).wake()

        on_loop(self.api, wake())

    def fetch(self, offset: int, queue: int = 0, query: str = "", api: Api | None = None) -> dict[str, Any]:
        reply = (api or self.api).fetch(self.name, queue_name(queue), f"?offset={offset}{query}")
        assert reply.status == 200, reply
        answer: dict[str, Any] = reply.json
        return answer

    def read_all(self, queue: int = 0, *, at_once: int = 1_000, api: Api | None = None) -> list[tuple[int, str]]:
        """Return offset and body of every message, read from the beginning until there is no new message."""
        found: list[tuple[int, str]] = []
        offset = self.fetch(0, queue)["min_offset"]
        while (answer := self.fetch(offset, queue, f"&max_messages={at_once}", api))["status"] != "no_new_message":
            assert answer["status"] == "found" and answer["next_offset"] > offset, answer
            found += [(message["offset"], message["body"]) for message in answer["messages"]]
            offset = answer["next_offset"]
        return found
