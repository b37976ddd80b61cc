"""A set of offsets, stored as half-open ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class OffsetRanges:
    """A set of offsets as ranges `[low, high)` that ascend and do not touch; memory grows with the number of gaps."""

    __slots__ = ("_highs", "_lows")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in ranges:
            self.add(low, high)

    def add(self, low: int, high: int) -> None:
        """Add `[low, high)`; ranges that touch it are joined with it."""
        if low >= high:
            return
        first = bisect_left(self._highs, low)
        last = bisect_right(self._lows, high)
        if first < last:
            low = min(low, self._lows[first])
            high = max(high, self._highs[last - 1])
        self._lows[first:last] = [low]
        self._highs[first:last] = [high]

    def drop_below(self, offset: int) -> None:
        """Forget everything below `offset`."""
        gone = bisect_right(self._highs, offset)
        del self._lows[:gone], self._highs[:gone]
        if self._lows and self._lows[0] < offset:
            self._lows[0] = offset

    def gap_from(self, offset: int) -> int:
        """Return the first offset at or after `offset` that is not in the set."""
        at = bisect_right(self._lows, offset) - 1
        return self._highs[at] if at >= 0 and self._highs[at] > offset else offset

    def next_from(self, offset: int) -> int | None:
        """Return the first offset at or after `offset` that is in the set; None when there is none."""
        at = bisect_right(self._highs, offset)
        return max(self._lows[at], offset) if at < len(self._lows) else None

    def gaps(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `[low, high)` that are not in the set, ascending."""
        while (at := self.gap_from(low)) < high:
            following = self.next_from(at)
            low = high if following is None else min(following, high)
            yield at, low

    def __contains__(self, offset: int) -> bool:
        return self.gap_from(offset) != offset

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._lows, self._highs, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._lows)
