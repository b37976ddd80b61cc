"""kill -9 of a service while groups pop and acknowledge (fault F1): nothing lost, nothing done comes back.

Consumers note what they were told. After each kill the state is what the tables say (SPEC META-3, POP-14); the revive
job runs all the time, as a process of its own would.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deltamq.jobs.queue.revive import Reviver
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.config import Config
from deltamq.tables.config_sections import QueueSettings, WarehouseSettings
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.recovery import recover
from tests.e2e.service_process import ServiceProcess

_TOPIC = "orders"
_GROUP = "billing"
_PARTITIONS = 3
#: Due so soon that the checkpoint goes straight to the log; late enough to meet its acks in memory.
_INVISIBLE_MS = (1_000, 6_000)
_BUSY = {"DELTAMQ_QUEUE_INVISIBLE_MS_MIN": "100", "DELTAMQ_QUEUE_STAY_BUFFER_MS": "300"}


@dataclass
class _Notes:
    """What the consumers were told, by the body of the message."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    #: When its first acknowledgement was answered.
    acked: dict[str, float] = field(default_factory=dict)
    #: What this life of the service acknowledged, and where that delivery lay: in the message's own partition, or in
    #: one of the group's retries.
    done: dict[str, tuple[str, int]] = field(default_factory=dict)
    #: When the pops that brought it were sent.
    popped: dict[str, list[float]] = field(default_factory=dict)
    #: An acknowledgement was sent whose answer never came: it may be stored.
    doubted: set[str] = field(default_factory=set)
    expired: int = 0
    #: Everything that happened to a message, for the reader who looks for the reason of a failure.
    history: dict[str, list[str]] = field(default_factory=dict)

    def tell(self, message: dict[str, object], what: str) -> None:
        place = f"{message['partition']}/{message['offset']} attempt {message['delivery_attempt']}"
        self.history.setdefault(str(message["body"]), []).append(f"{time.monotonic():.3f} {what} {place}")


class _Consumer(threading.Thread):
    """Pops, acknowledges most of it, forgets the rest, and goes on whatever happens to the service."""

    def __init__(self, port: int, notes: _Notes, seed: int, stop: threading.Event, *, forgets: bool) -> None:
        super().__init__()
        self._port = port
        self._notes = notes
        self._random = random.Random(seed)
        self._stop_event = stop
        self._forgets = forgets
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_event.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    self._consume()
        except BaseException as error:
            self.failure = error

    def _consume(self) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)) as connection:
            while not self._stop_event.is_set():
                sent = time.monotonic()
                ask = {
                    "max_messages": self._random.choice((1, 5, 40)),
                    "invisible_ms": self._random.choice(_INVISIBLE_MS),
                    "wait_ms": 50,
                }
                found = _call(connection, f"/v1/groups/{_GROUP}/topics/{_TOPIC}/pop", ask)
                if found is not None:
                    self._note(found["messages"], sent)
                    self._acknowledge(connection, found["messages"])

    def _note(self, messages: list[dict[str, object]], sent: float) -> None:
        with self._notes.lock:
            for message in messages:
                self._notes.popped.setdefault(str(message["body"]), []).append(sent)
                self._notes.tell(message, "popped")

    def _acknowledge(self, connection: http.client.HTTPConnection, messages: list[dict[str, object]]) -> None:
        kept = [m for m in messages if not (self._forgets and self._random.random() < 0.2)]
        if not kept:
            return
        with self._notes.lock:
            self._notes.doubted |= {str(message["body"]) for message in kept}
        told = _call(connection, f"/v1/groups/{_GROUP}/ack", {"handles": [m["handle"] for m in kept]})
        if told is None:
            return
        failed = {one["handle"]: str(one["code"]) for one in told["failed"]}
        assert set(failed.values()) <= {"handle_expired"}
        with self._notes.lock:
            self._notes.expired += len(failed)
            self._notes.doubted -= {str(message["body"]) for message in kept}
            for message in kept:
                body = str(message["body"])
                self._notes.tell(message, failed.get(message["handle"], "acked"))
                if message["handle"] not in failed:
                    self._notes.acked.setdefault(body, time.monotonic())
                    self._notes.done[body] = (str(message["partition"]), int(str(message["offset"])))


def _call(connection: http.client.HTTPConnection, path: str, body: object) -> dict[str, list[dict[str, object]]] | None:
    """The answer; None while the service starts or stops."""
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    raw = answer.read()
    if answer.status == 503:
        return None
    assert answer.status == 200, raw
    found: dict[str, list[dict[str, object]]] = json.loads(raw)
    return found


@contextlib.contextmanager
def _reviving(folder: Path, conf: Config) -> Iterator[list[str]]:
    """The revive job, again and again; what it said last comes last."""
    stop = threading.Event()
    told: list[str] = []

    def work() -> None:
        warehouse = Warehouse.open(str(folder))
        reviver = Reviver(warehouse, conf)
        while not stop.wait(0.1):
            try:
                told.append(f"{time.monotonic():.3f} {reviver.run(time.time_ns() // 1_000_000)}")
            except DeltaMQError as error:
                told.append(f"{time.monotonic():.3f} {error!r}")
        warehouse.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield told
    finally:
        stop.set()
        thread.join(30)


