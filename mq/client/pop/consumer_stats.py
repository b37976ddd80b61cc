"""A consumer's statistics: rates and times over the last minute, and counts since it was made (SPEC CONS-6)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

_WINDOW_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats:
    """The statistics of a consumer at one moment.

    Rates are messages a second, times milliseconds, both over the last minute; a time is None when nothing was
    handled. `born_to_consumed_ms` ends when the handler begins. The counts begin when the consumer is made.
    """

    ok_rate: float
    failed_rate: float
    consume_ms_mean: float | None
    consume_ms_max: float | None
    born_to_consumed_ms_mean: float | None
    born_to_consumed_ms_max: float | None
    #: Popped messages; of these, handled with success, sent back, sent to the dead letters, released unhandled.
    received: int
    ok: int
    retried: int
    dead: int
    released: int
    #: Messages settled after, or at about, the end of their invisible time: they are, or may be, delivered again.
    expired: int
    renewals: int
    pops: int
    failed_pops: int
    #: Messages held now, being handled or waiting for a handler.
    held: int


class _Second:
    """The sums of one second."""

    __slots__ = (
        "born_max",
        "born_messages",
        "born_sum",
        "consume_max",
        "consume_sum",
        "failed",
        "handled",
        "ok",
        "second",
    )

    def __init__(self, second: int) -> None:
        self.second = second
        self.ok = self.failed = self.handled = self.born_messages = 0
        self.consume_sum = self.consume_max = self.born_sum = self.born_max = 0.0


class ConsumerCounters:
    """Adds up what handlers did, with one update for each run of a handler."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: list[_Second] = []
        self._began = time.monotonic()
        self._counts = dict.fromkeys(("received", "ok", "retried", "dead", "released", "pops", "failed_pops"), 0)

    def add(self, **counts: int) -> None:
        """Add to the named counts."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def handled(self, *, ok: int, retried: int, dead: int, consume_ms: float, born_ms: float | None) -> None:
        """Count a handler's run of `consume_ms`; `born_ms` is the age of the oldest message at its begin."""
        with self._lock:
            self._counts["ok"] += ok
            self._counts["retried"] += retried
            self._counts["dead"] += dead
            now = self._second(time.monotonic())
            now.ok += ok
            now.failed += retried + dead
            now.handled += 1
            now.consume_sum += consume_ms
            now.consume_max = max(now.consume_max, consume_ms)
            if born_ms is not None:
                now.born_messages += 1
                now.born_sum += born_ms
                now.born_max = max(now.born_max, born_ms)

    def _second(self, now: float) -> _Second:
        """Return the bucket of the current second, and drop those outside the window."""
        second = int(now)
        if not self._seconds or self._seconds[-1].second != second:
            self._seconds = [one for one in self._seconds if one.second > second - _WINDOW_S]
            self._seconds.append(_Second(second))
        return self._seconds[-1]

    def read(self, *, expired: int, renewals: int, held: int) -> ConsumerStats:
        """Return the statistics of this moment."""
        with self._lock:
            now = time.monotonic()
            self._second(now)
            seconds = self._seconds
            span_s = max(1.0, min(float(_WINDOW_S), now - self._began))
            handled = sum(one.handled for one in seconds)
            born = sum(one.born_messages for one in seconds)
            return ConsumerStats(
                ok_rate=sum(one.ok for one in seconds) / span_s,
                failed_rate=sum(one.failed for one in seconds) / span_s,
                consume_ms_mean=sum(one.consume_sum for one in seconds) / handled if handled else None,
                consume_ms_max=max(one.consume_max for one in seconds) if handled else None,
                born_to_consumed_ms_mean=sum(one.born_sum for one in seconds) / born if born else None,
                born_to_consumed_ms_max=max(one.born_max for one in seconds) if born else None,
                expired=expired,
                renewals=renewals,
                held=held,
                **self._counts,
            )
