"""POP over REST: how fast groups take messages and acknowledge them, and how long a receiver waits.

Client and service share the machine. The topic has 4 partitions whose messages (100 B) are in the service's memory;
clients take them as fast as they can, each pop acknowledging what the one before brought. A group that has had them all
is followed by a new one. Every benchmark ends with the account: each finished group got every message once, no
acknowledgement failed, and its committed offsets are the partitions' end offsets.
"""

from __future__ import annotations

import json
import selectors
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from tests.bench.figure import Figure
from tests.bench.load import Answer, Connection, LoadError, checked, request
from tests.bench.payloads import json_request
from tests.bench.registry import bench
from tests.bench.rest.fetch import fill
from tests.bench.rest.produce import ARROW
from tests.bench.service import Service, cores_mark, cores_used, running_service
from tests.bench.session import Session

__all__ = ["Consumers"]

_JSON: Final = "application/json"
_MESSAGES: Final = 1_000_000
_QUICK_MESSAGES: Final = 40_000
_CLIENTS: Final = 8
_HANDLE: Final = b'"handle":"'
_SETTLED_S: Final = 30.0
#: Long enough that nothing comes again while we measure.
_INVISIBLE_MS: Final = 3_600_000


class _Consumer:
    """One client: pops, and acknowledges with the next pop."""

    def __init__(self, connection: Connection, group: str, *, arrow: bool, most: int) -> None:
        self.connection = connection
        self.group = group
        self._arrow = arrow
        self._most = most
        self._handles = b""
        self._held = 0
        #: Whether the last answer said that nothing is left: an empty one may only have met other pops at work.
        self.drained = False

    def send(self) -> None:
        """Ask for more, and acknowledge what the last answer brought."""
        body = b'{"max_messages":%d,"invisible_ms":%d,"ack":[%s]}' % (self._most, _INVISIBLE_MS, self._handles)
        path = f"/v1/groups/{self.group}/topics/bench/pop"
        accept = ARROW if self._arrow else _JSON
        self.connection.socket.sendall(request("POST", path, kind=_JSON, body=body, accept=accept))

    def receive(self) -> tuple[int, int]:
        """How many messages were acknowledged, and how many came."""
        answer = checked(self.connection.answer())
        acked = self._held
        self.drained = answer.header(b"mq-rest") == b"0" if self._arrow else b'"rest":0,' in bytes(answer.body[-99:])
        handles = _arrow_handles(answer) if self._arrow else _json_handles(answer)
        self._held = len(handles)
        self._handles = b'"' + b'","'.join(handles) + b'"' if handles else b""
        return acked, self._held


def _json_handles(answer: Answer) -> list[bytes]:
    body = bytes(answer.body)
    if not body.endswith(b'"failed_acks":[]}'):
        raise LoadError(f"an acknowledgement failed: {body[-300:]!r}")
    return [part[: part.index(b'"')] for part in body.split(_HANDLE)[1:]]


def _arrow_handles(answer: Answer) -> list[bytes]:
    if answer.header(b"mq-failed") != b"0":
        raise LoadError(f"{answer.header(b'mq-failed')!r} acknowledgements failed")
    column = pa.ipc.open_stream(pa.py_buffer(answer.body)).read_all().column("handle")
    return [handle for chunk in column.chunks for handle in chunk.cast(pa.binary()).to_pylist()]


