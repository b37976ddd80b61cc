"""Offsets by due time, with sixteen bytes for each: millions of delayed messages fit into memory.

Sorted blocks, each at least twice as large as the next, as in a log-structured merge tree: an offset that is added is
moved a logarithmic number of times, and what is due stands at the head of each block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Block:
    times: Int64s
    offsets: Int64s

    @classmethod
    def of(cls, times: Int64s, offsets: Int64s) -> _Block:
        order = np.lexsort((offsets, times))
        return cls(times[order], offsets[order])

    def cut(self, time_ms: int) -> _Block:
        """Remove what is due from this block and return it."""
        at = int(np.searchsorted(self.times, time_ms, side="right"))
        due = _Block(self.times[:at], self.offsets[:at])
        self.times, self.offsets = self.times[at:], self.offsets[at:]
        return due

    def __len__(self) -> int:
        return len(self.times)


class WaitingOffsets:
    """The offsets of one log that wait for their time. For one thread."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, times_ms: Int64s, offsets: Int64s) -> None:
        """Add offsets, each with the time at which it falls due."""
        if not len(offsets):
            return
        self._blocks.append(_Block.of(times_ms, offsets))
        while len(self._blocks) > 1 and len(self._blocks[-2]) < 2 * len(self._blocks[-1]):
            last, before = self._blocks.pop(), self._blocks.pop()
            times = np.concatenate([before.times, last.times])
            self._blocks.append(_Block.of(times, np.concatenate([before.offsets, last.offsets])))

    def take(self, now_ms: int) -> tuple[Int64s, Int64s]:
        """Remove what is due; return times and offsets, ascending by both."""
        due = [block.cut(now_ms) for block in self._blocks]
        self._blocks = [block for block in self._blocks if len(block)]
        if not due:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        sorted_due = _Block.of(
            np.concatenate([block.times for block in due]), np.concatenate([block.offsets for block in due])
        )
        return sorted_due.times, sorted_due.offsets
