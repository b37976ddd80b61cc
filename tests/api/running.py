"""A real service on a free port, in a thread of the test process, and a plain HTTP client for it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import uvicorn.server
from msgspec.structs import replace

from deltamq.api.app import App, create_app
from deltamq.api.log.partition import Partition
from deltamq.api.ports import REAL, Ports
from deltamq.api.serve import Server, bind
from deltamq.api.service.service import Service
from deltamq.api.tls import server_context
from deltamq.tables.config import Config
from deltamq.tables.config_sections import ServiceSettings, WarehouseSettings

__all__ = ["ARROW", "JSON", "NDJSON", "PROBLEM", "Api", "Reply", "arrow_stream", "config_for", "running", "until"]

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
PROBLEM = "application/problem+json"


class Reply(msgspec.Struct, frozen=True):
    """One answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def table(self) -> pa.Table:
        with pa.ipc.open_stream(self.body) as reader:
            return reader.read_all()


@dataclass
class Api:
    """Calls one service; every call is a connection of its own."""

    port: int
    service: Service = field(repr=False)
    #: A file with the authority that has signed the service's certificate; None if it speaks no TLS.
    ca: str | None = field(default=None, kw_only=True)

    def call(self, method: str, path: str, body: Any = None, kind: str | None = None, **headers: str) -> Reply:
        """Send one request. A `dict` or `list` is sent as JSON; header names have `_` for `-`."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, (dict, list)):
            body, kind = json.dumps(body).encode(), kind or JSON
        if kind is not None:
            sent["Content-Type"] = kind
        connection = _connection(self.port, self.ca)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def put_topic(self, topic: str, **wanted: object) -> Any:
        reply = self.call("PUT", f"/v1/topics/{quote(topic, safe='')}", wanted)
        assert reply.status in (200, 201), reply
        return reply.json

    def send(self, topic: str, *messages: dict[str, object] | str, query: str = "", **request: object) -> Reply:
        """Produce as JSON; a plain text becomes a message with that body."""
        listed = [{"body": m} if isinstance(m, str) else m for m in messages]
        return self.call("POST", f"/v1/topics/{quote(topic, safe='')}/messages{query}", {"messages": listed, **request})

    def produce(self, topic: str, body: bytes | str, kind: str, query: str = "", **headers: str) -> Reply:
        return self.call("POST", f"/v1/topics/{quote(topic, safe='')}/messages{query}", body, kind, **headers)

    def fetch(self, topic: str, partition: str, query: str = "", accept: str = JSON) -> Reply:
        return self.call("GET", self.messages_path(topic, partition) + query, Accept=accept)

    def service_name(self, topic: str, partition: str) -> str:
        """Return the name by which the service knows a partition; for what does not go through `call`."""
        return partition

    def messages_path(self, topic: str, partition: str) -> str:
        """Return where the messages of a partition are fetched."""
        name = self.service_name(topic, partition)
        return f"/v1/topics/{quote(topic, safe='')}/partitions/{quote(name, safe='')}/messages"

    def hosted(self, topic: str, partition: str) -> Partition:
        """Return the service's own partition."""
        found = self.service.topics.find(topic)
        assert found is not None
        return found.partition(partition)

    def partitions(self, topic: str) -> dict[str, Any]:
        """Return the topic's partitions by name."""
        reply = self.call("GET", f"/v1/topics/{quote(topic, safe='')}")
        return {p["partition"]: p for p in reply.json["partitions"]} if reply.status == 200 else {}

    def stored(self, topic: str) -> dict[str, int]:
        """Return the end offsets by partition; empty if there is no such topic."""
        return {name: p["max_offset"] for name, p in self.partitions(topic).items()}

    def bodies(self, topic: str) -> dict[str, list[str]]:
        """Return all text bodies by partition."""
        return {name: self.bodies_of(topic, name) for name in self.partitions(topic)}

    def bodies_of(self, topic: str, partition: str) -> list[str]:
        """Return all text bodies of one partition."""
        answer = self.fetch(topic, partition, "?max_messages=100000&max_bytes=67108864").json
        return [m["body"] for m in answer["messages"]]


def _connection(port: int, ca: str | None) -> http.client.HTTPConnection:
    if ca is None:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=ssl.create_default_context(cafile=ca))


def arrow_stream(**columns: object) -> bytes:
    """Return an Arrow stream of one batch; each value is an Arrow array or a list."""
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def config_for(warehouse: Path | str, **service: Any) -> Config:
    """Return the settings of a test's service."""
    settings = replace(ServiceSettings(port=0), **service)
    return Config(warehouse=WarehouseSettings(uri=str(warehouse)), service=settings)


async def _soon(_delay_s: float) -> None:
    await asyncio.sleep(0.005)


# At its end uvicorn waits for a tenth of a second, whether there are connections or not: thousands of tests would, too.
vars(uvicorn.server)["asyncio"] = SimpleNamespace(**{**vars(asyncio), "sleep": _soon})


class _ThreadServer(Server):
    """The service's server without signal handlers, which only the main thread may have."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        try:
            await super().startup(sockets=sockets)
        finally:
            self.up.set()

    def announce(self) -> None:
        """Announce nothing: tests read the port from the server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    """Wait until `condition` holds; the service's threads run meanwhile."""
    started = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - started
        assert waited_s < within_s, "the condition did not become true in time"
        # What waits for a lease asks for seconds, and each time it may be a request.
        time.sleep(min(0.1, max(0.005, waited_s / 20)))


@contextlib.contextmanager
def running(config: Config, ports: Ports = REAL, make: Callable[[Config, Ports], App] = create_app) -> Iterator[Api]:
    """Run a service with these settings until the block ends; then its queues are flushed."""
    listener = bind(config)
    app = make(config, ports)
    server = _ThreadServer(app, config, listener, server_context(config.service))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="service")
    thread.start()
    try:
        assert server.up.wait(30) and server.started, "the service did not start"
        assert app.service is not None
        yield Api(listener.getsockname()[1], app.service)
    finally:
        if app.service is not None:
            app.service.loop.call_soon_threadsafe(server.end)
        thread.join(60)
        listener.close()
    assert not thread.is_alive(), "the service did not stop"
