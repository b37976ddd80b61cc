"""How long a partition of an ordered group rests while it is handed over from one client to another.

A topic of 4 partitions gets 500 messages a second, and one client hears them all. Another comes, is given half of the
partitions, hears from each of them, and goes again. The pause of a partition is the time from the last message that one
client heard to the first that the next one heard; the messages themselves are 8 ms apart. Every message must be heard
once and in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

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
_GROUP: Final = "ledger"
_PARTITIONS: Final = 4
_KEYS: Final = 200
_PERIOD_S: Final = 0.002
_COMINGS: Final = 50
_QUICK_COMINGS: Final = 2
_WITHIN_S: Final = 30.0


class _Event(NamedTuple):
    at_s: float
    client: str
    offset: int


class Heard:
    """What listeners heard, by partition, in the order in which they did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_partition: dict[str, list[_Event]] = {}

    def listener(self, client: str) -> Callable[[OrderedMessage], Verdict]:
        def hear(message: OrderedMessage) -> Verdict:
            with self._lock:
                events = self._by_partition.setdefault(message.partition, [])
                events.append(_Event(time.perf_counter(), client, message.offset))
            return Verdict.SUCCESS

        return hear

    def last(self) -> dict[str, str]:
        """The consumer that heard the last message of each partition."""
        with self._lock:
            return {partition: events[-1].client for partition, events in self._by_partition.items()}

    def pauses_ms(self) -> list[float]:
        """The pause of each handover; raises when a message was heard twice, or not at all."""
        pauses = []
        with self._lock:
            for partition, events in self._by_partition.items():
                if [event.offset for event in events] != list(range(len(events))):
                    raise LoadError(f"{partition}: {len(events)} messages were not heard once each, in order")
                for before, after in pairwise(events):
                    if before.client != after.client:
                        pauses.append((after.at_s - before.at_s) * 1e3)
        return pauses


@bench("order.handover")
def _handover(session: Session) -> Iterator[Figure]:
    """A second client comes and goes while messages flow."""
    comings = _QUICK_COMINGS if session.effort.name == "quick" else _COMINGS
    heard = Heard()
    with running_service(session.fresh("order.handover")) as service:
        service.make_topic(_TOPIC, _PARTITIONS)
        service.call("PUT", f"/v1/groups/{_GROUP}", {"consume_strategy": "exclusive"})
        ended = threading.Event()
        producing = threading.Thread(target=_produce, args=(service, ended))
        producing.start()
        try:
            with _consumer(service, "first", heard) as first:
                first.start()
                _wait(lambda: list(heard.last().values()) == ["first"] * _PARTITIONS)
                for number in range(comings):
                    _come_and_go(service, f"second-{number}", heard)
        finally:
            ended.set()
            producing.join()
    pauses = heard.pauses_ms()
    said = f"a partition of an ordered group goes to another client, {len(pauses)} times"
    for percent in (50, 99):
        value = float(np.percentile(pauses, percent))
        yield session.figure(f"order.handover.p{percent}", f"{said}: pause", "ms", [value], most=round(max(pauses), 1))


def _consumer(service: Service, client: str, heard: Heard) -> OrderlyConsumer:
    host, port = service.address
    return OrderlyConsumer(f"http://{host}:{port}", _GROUP, _TOPIC, heard.listener(client), client_id=client)


def _come_and_go(service: Service, client: str, heard: Heard) -> None:
    """Be there until half of the partitions were heard, then go, until the first client has them again."""
    with _consumer(service, client, heard) as second:
        second.start()
        _wait(lambda: list(heard.last().values()).count(client) == _PARTITIONS // 2)
    _wait(lambda: list(heard.last().values()) == ["first"] * _PARTITIONS)


def _produce(service: Service, ended: threading.Event) -> None:
    host, port = service.address
    with Producer(f"http://{host}:{port}") as producer:
        number = 0
        while not ended.wait(_PERIOD_S):
            producer.send_soon(_TOPIC, b"x" * 100, key=f"k{number % _KEYS}")
            number += 1


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise LoadError("a handover has not ended")
        time.sleep(0.002)
