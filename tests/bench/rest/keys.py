"""How much faster one partition of an ordered group is heard when its keys are heard in parallel.

A topic of one partition has messages of 200 keys, and a listener that takes 10 ms, as a call to another service would.
One consumer hears them one after another, another one eight at a time; both hear every message once, and each key in
order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final

from deltamq import OrderlyConsumer, Producer
from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.order.orderly import Verdict
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.registry import bench
from tests.bench.service import Service, running_service
from tests.bench.session import Session

__all__ = ["Heard"]

_TOPIC: Final = "bench"
_KEYS: Final = 200
_WORK_S: Final = 0.010
_LISTENERS: Final = 8
#: Messages that are heard one after another; eight times as many are heard in parallel.
_MESSAGES: Final = 1_000
_QUICK_MESSAGES: Final = 50
_WITHIN_S: Final = 120.0


class Heard:
    """A listener that takes its time, and notes what it heard."""

    def __init__(self, wanted: int) -> None:
        self._lock = threading.Lock()
        self._wanted = wanted
        self._offsets: dict[str | None, list[int]] = {}
        self._count = 0
        self._began_s: float | None = None
        self._ended_s = 0.0
        self.all = threading.Event()

    def __call__(self, message: OrderedMessage) -> Verdict:
        with self._lock:
            if self._began_s is None:
                self._began_s = time.perf_counter()
        time.sleep(_WORK_S)
        with self._lock:
            self._offsets.setdefault(message.key, []).append(message.offset)
            self._count += 1
            if self._count == self._wanted:
                self._ended_s = time.perf_counter()
                self.all.set()
        return Verdict.SUCCESS

    def rate(self) -> float:
        """Return messages a second; raises if messages were lost or repeated, or a key was not heard in order."""
        with self._lock:
            offsets = [offset for heard in self._offsets.values() for offset in heard]
            in_order = all(heard == sorted(heard) for heard in self._offsets.values())
            if self._began_s is None or not in_order or len(set(offsets)) != len(offsets):
                raise LoadError("messages were not heard once each, in the order of their keys")
            return self._wanted / (self._ended_s - self._began_s)


@bench("order.keys")
def _keys(session: Session) -> Iterator[Figure]:
    """One consumer of one partition, with one listener and with eight."""
    alone = _QUICK_MESSAGES if session.effort.name == "quick" else _MESSAGES
    with running_service(session.fresh("order.keys")) as service:
        service.make_topic(_TOPIC, 1)
        _produce(service, alone * _LISTENERS)
        one = _hear(service, 1, alone)
        many = _hear(service, _LISTENERS, alone * _LISTENERS)
    said = f"one partition is heard by listeners of {_WORK_S * 1e3:.0f} ms"
    yield session.figure("order.keys.1.rate", f"{said}, one at a time", "msg/s", [one])
    yield session.figure(f"order.keys.{_LISTENERS}.rate", f"{said}, {_LISTENERS} at a time", "msg/s", [many])
    yield session.figure("order.keys.ratio", f"{said}, {_LISTENERS} to one at a time", "x", [many / one])


def _produce(service: Service, count: int) -> None:
    host, port = service.address
    with Producer(f"http://{host}:{port}") as producer:
        for number in range(count):
            producer.send_soon(_TOPIC, b"x" * 100, key=f"k{number % _KEYS}")


def _hear(service: Service, keys_in_parallel: int, count: int) -> float:
    """Return the rate of a new group, which begins at the first message."""
    host, port = service.address
    heard = Heard(count)
    group = f"keys-{keys_in_parallel}"
    with OrderlyConsumer(f"http://{host}:{port}", group, _TOPIC, heard, keys_in_parallel=keys_in_parallel) as consumer:
        consumer.start()
        if not heard.all.wait(_WITHIN_S):
            raise LoadError(f"{group}: messages are missing")
    return heard.rate()
