"""Calls of an object store, counted by operation, as the cloud's bill does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from deltamq.mq.prices import STORE_OPERATIONS, Calls

#: obstore puts what is larger in parts of this size, between two more calls, and gets ranges nearer than that as one.
_PART_BYTES: Final = 5 << 20
_NEAR_BYTES: Final = 1 << 20
#: Entries of one answer to a list.
_PAGE: Final = 1_000
#: The last minutes are counted from a mark that is one to two of these old.
_MARK_S: Final = 60.0


class CallsSoFar(msgspec.Struct, frozen=True):
    """Calls by operation since the store was opened, and in its last one or two minutes."""

    seconds: float
    calls: Mapping[str, Calls]
    recent_seconds: float
    recent: Mapping[str, Calls]
    #: Of all calls those that failed, or were late and given up.
    failures: Mapping[str, int]


class CallCounts:
    """Counts the calls of a store and the bytes of their objects. Safe for threads; a call costs a microsecond.

    What the store's client repeats by itself after a failure is not seen here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = dict.fromkeys(STORE_OPERATIONS, Calls())
        self._failures = dict.fromkeys(STORE_OPERATIONS, 0)
        self._opened = clock()
        #: Two moments, and the calls until then: the older one is the beginning of the last minutes.
        self._marks = ((self._opened, dict(self._calls)),) * 2

    def count(self, operation: str, nbytes: int = 0, *, requests: int = 1) -> None:
        """Count requests when they begin, since failures are charged, too."""
        with self._lock:
            self._mark()
            before = self._calls[operation]
            self._calls[operation] = Calls(before.requests + requests, before.bytes + nbytes)

    def count_failure(self, operation: str) -> None:
        """Count a call that failed, or that was given up since another one beside it was answered, or none was."""
        with self._lock:
            self._failures[operation] += 1

    def count_put(self, nbytes: int) -> None:
        """Count a put, which goes in parts if it is large."""
        parts = -(-nbytes // _PART_BYTES)
        self.count("put", nbytes, requests=1 if parts <= 1 else parts + 2)

    def count_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Count what reading byte ranges asks for: near ones are one request, with what lies between them."""
        requests, nbytes, end = 0, 0, -1 - _NEAR_BYTES
        for start, stop in sorted(ranges):
            if start > end + _NEAR_BYTES:
                requests, nbytes, end = requests + 1, nbytes + stop - start, stop
            elif stop > end:
                nbytes, end = nbytes + stop - end, stop
        self.count("get", nbytes, requests=requests)

    def count_list(self, entries: int) -> None:
        """Count a list with so many entries, which comes in pages."""
        self.count("list", requests=1 + max(0, entries - 1) // _PAGE)

    def so_far(self) -> CallsSoFar:
        """Return the counts up to now."""
        with self._lock:
            self._mark()
            now, calls, (marked, before) = self._clock(), dict(self._calls), self._marks[0]
            failures = dict(self._failures)
        recent = {
            name: Calls(done.requests - before[name].requests, done.bytes - before[name].bytes)
            for name, done in calls.items()
        }
        return CallsSoFar(now - self._opened, calls, now - marked, recent, failures)

    def _mark(self) -> None:
        if (now := self._clock()) - self._marks[1][0] >= _MARK_S:
            self._marks = (self._marks[1], (now, dict(self._calls)))