class Consumers:
    """Clients that go from group to group, and the account of what they got."""

    def __init__(self, service: Service, messages: int, *, clients: int, arrow: bool = False, most: int = 32) -> None:
        self._service = service
        self._messages = messages
        self._current = 0
        self._popped: Counter[str] = Counter()
        self._acked: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._consumers = [
            _Consumer(Connection(service.address), self._group, arrow=arrow, most=most) for _ in range(clients)
        ]
        for consumer in self._consumers:
            self._selector.register(consumer.connection.socket, selectors.EVENT_READ, consumer)

    @property
    def _group(self) -> str:
        return f"group-{self._current}"

    def run(self, seconds: float) -> tuple[int, list[float], float]:
        """Messages that were popped and acknowledged, what each call took in milliseconds, and the seconds."""
        took: list[float] = []
        acked = 0
        began = now = time.perf_counter()
        sent = {}
        for consumer in self._consumers:
            sent[consumer] = now
            consumer.send()
        waiting = len(self._consumers)
        while waiting:
            for key, _ in self._selector.select():
                consumer = key.data
                acked += self._received(consumer)
                now = time.perf_counter()
                took.append((now - sent[consumer]) * 1e3)
                if now - began < seconds:
                    sent[consumer] = now
                    consumer.send()
                else:
                    waiting -= 1
        return acked, took, now - began

    def _received(self, consumer: _Consumer) -> int:
        acked, popped = consumer.receive()
        self._acked[consumer.group] += acked
        self._popped[consumer.group] += popped
        if not popped and consumer.drained:
            if consumer.group == self._group:
                self._current += 1
            consumer.group = self._group
        return acked

    def settle(self) -> None:
        """Take and acknowledge the rest of the last group, then check every group."""
        last = self._current
        while self._current == last or any(consumer.group == f"group-{last}" for consumer in self._consumers):
            self.run(0.2)
        for group in (f"group-{number}" for number in range(last + 1)):
            if self._popped[group] != self._messages or self._acked[group] != self._messages:
                raise LoadError(f"{group} got {self._popped[group]}, acked {self._acked[group]} of {self._messages}")
            self._await_committed(group)
        for consumer in self._consumers:
            consumer.connection.close()

    def _await_committed(self, group: str) -> None:
        deadline = time.monotonic() + _SETTLED_S
        while True:
            (topic,) = self._service.call("GET", f"/v1/groups/{group}")["topics"]
            lanes = [lane for lane in topic["partitions"] if not lane["retry"]]
            if all(lane["committed_offset"] == lane["end_offset"] for lane in lanes):
                return
            if time.monotonic() > deadline:
                raise LoadError(f"{group} has acknowledged everything, and its offsets are {lanes}")
            time.sleep(0.05)


def _rates(
    session: Session,
    name: str,
    said: str,
    *,
    most: int,
    arrow: bool = False,
    clients: int = _CLIENTS,
    settings: Mapping[str, str] | None = None,
    held: int = 0,
) -> Iterator[Figure]:
    messages = _QUICK_MESSAGES if session.effort.name == "quick" else _MESSAGES
    with running_service(session.fresh(name), settings) as service:
        fill(service, messages)
        messages = sum(service.stored("bench").values())
        if held:
            _hold(service, min(held, messages))
        consumers = Consumers(service, messages, clients=clients, arrow=arrow, most=most)

        def window(seconds: float) -> dict[str, float]:
            mark = cores_mark(service)
            acked, took, elapsed = consumers.run(seconds)
            return {
                "rate": acked / elapsed,
                "p50": float(np.percentile(took, 50)),
                "p99": float(np.percentile(took, 99)),
                **cores_used(service, mark),
            }

        windows = session.windows(window)
        consumers.settle()
    yield session.figure_of(
        f"{name}.rate", f"{said}, {clients} clients: popped and acknowledged", "msg/s", "rate", windows
    )
    yield session.figure_of(f"{name}.p50", f"{said}, {clients} clients: request to answer", "ms", "p50", windows)


def _hold(service: Service, messages: int) -> None:
    """A group that takes so many messages and keeps them."""
    connection = Connection(service.address)
    left = messages
    while left > 0:
        body = json.dumps({"max_messages": min(1_024, left), "invisible_ms": _INVISIBLE_MS}).encode()
        data = request("POST", "/v1/groups/holder/topics/bench/pop", kind=_JSON, body=body, accept=ARROW)
        left -= len(_arrow_handles(checked(connection.exchange(data))))
    connection.close()
    held = sum(
        lane["in_flight"]
        for topic in service.call("GET", "/v1/groups/holder")["topics"]
        for lane in topic["partitions"]
    )
    if held != messages:
        raise LoadError(f"{messages} messages were taken, {held} are in flight")


