"""The tests of plain topics against static ones: clients cannot tell them apart (SPEC STATIC-2).

test --PUT orders, 2 partitions--> AsStatic --PUT orders, static, 2 queues--> service
test --orders#1@broker-a---------> AsStatic --2@__logical_queue_broker__----> service, and back
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pytest

from deltamq.api.log.partition import Partition
from deltamq.mq.routing import new_route
from deltamq.mq.static.queue_names import queue_name
from tests.api.running import ARROW, Api, Reply

__all__ = ["AsStatic", "is_static"]

_TOPIC: Final = re.compile(r"/v1/(?:groups/[^/?]+/)?topics/([^/?]+)")
# Only whole numbers are tried: in a body of digits each of them could begin one.
_QUEUE: Final = re.compile(queue_name(7).replace("7", r"(?<!\d)(\d+)", 1).encode())
#: The brokers of the service; its topics get a partition at each unless they ask for more.
_BROKERS: Final = ("broker-a", "broker-b")


def is_static(request: pytest.FixtureRequest) -> bool:
    """Return whether a fixture is made for a test that is played against static topics (mark `static_too`)."""
    return getattr(request, "param", "plain") == "static"


@dataclass
class AsStatic(Api):
    """Calls a service; every topic is static, and its queues have the names that a plain topic's partitions had."""

    #: The names of partitions by topic, in the order of the queues.
    names: dict[str, list[str]] = field(default_factory=dict)
    _topic: str = ""

    def call(self, method: str, path: str, body: Any = None, kind: str | None = None, **headers: str) -> Reply:
        found = _TOPIC.match(path)
        if found is not None:
            self._topic = unquote(found[1])
            is_put = method == "PUT" and path == f"/v1/topics/{found[1]}"
            if is_put and isinstance(body, dict):
                body = self._static(body)
            elif method == "POST" and path.startswith(f"/v1/topics/{found[1]}/messages"):
                self._made()
        names = self.names.get(self._topic, [])
        body = self._arrow(body, names) if kind == ARROW and isinstance(body, bytes) else body
        for number, name in sorted(enumerate(names), key=lambda one: -len(one[1])):
            path = path.replace(quote(name, safe=""), quote(queue_name(number), safe=""))
            path = path.replace(name, queue_name(number)).replace(quote(name), quote(queue_name(number)))
            if isinstance(body, (dict, list)):
                body = json.loads(json.dumps(body).replace(f'"{name}"', f'"{queue_name(number)}"'))
            elif isinstance(body, str):
                body = body.replace(f'"{name}"', f'"{queue_name(number)}"')
            headers = {key: value.replace(name, queue_name(number)) for key, value in headers.items()}
        reply = super().call(method, path, body, kind, **headers)
        if "arrow" in reply.headers.get("content-type", ""):
            return reply
        return Reply(reply.status, reply.headers, _QUEUE.sub(lambda one: self._name(int(one[1])), reply.body))

    def partitions(self, topic: str) -> dict[str, Any]:
        """Return the topic's logical queues by the names of a plain topic's partitions."""
        reply = self.call("GET", f"/v1/topics/{quote(topic, safe='')}")
        return {one["partition"]: one for one in reply.json["logical_queues"]} if reply.status == 200 else {}

    def service_name(self, topic: str, partition: str) -> str:
        names = self.names.get(topic, [])
        return queue_name(names.index(partition)) if partition in names else partition

    def hosted(self, topic: str, partition: str) -> Partition:
        """Return the leader of a logical queue."""
        found = self.service.topics.find(topic)
        queues = None if found is None else self.service.topics.queues(found)
        assert queues is not None
        leader = queues.require(queue_name(self.names[topic].index(partition)), topic).leader
        return super().hosted(topic, leader.partition)

    def _arrow(self, body: bytes, names: list[str]) -> bytes:
        """Return an Arrow stream whose column `partition` names logical queues."""
        try:
            table = pa.ipc.open_stream(body).read_all()
        except pa.ArrowInvalid:
            return body
        at = table.schema.get_field_index("partition")
        if at < 0 or not pa.types.is_string(table.schema.field(at).type):
            return body
        known = {name: queue_name(number) for number, name in enumerate(names)}
        column = pa.array([known.get(name, name) for name in table.column(at).to_pylist()], pa.string())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.set_column(at, table.schema.field(at), column))
        return bytes(sink.getvalue())

    def _name(self, number: int) -> bytes:
        names = self.names.get(self._topic, [])
        return (names[number] if number < len(names) else queue_name(number)).encode()

    def _static(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return the request for a static topic that stands for one of a plain topic."""
        known = self.names.get(self._topic, ())
        count = wanted.get("partitions") or len(known) or len(_BROKERS)
        if isinstance(count, int) and 0 < count <= 1_000:
            self.names[self._topic] = list(new_route(self._topic, count, _BROKERS).partitions)
        rest = {name: value for name, value in wanted.items() if name != "partitions"}
        return {**rest, "static": True, "total_queues": count}

    def _made(self) -> None:
        """Create a topic that its first message would create."""
        topic = self._topic
        if topic not in self.names and topic not in self.service.topics.state.topics:
            self.put_topic(topic)
