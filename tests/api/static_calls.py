"""A static topic in a running service: what it is asked over REST, and what its tables hold (SPEC STATIC)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.static_topics import queues_of
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from tests.api.running import Api, Reply
from tests.faulty_store import FaultyStore, failing

__all__ = ["StaticTopic", "name_of", "stored_in"]

Json = dict[str, Any]
#: Logical offset and body of each message, by logical queue.
Stored = dict[int, list[tuple[int, str]]]


def name_of(queue: int) -> str:
    """The name under which clients know a logical queue."""
    return f"{queue}@__logical_queue_broker__"


def stored_in(uri: str, name: str) -> Stored:
    """Every message of a static topic in a warehouse; the offset of an undecided one is -1."""
    warehouse = Warehouse.open(uri)
    meta = MetaLog(warehouse).meta
    topic = meta.topics.topic(name)
    found: Stored = {}
    for number, queue in queues_of(meta, topic).items():
        rows = found[number] = []
        for segment in queue.segments:
            ref = PartitionRef(Space.TOPICS, name, segment.partition, topic.generation)
            for page in pages(warehouse.open_partition(ref), 0) if warehouse.exists(ref) else ():
                delta = segment.delta if segment.is_decided else None
                columns = [page.rows.column(column).to_pylist() for column in ("offset", "body")]
                rows += [
                    (-1 if delta is None else at + delta, body.decode()) for at, body in zip(*columns, strict=True)
                ]
    return found


class StaticTopic(msgspec.Struct, frozen=True):
    """One static topic as one service sees it."""

    api: Api
    name: str

    def at(self, api: Api) -> StaticTopic:
        """The topic as another service sees it."""
        return StaticTopic(api, self.name)

    def ask(self, method: str, path: str = "", body: Any = None) -> Reply:
        return self.api.call(method, f"/v1/topics/{quote(self.name, safe='')}{path}", body)

    def put(self, total_queues: int, **wanted: object) -> Reply:
        return self.ask("PUT", "", {"static": True, "total_queues": total_queues, **wanted})

    def remap(self, *brokers: str, **wanted: object) -> Reply:
        return self.ask("POST", "/remap", {"brokers": list(brokers), **wanted})

    def remapped(self, *brokers: str, **wanted: object) -> list[Json]:
        """The queues that a remapping moved."""
        reply = self.remap(*brokers, **wanted)
        assert reply.status == 200, reply
        moved: list[Json] = reply.json["moved"]
        return moved

    @property
    def view(self) -> Json:
        found: Json = self.ask("GET").json
        return found

    @property
    def queues(self) -> list[Json]:
        """The logical queues as the service shows them."""
        found: list[Json] = self.view["logical_queues"]
        return found

    def send(self, *messages: dict[str, object] | str, **request: Any) -> Json:
        """The answer to a produce request that succeeds."""
        reply = self.api.send(self.name, *messages, **request)
        assert reply.status == 200, reply
        found: Json = reply.json
        return found

    def send_to(self, queue: int, *bodies: str, **request: Any) -> list[int]:
        """The logical offsets of messages that name their queue; -1 for undecided ones."""
        messages: list[dict[str, object]] = [{"body": body, "partition": name_of(queue)} for body in bodies]
        (placed,) = self.send(*messages, **request)["ranges"]
        assert placed["partition"] == name_of(queue)
        first = placed["base_offset"]
        return [first + at if first >= 0 else first for at in range(placed["count"])]

    # What is stored.

    @property
    def meta(self) -> Meta:
        return self.api.service.meta.now

    @property
    def decided(self) -> tuple[object, ...]:
        """What the metadata says of topics: renewals of leases, which other threads add, are not in it."""
        return self.meta.topics, self.meta.static, self.meta.moved

    def change(self, decide: Callable[[Meta], Sequence[AnyEvent]]) -> None:
        """Change the metadata as another process would."""
        changing = self.api.service.meta.submit_any(decide)
        asyncio.run_coroutine_threadsafe(changing, self.api.service.loop).result(30)

    @property
    def id(self) -> str:
        return self.meta.topics.topic(self.name).id

    def chains(self) -> dict[int, LogicalQueue]:
        """The logical queues as this process knows them."""
        hosted = self.api.service.topics.find(self.name)
        assert hosted is not None
        queues = self.api.service.topics.queues(hosted)
        assert queues is not None
        return dict(queues.served)

    def stored(self) -> Stored:
        """The logical offset and the body of every message, by queue, as other processes find them in the tables."""
        return stored_in(self.api.service.warehouse.uri, self.name)

    def bodies(self) -> list[str]:
        """All stored bodies, sorted."""
        return sorted(body for rows in self.stored().values() for _, body in rows)

    @contextlib.contextmanager
    def without_seals(self, *partitions: str) -> Iterator[None]:
        """Inside, every thread that would commit in these partitions waits: no fence can be put up there.

        Appends, which the event loop commits through this store, go on: the loop must not wait.
        """
        gate = threading.Event()

        def wait(_: str) -> None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                assert gate.wait(60)

        try:
            with self._at_commits(partitions, wait):
                yield
        finally:
            gate.set()

    def failing(self, partition: str, error: Exception) -> contextlib.AbstractContextManager[None]:
        """Inside, commits in this partition fail."""
        return self._at_commits([partition], failing(error))

    @contextlib.contextmanager
    def _at_commits(self, partitions: Sequence[str], fault: Callable[[str], None]) -> Iterator[None]:
        store = self.api.service.warehouse.store
        assert isinstance(store, FaultyStore)
        topic = self.meta.topics.topic(self.name)
        refs = [PartitionRef(Space.TOPICS, self.name, name, topic.generation) for name in partitions]
        folders = [f"{ref.folder}/_delta_log" for ref in refs]

        def meet(key: str) -> None:
            if any(folder in key for folder in folders):
                fault(key)

        store.before["put_if_absent"] = meet
        try:
            yield
        finally:
            del store.before["put_if_absent"]
