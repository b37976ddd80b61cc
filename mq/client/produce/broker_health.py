"""Brokers that messages without a key avoid for a while (SPEC SEND-4).

RocketMQ's rule: after a slow answer or a failure, the random choice avoids the broker, for longer the slower it was.
Keyed messages are never moved (ROUTE-5), and if all brokers would be avoided, none is.

    answered in    < 550 ms    550 ms    1 s     2 s     3 s     5 s     15 s or failed
    avoided for    -           2 s       5 s     6 s     10 s    30 s    60 s
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final

_AVOIDED: Final = ((15.0, 60.0), (5.0, 30.0), (3.0, 10.0), (2.0, 6.0), (1.0, 5.0), (0.55, 2.0))
FAILED_S: Final = 3.0


def avoided_s(latency_s: float) -> float:
    """Return the seconds for which a broker that took `latency_s` to answer is avoided."""
    return next((rest_s for slow_s, rest_s in _AVOIDED if latency_s >= slow_s), 0.0)


class BrokerHealth:
    """The brokers avoided now. Times are seconds of a monotonic clock."""

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
        """Return those of `brokers` to avoid now; none if that would be all of them."""
        if not self._until:
            return frozenset()
        with self._lock:
            self._until = {broker: until for broker, until in self._until.items() if until > now}
            out = frozenset(broker for broker in brokers if broker in self._until)
        return frozenset() if len(out) == len(set(brokers)) else out
