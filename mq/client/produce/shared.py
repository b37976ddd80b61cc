"""The objects that all executors of one producer share: hosts, settings, counters, the buffer, the health of brokers.

The buffer bounds the bytes of messages that are not resolved yet. At the end of a program that did not close its
producers, what it holds is sent, within a bound (SPEC SEND-9). The threads that send are daemons, which the interpreter
ends in the middle of their work; `atexit` comes before that. Children of `multiprocessing` that were forked end by
`os._exit`, without it, and have a list of their own of what to do before. A process that is killed, a terminated worker
of a `Pool`, and one that calls `os._exit` itself flush nothing.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, Literal

import msgspec

from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.shells.forks import in_child
from deltamq.mq.client.shells.shell import Shell, Stop, Workers, run_now
from deltamq.mq.errors import Overloaded, Refused
from deltamq.mq.limits import ARROW_MESSAGES_MAX, MESSAGE_BYTES_MAX, MIB, REQUEST_BYTES_MAX

log = logging.getLogger("deltamq.client")


class Buffer:
    """Room for `bytes_max` bytes of unresolved messages."""

    def __init__(self, bytes_max: int, shell: Shell) -> None:
        self._shell = shell
        self._bytes_max = bytes_max
        self._bytes = 0
        self._messages = 0
        self._changed = shell.condition()

    @property
    def messages(self) -> int:
        """Number of messages not resolved yet."""
        return self._messages

    @property
    def bytes(self) -> int:
        """Approximate bytes of the messages not resolved yet."""
        return self._bytes

    def fitted(self, size: int) -> int:
        """Return the room for `size` bytes: an entry larger than the buffer takes all of it."""
        return min(size, self._bytes_max)

    def try_take(self, size: int, messages: int) -> bool:
        """Take room for `size` bytes (see `fitted`) if there is some."""
        assert size <= self._bytes_max
        with self._changed.lock:
            if self._bytes + size > self._bytes_max:
                return False
            self._bytes += size
            self._messages += messages
            return True

    async def take(self, size: int, messages: int, *, deadline: float, wait: bool) -> None:
        """Take room as `try_take` does, after a wait if `wait`; raises `Overloaded` if there is none."""
        wait_s = deadline - self._shell.now() if wait else 0.0
        if not await self._changed.until(partial(self.try_take, size, messages), wait_s):
            raise Overloaded(
                f"the producer's buffer of {self._bytes_max:,} bytes is full; nothing was sent", code="buffer_full"
            )

    def give_back(self, size: int, messages: int) -> None:
        """Return room once messages are resolved."""
        with self._changed.lock:
            self._bytes -= size
            self._messages -= messages
            assert self._bytes >= 0 and self._messages >= 0
            self._changed.notify()

    async def wait_empty(self, deadline: float) -> bool:
        """Wait until every message is resolved; returns False at the deadline."""
        return await self._changed.until(lambda: not self._messages, deadline - self._shell.now())


_AVOIDED: Final = ((15.0, 60.0), (5.0, 30.0), (3.0, 10.0), (2.0, 6.0), (1.0, 5.0), (0.55, 2.0))
FAILED_S: Final = 3.0


def avoided_s(latency_s: float) -> float:
    """Return the seconds for which a broker that took `latency_s` to answer is avoided."""
    return next((rest_s for slow_s, rest_s in _AVOIDED if latency_s >= slow_s), 0.0)


class BrokerHealth:
    """The brokers avoided now. Times are seconds of a monotonic clock.

    RocketMQ's rule: after a slow answer or a failure, the random choice avoids the broker, for longer the slower it
    was. Keyed messages are never moved (ROUTE-5), and if all brokers would be avoided, none is (SPEC SEND-4).

        answered in    < 550 ms    550 ms    1 s     2 s     3 s     5 s     15 s or failed
        avoided for    -           2 s       5 s     6 s     10 s    30 s    60 s
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def answered(self, broker: str, latency_s: float, now: float) -> None:
        """Note an answer; a quick one ends the avoidance of the broker."""
        rest_s = avoided_s(latency_s)
        if rest_s > 0:
            self._avoid(broker, now + rest_s)
        elif broker in self._until:
            with self._lock:
                self._until.pop(broker, None)

    def failed(self, broker: str, latency_s: float, now: float) -> None:
        """Note a failed attempt; it counts as an answer after `latency_s`, and at least after `FAILED_S`."""
        self._avoid(broker, now + avoided_s(max(latency_s, FAILED_S)))

    def _avoid(self, broker: str, until: float) -> None:
        with self._lock:
            self._until[broker] = max(until, self._until.get(broker, 0.0))

    def avoided(self, brokers: Collection[str], now: float) -> frozenset[str]:
        """Return which of `brokers` to avoid now; none if that would be all of them."""
        if not self._until:
            return frozenset()
        with self._lock:
            self._until = {broker: until for broker, until in self._until.items() if until > now}
            out = frozenset(broker for broker in brokers if broker in self._until)
        return frozenset() if len(out) == len(set(brokers)) else out


#: Bytes of a request reserved for everything but bodies: keys, offsets, the Arrow frame.
_FRAME_BYTES: Final = 1 * MIB


class SendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer batches, buffers and retries."""

    patience: Patience = msgspec.field(default_factory=Patience)
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


class ProducerStats(msgspec.Struct, frozen=True, kw_only=True):
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


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that every executor of one producer uses."""

    shell: Shell
    hosts: Hosts
    settings: SendSettings
    workers: Workers
    buffer: Buffer
    #: Set when the producer stops waiting at its close; it ends all retries.
    stop: Stop
    new_id: Callable[[], str]
    health: BrokerHealth = msgspec.field(default_factory=BrokerHealth)
    counters: Counters = msgspec.field(default_factory=Counters)


EXIT_S: Final = 30.0
#: pyarrow imports this module when it first encodes, which at the end of a program is too late.
_IMPORTED: Final = concurrent.futures.ThreadPoolExecutor
_buffers: Final[weakref.WeakSet[Buffer]] = weakref.WeakSet()


def flushed_at_exit(buffer: Buffer) -> None:
    """Wait at the end of the program until this buffer, of a producer with threads, is empty."""
    if not _buffers and "multiprocessing.process" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            util.Finalize(None, _flush_once, exitpriority=0)
    _buffers.add(buffer)


def _flush_once() -> None:
    """Flush all at the end of a child's work; one that was not forked ends as programs do after that."""
    flush_all()
    _buffers.clear()


def flush_all(within_s: float = EXIT_S) -> None:
    """Wait at most `within_s` until all buffers are empty, and log how many messages are left."""
    deadline = time.monotonic() + within_s
    left = sum(0 if run_now(buffer.wait_empty(deadline)) else buffer.messages for buffer in list(_buffers))
    if left:
        log.error(
            "event=ended_unsent messages=%d detail='the program ended %.0f s after its last send without close(): "
            "these may be lost'",
            left,
            within_s,
        )


atexit.register(flush_all)
# The parent sends what was queued before a fork.
in_child(_buffers.clear)