@bench("pop.json32")
def _json32(session: Session) -> Iterator[Figure]:
    """Batches of 32 as JSON through the in-memory match."""
    return _rates(session, "pop.json32", "POP over REST, batches of 32 as JSON", most=32)


@bench("pop.arrow500")
def _arrow500(session: Session) -> Iterator[Figure]:
    """Batches of 500 as Arrow."""
    return _rates(session, "pop.arrow500", "POP over REST, batches of 500 as Arrow", most=500, arrow=True)


_STORED: Final = {"DELTAMQ_QUEUE_MEMORY_MATCH": "false"}
#: Enough that some calls are decoded and answered while the commit of others is under way.
_STORED_CLIENTS: Final = 64


@bench("pop.stored32")
def _stored32(session: Session) -> Iterator[Figure]:
    """Batches of 32 with every checkpoint and acknowledgement stored, fsynced, before the answer."""
    said = "POP over REST, batches of 32 as JSON, checkpoints and acks stored"
    return _rates(session, "pop.stored32", said, most=32, clients=_STORED_CLIENTS, settings=_STORED)


@bench("pop.held32")
def _held32(session: Session) -> Iterator[Figure]:
    """The same beside a million messages in flight."""
    said = "POP over REST, batches of 32 as JSON, checkpoints and acks stored, 1,000,000 messages in flight"
    return _rates(session, "pop.held32", said, most=32, clients=_STORED_CLIENTS, settings=_STORED, held=1_000_000)


@bench("pop.receive")
def _receive(session: Session) -> Iterator[Figure]:
    """One receiver at light load: what a pop that finds messages takes, and from a producer's answer to the arrival."""
    produce = request("POST", "/v1/topics/bench/messages", kind=_JSON, body=json_request(1, 100))
    with running_service(session.fresh("pop.receive")) as service:
        service.make_topic("bench", 4)

        def window(seconds: float) -> dict[str, float]:
            took: list[float] = []
            waited: list[float] = []
            producer, receiver = Connection(service.address), Connection(service.address)
            ack = b""
            began = time.perf_counter()
            while time.perf_counter() - began < seconds or not took:
                checked(producer.exchange(produce))
                sent = time.perf_counter()
                ack = _one(receiver, ack, wait_ms=0)
                took.append((time.perf_counter() - sent) * 1e3)
                _ask(receiver, ack, wait_ms=5_000)
                time.sleep(0.002)
                checked(producer.exchange(produce))
                sent = time.perf_counter()
                ack = _only(receiver)
                waited.append((time.perf_counter() - sent) * 1e3)
                time.sleep(0.002)
            _ask(receiver, ack, wait_ms=0)
            if _json_handles(checked(receiver.answer())):
                raise LoadError("more came than was sent")
            producer.close()
            receiver.close()
            return {
                "p50": float(np.percentile(took, 50)),
                "p99": float(np.percentile(took, 99)),
                "wake": float(np.percentile(waited, 50)),
            }

        windows = session.windows(window)
    said = "POP over REST, one receiver at light load, one message"
    yield session.figure_of("pop.receive.p50", f"{said}: request to answer", "ms", "p50", windows)
    yield session.figure_of("pop.receive.p99", f"{said}: 99th percentile", "ms", "p99", windows)
    yield session.figure_of(
        "pop.receive.wake", f"{said}: producer's answer to a waiting receiver's", "ms", "wake", windows
    )


def _ask(receiver: Connection, ack: bytes, *, wait_ms: int) -> None:
    body = b'{"max_messages":32,"wait_ms":%d,"ack":[%s]}' % (wait_ms, ack)
    receiver.socket.sendall(request("POST", "/v1/groups/light/topics/bench/pop", kind=_JSON, body=body))


def _only(receiver: Connection) -> bytes:
    (handle,) = _json_handles(checked(receiver.answer()))
    return b'"' + handle + b'"'


def _one(receiver: Connection, ack: bytes, *, wait_ms: int) -> bytes:
    _ask(receiver, ack, wait_ms=wait_ms)
    return _only(receiver)
