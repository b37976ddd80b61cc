"""Static topics beside plain ones on the same service, and what a remapping costs those who send meanwhile.

A logical queue is one more translation on the way; paired windows show what it costs. A queue with a hundred segments
is compared with one that has one. Remappings go on while producers send one message at a time: the longest time without
an answer is the pause that they see.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from tests.bench.figure import Figure
from tests.bench.load import Connection, LoadError, checked, request
from tests.bench.payloads import arrow_stream, json_request, record_batch
from tests.bench.registry import bench
from tests.bench.rest.produce import ARROW
from tests.bench.service import Service, fetch_path, running_service
from tests.bench.session import Session, Window

__all__: list[str] = []

_JSON: Final = "application/json"
_BROKERS: Final = ("broker-a", "broker-b")
_QUEUES: Final = 4
#: The topics whose costs are compared.
_PLAIN: Final = "plain"
_STATIC: Final = "static"
#: Requests of one kind before those of the other.
_TURN: Final = 20
_FETCHED: Final = 1_000
#: Messages in one request that fills a topic.
_APPENDED: Final = 100_000
_CLIENTS: Final = 4
_SEGMENTS: Final = (1, 10, 100)
_INVISIBLE_MS: Final = 3_600_000


def _make_static(service: Service, topic: str, queues: int) -> list[str]:
    """A static topic; the names of its queues."""
    view = service.call("PUT", f"/v1/topics/{topic}", {"static": True, "total_queues": queues, "brokers": ["broker-a"]})
    return [one["partition"] for one in view["logical_queues"]]


@contextmanager
def _serving(session: Session, name: str) -> Iterator[Service]:
    with running_service(session.fresh(name), brokers=_BROKERS) as service:
        yield service


# Beside a plain topic -------------------------------------------------------------------------------------------------

Step = Callable[[Connection], None]


def _paired(session: Session, service: Service, plain: Step, static: Step) -> list[Window]:
    """Windows in which the two take turns; the ratio of what one call took, median against median."""
    connection = Connection(service.address)

    def window(seconds: float) -> dict[str, float]:
        took: dict[Step, list[float]] = {plain: [], static: []}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not took[static]:
            for step, times in took.items():
                for _ in range(_TURN):
                    began = time.perf_counter()
                    step(connection)
                    times.append((time.perf_counter() - began) * 1e3)
        was, now = (float(np.median(times)) for times in took.values())
        return {"ratio": now / was, "plain": was, "static": now}

    windows = session.windows(window)
    connection.close()
    return windows


def _asked(data: bytes) -> Step:
    def step(connection: Connection) -> None:
        checked(connection.exchange(data))

    return step


def _produce(topic: str, body: bytes) -> bytes:
    return request("POST", f"/v1/topics/{topic}/messages?flush=async", kind=_JSON, body=body)


def _fetch(topic: str, partition: str, offset: int) -> bytes:
    return request("GET", fetch_path(topic, partition, offset=offset, max_messages=_FETCHED), accept=ARROW)


def _popping(topic: str, most: int) -> Step:
    """Pops that acknowledge what the one before brought."""
    handles: list[str] = []
    path = f"/v1/groups/{topic}-group/topics/{topic}/pop"

    def step(connection: Connection) -> None:
        body = json.dumps({"max_messages": most, "invisible_ms": _INVISIBLE_MS, "ack": handles}).encode()
        answer = checked(connection.exchange(request("POST", path, kind=_JSON, body=body)))
        found: dict[str, Any] = json.loads(bytes(answer.body))
        if not found["messages"] or found["failed_acks"]:
            raise LoadError(f"a pop of {topic} brought {len(found['messages'])} messages: too few were stored")
        handles[:] = [one["handle"] for one in found["messages"]]

    return step


@bench("static.beside")
def beside(session: Session) -> Iterator[Figure]:
    """A send, a fetch and a pop through a logical queue against the same on a plain topic."""
    with _serving(session, "static-beside") as service:
        names = {_PLAIN: service.make_topic(_PLAIN, _QUEUES), _STATIC: _make_static(service, _STATIC, _QUEUES)}
        stored = session.effort.history_messages // 4
        rows = arrow_stream(record_batch(min(_APPENDED, stored), 100))
        for topic in names:
            connection = Connection(service.address)
            for _ in range(-(-stored // min(_APPENDED, stored))):
                checked(connection.exchange(request("POST", f"/v1/topics/{topic}/messages", kind=ARROW, body=rows)))
            connection.close()
        # Before the sends: after them the tails of the two topics hold different mixtures of large and small appends.
        ends = {topic: _ends(service, topic)[names[topic][0]] for topic in names}
        steps = [_asked(_fetch(topic, names[topic][0], ends[topic] - _FETCHED)) for topic in names]
        windows = _paired(session, service, *steps)
        yield session.figure_of("static.beside.fetch", "a fetch of 1,000 messages, Arrow", "x", "ratio", windows)
        for size, name in ((1, "send"), (100, "send100")):
            body = json_request(size, 100)
            windows = _paired(session, service, *(_asked(_produce(topic, body)) for topic in names))
            said = f"a send of {size} messages of 100 B, async flush, against a plain topic"
            yield session.figure_of(f"static.beside.{name}", said, "x", "ratio", windows)
        windows = _paired(session, service, *(_popping(topic, 32) for topic in names))
        yield session.figure_of("static.beside.pop", "a pop of 32 with their acks, JSON", "x", "ratio", windows)


def _ends(service: Service, topic: str) -> dict[str, int]:
    view = service.call("GET", f"/v1/topics/{topic}")
    return {one["partition"]: one["max_offset"] for one in view.get("logical_queues") or view["partitions"]}


# Many segments --------------------------------------------------------------------------------------------------------


@bench("static.segments")
def segments(session: Session) -> Iterator[Figure]:
    """A fetch and a send in queues with 1, 10 and 100 segments of the same messages, and the mapping's size."""
    stored = max(_FETCHED * 2, session.effort.history_messages // 8)
    with _serving(session, "static-segments") as service:
        steps: dict[int, Step] = {}
        sends: dict[int, Step] = {}
        for count in _SEGMENTS:
            topic = f"segments-{count}"
            (queue,) = _make_static(service, topic, 1)
            _fill_segments(service, topic, stored, count)
            steps[count] = _random_fetches(topic, queue, _ends(service, topic)[queue])
            sends[count] = _asked(_produce(topic, json_request(1, 100)))
        for count in _SEGMENTS[1:]:
            windows = _paired(session, service, steps[1], steps[count])
            said = f"a fetch of up to 1,000 messages from anywhere in a queue of {count} segments, against one segment"
            yield session.figure_of(f"static.segments.fetch{count}", said, "x", "ratio", windows)
            windows = _paired(session, service, sends[1], sends[count])
            said = f"a send to a queue of {count} segments, against one segment"
            yield session.figure_of(f"static.segments.send{count}", said, "x", "ratio", windows)


def _fill_segments(service: Service, topic: str, stored: int, count: int) -> None:
    each = -(-stored // count)
    requests = -(-each // _APPENDED)
    body = arrow_stream(record_batch(each // requests, 100))
    connection = Connection(service.address)
    for at in range(count):
        for _ in range(requests):
            checked(connection.exchange(request("POST", f"/v1/topics/{topic}/messages", kind=ARROW, body=body)))
        if at < count - 1:
            service.call("POST", f"/v1/topics/{topic}/remap", {"brokers": [_BROKERS[(at + 1) % 2]]})
    connection.close()


def _random_fetches(topic: str, queue: str, end: int) -> Step:
    draw = np.random.default_rng(7)

    def step(connection: Connection) -> None:
        answer = checked(connection.exchange(_fetch(topic, queue, int(draw.integers(end - _FETCHED)))))
        if answer.header(b"mq-status") != b"found":
            raise LoadError(f"a fetch of {topic} found nothing")

    return step


# Remappings under load ------------------------------------------------------------------------------------------------


class _Senders:
    """Producers that send one message at a time, each answer with its moment."""

    def __init__(self, service: Service, topic: str) -> None:
        self._service = service
        self._data = request("POST", f"/v1/topics/{topic}/messages", kind=_JSON, body=json_request(1, 100))
        self._stop = threading.Event()
        self.answers: list[list[tuple[float, float]]] = [[] for _ in range(_CLIENTS)]
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._send, args=(times,)) for times in self.answers]

    def __enter__(self) -> _Senders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self, times: list[tuple[float, float]]) -> None:
        connection = Connection(self._service.address)
        while not self._stop.is_set():
            began = time.perf_counter()
            answer = connection.exchange(self._data)
            if answer.status != 200:
                self.failures.append(bytes(answer.body).decode()[:300])
            times.append((time.perf_counter(), (time.perf_counter() - began) * 1e3))
        connection.close()


def _remapped(session: Session, mode: str) -> Iterator[Figure]:
    with _serving(session, f"static-remap-{mode}") as service:
        _make_static(service, _STATIC, _QUEUES)
        turn = 0

        def window(seconds: float) -> dict[str, float]:
            nonlocal turn
            took: list[float] = []
            with _Senders(service, _STATIC) as senders:
                end = time.perf_counter() + seconds
                while time.perf_counter() < end or not took:
                    turn += 1
                    began = time.perf_counter()
                    service.call("POST", f"/v1/topics/{_STATIC}/remap", {"brokers": [_BROKERS[turn % 2]], "mode": mode})
                    took.append((time.perf_counter() - began) * 1e3)
                    time.sleep(0.3)
            if senders.failures:
                raise LoadError(f"{len(senders.failures)} sends failed: {senders.failures[0]}")
            return {**_pauses(senders), "remap": float(np.median(took)), "remaps": float(len(took))}

        windows = session.windows(window)
    said = f"{_CLIENTS} producers of single messages, fsynced, {_QUEUES} queues remapped {mode} three times a second"
    yield session.figure_of(
        f"static.remap.{mode}.worst", f"{said}: p99 of sends in the worst second", "ms", "p99", windows
    )
    yield session.figure_of(f"static.remap.{mode}.pause", f"{said}: the longest send", "ms", "longest", windows)
    yield session.figure_of(f"static.remap.{mode}.took", f"{said}: a remapping", "ms", "remap", windows)


def _pauses(senders: _Senders) -> dict[str, float]:
    answers = sorted(one for times in senders.answers for one in times)
    seconds: dict[int, list[float]] = {}
    for moment, took in answers:
        seconds.setdefault(int(moment - answers[0][0]), []).append(took)
    worst = max(float(np.percentile(times, 99)) for times in seconds.values())
    return {"p99": worst, "longest": max(took for _, took in answers), "rate": len(answers)}


@bench("static.remap.available")
def available(session: Session) -> Iterator[Figure]:
    """Producers never stop."""
    return _remapped(session, "available")


@bench("static.remap.strict")
def strict(session: Session) -> Iterator[Figure]:
    """A short stop, and no hole."""
    return _remapped(session, "strict")


@bench("static.many")
def many(session: Session) -> Iterator[Figure]:
    """1,000 logical queues remapped over four brokers in one command."""
    queues, brokers = 1_000, tuple(f"broker-{name}" for name in "abcd")
    with running_service(session.fresh("static-many"), brokers=brokers) as service:
        asked = {"static": True, "total_queues": queues, "brokers": list(brokers[:2])}
        service.call("PUT", f"/v1/topics/{_STATIC}", asked)
        took = []
        for targets in (brokers[2:], brokers[:2]):
            began = time.perf_counter()
            done = service.call("POST", f"/v1/topics/{_STATIC}/remap", {"brokers": list(targets)})
            took.append(time.perf_counter() - began)
            if len(done["moved"]) != queues:
                raise LoadError(f"{len(done['moved'])} of {queues} queues moved")
        yield session.figure("static.many.took", "1,000 logical queues remapped, sealed and answered", "s", took)
