"""The data of the stub service: topics, received requests, and the faults that a test orders."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from deltamq.mq.routing import Route
from tests.unit.client.stub_static import StubStatic

BROKERS = ("broker-a", "broker-b")

ROWS = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("body", pa.binary()),
        pa.field("born_time", pa.timestamp("us", tz="UTC")),
        pa.field("append_time", pa.timestamp("us", tz="UTC")),
    ]
)


class Fault(enum.Enum):
    """The faults of a produce request."""

    NONE = "answer as usual"
    DROP_BEFORE = "close the connection, nothing stored"
    DROP_AFTER = "store, then close the connection without an answer"
    HALF_ANSWER = "store, then close in the middle of the answer"
    GARBAGE = "store, then answer 200 with what is no answer"
    HANG_BEFORE = "answer nothing until the test ends, nothing stored"
    HANG_AFTER = "store, then answer nothing until the test ends"
    BUSY = "429, nothing stored"
    BUSY_SECOND = "429 with Retry-After: 1, nothing stored"
    UNAVAILABLE = "503, nothing stored"
    UNAVAILABLE_AFTER = "503 although stored"
    INTERNAL_AFTER = "500 although stored"
    REFUSE = "400"
    FENCED = "409 fenced, nothing stored"
    CLOSED = "503 not_writable, nothing stored"
    HTML_502 = "a proxy's 502"


#: Status and code of answers after which nothing is stored.
BEFORE: dict[Fault, tuple[int, str]] = {
    Fault.BUSY: (429, "queue_full"),
    Fault.BUSY_SECOND: (429, "queue_full"),
    Fault.UNAVAILABLE: (503, "unavailable"),
    Fault.CLOSED: (503, "not_writable"),
    Fault.REFUSE: (400, "invalid_request"),
    Fault.FENCED: (409, "fenced"),
}
#: Status and code of answers although the messages are stored.
AFTER: dict[Fault, tuple[int, str]] = {
    Fault.UNAVAILABLE_AFTER: (503, "unavailable"),
    Fault.INTERNAL_AFTER: (500, "internal"),
}


@dataclass
class Topic:
    """A topic: its route and its partitions' messages; those of a static topic lie in `static`."""

    name: str
    route: Route
    strict: bool = False
    logs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    min_offsets: dict[str, int] = field(default_factory=dict)
    static: StubStatic | None = None

    def log(self, partition: str) -> list[dict[str, Any]]:
        return self.logs.setdefault(partition, [])


class Post(msgspec.Struct, frozen=True):
    """One received produce request."""

    topic: str
    partition: str | None
    producer_id: str
    seq: int
    body: bytes
    kind: str
    count: int
    fault: Fault
    at: float
    traceparent: str | None


def stream_of(rows: list[dict[str, Any]]) -> bytes:
    plain = [
        {
            name: list(row[name].items()) if name == "headers" and row.get(name) else _time(row.get(name))
            for name in ROWS.names
        }
        for row in rows
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS) as writer:
        writer.write_table(pa.Table.from_pylist(plain, ROWS))
    return bytes(sink.getvalue())


def _time(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) and value[4:5] == "-" and "T" in value else value
