"""The objects that all executors of one producer share: hosts, settings, bounds, counters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.http.workers import Workers
from deltamq.mq.client.produce.broker_health import BrokerHealth
from deltamq.mq.client.produce.buffer import Buffer
from deltamq.mq.errors import Refused
from deltamq.mq.limits import ARROW_MESSAGES_MAX, MESSAGE_BYTES_MAX, MIB, REQUEST_BYTES_MAX

#: Bytes of a request reserved for everything but bodies: keys, offsets, the Arrow frame.
_FRAME_BYTES: Final = 1 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """How a producer batches, buffers and retries."""

    patience: Patience = field(default_factory=Patience)
    linger_ms: float = 0.0
    batch_messages_max: int = 10_000
    batch_bytes_max: int = 8 * MIB
    buffer_bytes_max: int = 64 * MIB
    requests_in_flight_max: int = 16
    message_bytes_max: int = MESSAGE_BYTES_MAX
    when_full: Literal["wait", "raise"] = "wait"
    route_age_s_max: float = 30.0
    route_age_s_min: float = 1.0

    def __post_init__(self) -> None:
        _within("batch_messages_max", self.batch_messages_max, 1, ARROW_MESSAGES_MAX)
        _within("message_bytes_max", self.message_bytes_max, 1, MESSAGE_BYTES_MAX)
        _within("batch_bytes_max", self.batch_bytes_max, 1, REQUEST_BYTES_MAX - _FRAME_BYTES)
        _within("buffer_bytes_max", self.buffer_bytes_max, self.message_bytes_max, 2**40)
        _within("requests_in_flight_max", self.requests_in_flight_max, 1, 1024)
        _within("linger_ms", self.linger_ms, 0, 60_000)
        _within("route_age_s_min", self.route_age_s_min, 0, 60)
        if self.when_full not in ("wait", "raise"):
            raise Refused("when_full must be 'wait' or 'raise'", field="when_full")


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise Refused(f"{name} must be from {low:,} to {high:,}, not {value:,}", field=name, extra={"limit": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStats:
    """What a producer has done since it was made; `unresolved` messages are queued or in flight."""

    sent: int
    refused: int
    unknown: int
    oneway_lost: int
    requests: int
    retries: int
    unresolved: int


class Counters:
    """Counts of resolved messages and of requests, with one update for each batch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"sent": 0, "refused": 0, "unknown": 0, "oneway_lost": 0, "requests": 0, "retries": 0}

    def add(self, **counts: int) -> None:
        """Add to the named counts."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def read(self, unresolved: int) -> ProducerStats:
        """Return all counts at one moment."""
        with self._lock:
            return ProducerStats(**self._counts, unresolved=unresolved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The objects that every executor of one producer uses."""

    hosts: Hosts
    settings: SendSettings
    workers: Workers
    buffer: Buffer
    new_id: Callable[[], str]
    health: BrokerHealth = field(default_factory=BrokerHealth)
    counters: Counters = field(default_factory=Counters)
    #: Set when the producer stops waiting at its close; it ends all retries.
    stop: threading.Event = field(default_factory=threading.Event)
