"""Items by due time, in coarse buckets: adding and removing take constant time, whatever the number of items."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from deltamq.mq.limits import BUCKET_MS

Item = TypeVar("Item", bound=Hashable)


class DueTimes(Generic[Item]):
    """Items by due time; each is taken at most one bucket's width late, never early.

    Items of one bucket keep the order in which they were added, so that the same calls give the same results.
    """

    __slots__ = ("_buckets", "_heap", "_width_ms")

    def __init__(self, *, width_ms: int = BUCKET_MS) -> None:
        self._width_ms = width_ms
        self._buckets: dict[int, dict[Item, None]] = {}
        #: The numbers of the buckets; an empty bucket stays until its time.
        self._heap: list[int] = []

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def bucket_of(self, time_ms: int) -> int:
        """Return the bucket of `time_ms`: the first one that begins at or after it."""
        return -(-time_ms // self._width_ms)

    def items(self, bucket: int) -> dict[Item, None]:
        """Return the items of a bucket; the caller may add to them."""
        items = self._buckets.get(bucket)
        if items is None:
            items = self._buckets[bucket] = {}
            heappush(self._heap, bucket)
        return items

    def add(self, item: Item, time_ms: int) -> int:
        """Add `item`, due at `time_ms`; return its bucket."""
        bucket = self.bucket_of(time_ms)
        self.items(bucket)[item] = None
        return bucket

    def discard(self, item: Item, bucket: int) -> None:
        """Remove `item` from its bucket, if it is still there."""
        items = self._buckets.get(bucket)
        if items is not None:
            items.pop(item, None)

    def take(self, now_ms: int) -> list[Item]:
        """Remove and return everything that is due at `now_ms`, the earliest bucket first."""
        due: list[Item] = []
        while self._heap and self._heap[0] * self._width_ms <= now_ms:
            due += self._buckets.pop(heappop(self._heap))
        return due

    def take_all(self) -> list[Item]:
        """Remove and return everything, the earliest bucket first."""
        due: list[Item] = []
        while self._heap:
            due += self._buckets.pop(heappop(self._heap))
        return due
