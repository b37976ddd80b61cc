"""A real HTTP server in a thread that keeps topics in memory and misbehaves on request.

It stands for the service in tests of the clients: it routes, numbers offsets and drops duplicates as the service does.
Each produce request takes the next `Fault` of `faults`, if there is one. Stored messages are kept with their requests,
so that a test can check what was repeated with which sequence.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from typing import Any

from deltamq.mq.routing import expand, new_route
from tests.unit.client.stub_handler import handler_of
from tests.unit.client.stub_order import StubOrder
from tests.unit.client.stub_queue import StubQueue
from tests.unit.client.stub_static import PLAIN, StubStatic
from tests.unit.client.stub_topics import BROKERS, Fault, Post, Topic


class StubService:
    """The server, a context manager."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.auto_create = True
        self.faults: deque[Fault] = deque()
        self.posts: list[Post] = []
        self.answers: dict[tuple[str, int], dict[str, Any]] = {}
        #: The highest sequence of each producer that was stored.
        self.last_seqs: dict[str, int] = {}
        self.gets: list[str] = []
        self.tokens: list[str | None] = []
        #: The tokens that are accepted; None for all. Calls without one of these get 401.
        self.valid_tokens: set[str] | None = None
        self.refused_calls: list[str] = []
        self.fetches_answered = 0
        #: Number of bytes after which each of the next answers is cut off.
        self.cuts: deque[int] = deque()
        #: Partitions whose table is damaged.
        self.damaged: set[str] = set()
        self.on_post: Callable[[Post], object] = lambda post: None
        self.refuses: Callable[[dict[str, Any]], bool] = lambda message: False
        self.ready = True
        self.warehouse = "/w"
        #: The jobs that run nowhere, as the service says it.
        self.missing_jobs: list[dict[str, Any]] = []
        self.disk: dict[str, int] | None = None
        #: What it asked of its object store, and all processes, as the service says it.
        self.store_use: dict[str, Any] | None = None
        self.hosts: list[dict[str, Any]] = []
        self.stopped: list[dict[str, Any]] = []
        self.host_id = f"host-{id(self):x}"
        #: The stub that hosts each broker, or the meta role; answers do not mention others.
        self.hosted: dict[str, StubService] = {}
        #: Whether every connection is closed before an answer, as if the service were away.
        self.away = False
        self.away_calls = 0
        self.changed = threading.Condition()
        self.queue = StubQueue(self.changed)
        self.order = StubOrder(self.changed, lambda: {name: one.route.partitions for name, one in self.topics.items()})
        self.ended = threading.Event()
        self.connections: set[socket.socket] = set()
        self._server = _Server(("127.0.0.1", 0), handler_of(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> StubService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.close_connections()

    # For tests.

    def close_connections(self) -> None:
        """Close every connection, even with an open request."""
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def create(self, name: str, partitions: int = 2, *, strict: bool = False) -> Topic:
        topic = Topic(name, new_route(name, partitions, BROKERS), strict)
        self.topics[name] = topic
        return topic

    def create_static(self, total_queues: int = 2, *, strict: bool = False) -> StubStatic:
        """Create the static topic `orders`."""
        static = StubStatic(BROKERS, total_queues, strict=strict)
        self.topics["orders"] = Topic("orders", static.route, strict, static=static)
        return static

    def beside(self, other: StubService) -> None:
        """Serve broker-a, and `other` broker-b of the same cluster; both know the same topics and groups."""
        other.topics, other.queue, other.order, other.changed = self.topics, self.queue, self.order, self.changed
        self.hosted = other.hosted = {BROKERS[0]: self, BROKERS[1]: other, "/meta": self}

    def expand(self, name: str, partitions: int) -> None:
        topic = self.topics[name]
        topic.route = expand(topic.route, name, partitions, BROKERS)

    def bodies(self, name: str, partition: str | None = None) -> list[bytes]:
        """Return the stored bodies of one partition in order, or of all partitions."""
        topic = self.topics[name]
        names = topic.route.partitions if partition is None else (partition,)
        return [row["body"] for p in names for row in topic.log(p)]

    def cluster_json(self) -> dict[str, Any]:
        """Return this host's description of the cluster, with the hosts in `hosted`."""
        brokers: list[dict[str, Any]] = []
        for name in BROKERS:
            owner = self.hosted.get(name)
            brokers.append({"broker": name, "epoch": 1, "roles": ["broker"], "partitions": 1})
            if owner is not None:
                brokers[-1] |= {"host": owner.host_id, "address": owner.url, "online": True}
        meta = self.hosted.get("/meta")
        told = {} if meta is None else {"meta": {"host": meta.host_id, "address": meta.url, "epoch": 1}}
        basis = {
            "warehouse": self.warehouse,
            "missing_jobs": self.missing_jobs,
            "disk": self.disk,
            "store": self.store_use,
            "hosts": self.hosts,
            "stopped": self.stopped,
            "version": "1",
            "routes_epoch": 1,
            "topics": 1,
        }
        return {**basis, "host": self.host_id, "brokers": brokers, **told}

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "the condition did not come true in time"

    # What the handler does.

    def store(self, post: Post, messages: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Append all messages or none, as the service does; a repeat gets its first answer. None: out of order."""
        with self.changed:
            known = self.answers.get((post.producer_id, post.seq))
            if known is not None:
                return {**known, "duplicate": True}
            if self.last_seqs.get(post.producer_id, -1) > post.seq:
                return None
            topic = self.topics[post.topic]
            placed: dict[str, list[int]] = {}
            for index, message in enumerate(messages):
                placed.setdefault(self._partition(topic, message), []).append(index)
            ranges = []
            for partition, indexes in placed.items():
                log = topic.log(partition)
                ranges.append({"partition": partition, "base_offset": len(log), "count": len(indexes)})
                if len(placed) > 1:
                    ranges[-1]["indexes"] = indexes
                if topic.static is not None:
                    rows = [messages[index] for index in indexes]
                    ranges[-1]["base_offset"] = topic.static.append(partition, rows)
                    continue
                for index in indexes:
                    log.append({**messages[index], "offset": len(log), "append_time": datetime.now(UTC)})
                self.queue.produced(post.topic, (messages[index] for index in indexes))
            answer = {"ranges": ranges, "duplicate": False, "durable": True}
            self.answers[post.producer_id, post.seq] = answer
            self.last_seqs[post.producer_id] = post.seq
            self.changed.notify_all()
            return answer

    def is_unserved(self, name: str, messages: list[dict[str, Any]]) -> bool:
        """Return whether the mapping of a message's logical queue is not available."""
        topic = self.topics[name]
        static = topic.static
        return static is not None and any(static.queue(self._partition(topic, one)) is None for one in messages)

    @staticmethod
    def _partition(topic: Topic, message: dict[str, Any]) -> str:
        if message.get("partition") is not None:
            return str(message["partition"])
        key = message.get("key")
        return topic.route.partitions[0 if key is None else topic.route.partition_of(key)]

    def describe(self, topic: Topic) -> dict[str, Any]:
        partitions = []
        route = topic.route if topic.static is None else topic.static.world.topic.route
        for index, name in enumerate(route.partitions):
            owned = [[low, high] for low, high, owner in route.owners if owner == index]
            log = topic.log(name) if topic.static is None else topic.static.rows.get(name, [])
            partitions.append(
                {
                    "partition": name,
                    "broker": name.rpartition("@")[2],
                    "logical_partitions": owned,
                    "min_offset": topic.min_offsets.get(name, 0),
                    "max_offset": len(log),
                    "messages": len(log),
                    "bytes": 0,
                    "files": 0,
                    "last_append_time": None,
                    "location": f"memory/{name}",
                    "version": 0,
                }
            )
            if name in self.damaged:
                unknown = ("min_offset", "max_offset", "messages", "bytes", "files", "version")
                partitions[-1] |= {"state": "corrupt", **dict.fromkeys(unknown)}
        return {
            "topic": topic.name,
            "id": "t-1",
            "order_strategy": "strict" if topic.strict else "best_tried",
            "retention_ms": 1000,
            "message_type": "normal",
            "flush": None,
            "created_time": "2026-01-01T00:00:00Z",
            "routes_epoch": topic.route.epoch,
            "logical_partitions": 1024,
            "partitions": partitions,
            **(PLAIN if topic.static is None else topic.static.describe()),
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: clients may go away."""