def _committed(folder: Path) -> dict[str, int]:
    """What the tables say of the group's offsets, by partition."""
    warehouse = Warehouse.open(str(folder))
    with contextlib.closing(warehouse):
        found = recover(warehouse, "deltamq", ["broker-a", "broker-b"]).committed
    return {lane.partition: at.offset for lane, at in found.items()}


def _storm(folder: Path, *, memory_match: bool, kills: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> _Notes:
    for name, value in {**_BUSY, "DELTAMQ_QUEUE_MEMORY_MATCH": str(memory_match).lower()}.items():
        monkeypatch.setenv(name, value)
    queue = QueueSettings(invisible_ms_min=100, stay_buffer_ms=300, memory_match=memory_match)
    conf = Config(warehouse=WarehouseSettings(uri=str(folder)), queue=queue)
    drawn = random.Random(seed)
    notes, stop = _Notes(), threading.Event()
    service = ServiceProcess(folder)
    port = int(service.url.rpartition(":")[2])
    sent: list[str] = []
    done_before_kill: list[tuple[float, set[str]]] = []
    try:
        _put_topic(port)
        with _reviving(folder, conf) as revived:
            consumers = [_Consumer(port, notes, seed * 100 + i, stop, forgets=i > 0) for i in range(3)]
            for consumer in consumers:
                consumer.start()
            for _ in range(kills):
                _produce(port, sent, drawn.randrange(150, 400))
                time.sleep(drawn.uniform(0.05, 0.7))
                service.kill()
                killed = time.monotonic()
                done_before_kill.append((killed, _done(notes, _committed(folder))))
                service.start()
            deadline = time.monotonic() + 40
            while missing := sorted(set(sent) - set(notes.acked) - notes.doubted):
                told = {body: notes.history.get(body) for body in missing[:3]}
                late = time.monotonic() > deadline
                assert not late, f"{len(missing)} are lost at {deadline:.3f}: {told}; revive: {revived[-2:]}"
                assert not [c.failure for c in consumers if c.failure], consumers
                time.sleep(0.05)
            # What comes again after this long was not done.
            time.sleep(_INVISIBLE_MS[0] / 1_000)
            stop.set()
            for consumer in consumers:
                consumer.join(30)
        assert [c.failure for c in consumers] == [None] * 3
    finally:
        stop.set()
        service.close()
    for killed, done in done_before_kill:
        again = [body for body in done if any(at > killed for at in notes.popped[body])]
        told = {body: notes.history[body] for body in again[:3]}
        assert not again, f"killed at {killed:.3f}; acknowledged, passed by the stored offset, and again: {told}"
    if not memory_match:
        again = [body for body, at in notes.acked.items() if any(sent_at > at for sent_at in notes.popped[body])]
        assert not again, f"acknowledged, stored, and delivered again: {[notes.history[body] for body in again[:3]]}"
    assert set(notes.popped) == set(sent)
    return notes


def _done(notes: _Notes, committed: dict[str, int]) -> set[str]:
    """Messages that the life that ended had acknowledged, and that the stored offset has passed."""
    with notes.lock:
        done, notes.done = notes.done, {}
    return {body for body, (partition, offset) in done.items() if offset < committed.get(partition, 0)}


def _put_topic(port: int) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        body = json.dumps({"partitions": _PARTITIONS})
        connection.request("PUT", f"/v1/topics/{_TOPIC}", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 201


def _produce(port: int, sent: list[str], count: int) -> None:
    bodies = [f"message-{len(sent) + i}" for i in range(count)]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        for at in range(0, count, 50):
            messages = [{"body": body} for body in bodies[at : at + 50]]
            assert _call(connection, f"/v1/topics/{_TOPIC}/messages", {"messages": messages}) is not None
    sent += bodies


@pytest.mark.timeout(240)
@pytest.mark.parametrize("memory_match", [True, pytest.param(False, marks=pytest.mark.long)])
def test_f1_a_killed_queue_loses_nothing_and_brings_nothing_done_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_match: bool
) -> None:
    notes = _storm(tmp_path / "warehouse", memory_match=memory_match, kills=2, seed=1, monkeypatch=monkeypatch)
    repeated = sum(len(times) > 1 for times in notes.popped.values())
    print(f"{len(notes.popped)} messages, {repeated} delivered again, {notes.expired} acks refused")
    assert repeated, "what was forgotten came again"


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("memory_match", [True, False])
def test_f1_a_queue_killed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_match: bool, seed: int
) -> None:
    _storm(tmp_path / "warehouse", memory_match=memory_match, kills=25, seed=10 + seed, monkeypatch=monkeypatch)
