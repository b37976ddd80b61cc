"""What a consumer reports of its work (SPEC CONS-6): hooks around handlers and listeners, and statistics.

Hooks get a handler's ending. Rates and times cover the last minute, counts begin when the consumer is made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

log = logging.getLogger("deltamq.client")

#: Default of the seconds after which a handler's ending is `TIMED_OUT`.
CONSUME_TIMEOUT_S: Final = 900.0


class HandlerEnd(StrEnum):
    """How a handler or a listener ended."""

    SUCCESS = "success"
    #: It returned that some message is to come again, or is dead.
    FAILED = "failed"
    #: It raised an exception, or returned something else than a result.
    EXCEPTION = "exception"
    #: A listener returned None, which is not a verdict; the messages come again.
    NOTHING = "nothing"
    #: It ended with a result, and took longer than the consumer's `consume_timeout_s`.
    TIMED_OUT = "timed_out"


class Ending(msgspec.Struct, frozen=True):
    """How a handler's run ended, for `after` hooks."""

    how: HandlerEnd
    took_ms: float
    error: BaseException | None = None


def ending_of(
    error: BaseException | None, took_s: float, timeout_s: float, *, success: bool, nothing: bool = False
) -> Ending:
    """Return the ending of a run that took `took_s` seconds; `nothing` if it returned none of the results."""
    took_ms = took_s * 1000
    if error is not None:
        return Ending(HandlerEnd.EXCEPTION, took_ms, error)
    if nothing:
        return Ending(HandlerEnd.NOTHING, took_ms)
    if took_s >= timeout_s:
        return Ending(HandlerEnd.TIMED_OUT, took_ms)
    return Ending(HandlerEnd.SUCCESS if success else HandlerEnd.FAILED, took_ms)


def call_hook(hook: Callable[..., object] | None, *arguments: object) -> None:
    """Call a hook, if there is one; its failure is logged, and changes nothing."""
    if hook is None:
        return
    try:
        hook(*arguments)
    except Exception:
        log.exception("event=hook_failed")


_WINDOW_S: Final = 60


class ConsumerStats(msgspec.Struct, frozen=True, kw_only=True):
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
            self._seconds = [bucket for bucket in self._seconds if bucket.second > second - _WINDOW_S]
            self._seconds.append(_Second(second))
        return self._seconds[-1]

    def read(self, *, expired: int, renewals: int, held: int) -> ConsumerStats:
        """Return the statistics of this moment."""
        with self._lock:
            now = time.monotonic()
            self._second(now)
            seconds = self._seconds
            span_s = max(1.0, min(float(_WINDOW_S), now - self._began))
            handled = sum(second.handled for second in seconds)
            born = sum(second.born_messages for second in seconds)
            return ConsumerStats(
                ok_rate=sum(second.ok for second in seconds) / span_s,
                failed_rate=sum(second.failed for second in seconds) / span_s,
                consume_ms_mean=sum(second.consume_sum for second in seconds) / handled if handled else None,
                consume_ms_max=max(second.consume_max for second in seconds) if handled else None,
                born_to_consumed_ms_mean=sum(second.born_sum for second in seconds) / born if born else None,
                born_to_consumed_ms_max=max(second.born_max for second in seconds) if born else None,
                expired=expired,
                renewals=renewals,
                held=held,
                **self._counts,
            )
