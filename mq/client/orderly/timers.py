"""Calls that are due at a time; the scheduler thread makes them."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from deltamq.mq.client.orderly.work import monotonic_ms


class Timers:
    """A heap of calls. Safe for any number of threads. It calls `poke` when the next time may have changed."""

    def __init__(self, poke: Callable[[], None]) -> None:
        self._poke = poke
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        #: Calls of one time are made in the order in which they came; calls themselves cannot be compared.
        self._numbers = itertools.count()

    def at(self, due_ms: int, call: Callable[[], None]) -> None:
        """Make a call at a time of `monotonic_ms`."""
        with self._lock:
            heapq.heappush(self._waiting, (due_ms, next(self._numbers), call))
        self._poke()

    def tick(self) -> None:
        """Make the calls that are due."""
        due = []
        with self._lock:
            while self._waiting and self._waiting[0][0] <= monotonic_ms():
                due.append(heapq.heappop(self._waiting)[2])
        for call in due:
            call()

    def next_ms(self) -> int | None:
        """Return when the next call is due."""
        with self._lock:
            return self._waiting[0][0] if self._waiting else None
