"""What the data files of a partition hold, counted from their `offset` columns (SPEC MODEL-3).

It is told nothing but the names of the live files: what the log says of their rows is what is being checked. Every row
group that is read has its checksum checked, and one row group is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from mq.errors import Corrupt
from tables.delta import DataFile, FileReader, RowCache, Snapshot, load
from tables.paths import PartitionRef
from tables.store import Store

__all__ = ["Count", "Counted", "count_offsets", "finding_of"]

#: Nothing is read twice.
_CACHE_BYTES: Final = 1
#: Where offsets are not in sequence, distinct ones are counted in maps of so many places, of a byte each ...
_MAP_PLACES: Final = 1 << 13
#: ... and so many maps: a quarter of a gigabyte for damage of any kind.
_MAPS_MAX: Final = 1 << 15


@dataclass(slots=True)
class Count:
    """Rows, distinct offsets, the first and the last offset."""

    messages: int = 0
    first: int | None = None
    last: int | None = None
    maps_max: int = _MAPS_MAX
    #: Of what is in sequence so far, the next offset and how many there are.
    _next: int | None = None
    _distinct: int = 0
    #: The maps, from the first break of the sequence on.
    _seen: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def distinct(self) -> int:
        """How many different offsets there are."""
        return self._distinct + sum(int(bits.sum()) for bits in self._seen.values())

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Count some rows."""
        if len(offsets) == 0:
            return
        low, high = int(offsets.min()), int(offsets.max())
        self.messages += len(offsets)
        self.first = low if self.first is None else min(self.first, low)
        self.last = high if self.last is None else max(self.last, high)
        dense = high - low + 1 == len(offsets) and bool(np.array_equal(offsets, np.arange(low, high + 1)))
        if dense and not self._seen and self._next in (None, low):
            self._distinct, self._next = self._distinct + len(offsets), high + 1
        else:
            self._map(offsets)

    def _map(self, offsets: npt.NDArray[np.int64]) -> None:
        if not self._seen and self._distinct and self._next is not None:
            # What was dense so far goes into maps, too: what follows may repeat it.
            start, self._distinct = self._next - self._distinct, 0
            self._mark(np.arange(start, self._next))
        self._mark(offsets)

    def _mark(self, offsets: npt.NDArray[np.int64]) -> None:
        if len(self._seen) > self.maps_max:
            raise Corrupt("the offsets are so far apart that they cannot be counted")
        for number in np.unique(offsets // _MAP_PLACES):
            bits = self._seen.setdefault(int(number), np.zeros(_MAP_PLACES, dtype=np.bool_))
            bits[offsets[offsets // _MAP_PLACES == number] % _MAP_PLACES] = True


def count_offsets(store: Store, ref: PartitionRef) -> tuple[Snapshot, Count]:
    """Return a partition's newest state, and what its files hold of `[min_offset, end_offset)`.

    Raises
    ------
    PartitionNotFound
        There is no such partition, or no more.
    Corrupt
        Its log, or a file that it still names, cannot be believed.
    """
    while True:
        snapshot = load(store, ref.folder)
        try:
            return snapshot, _counted(store, ref, snapshot)
        except Corrupt:
            # A roll-up, a compaction or retention may have replaced a file, and its time may have passed.
            live = {file.path for file in load(store, ref.folder).files}
            if {file.path for file in snapshot.files} <= live:
                raise


def _counted(store: Store, ref: PartitionRef, snapshot: Snapshot) -> Count:
    reader = FileReader(store, ref.folder, RowCache(_CACHE_BYTES))
    found = Count()
    for file in snapshot.files:
        for offsets in _offsets(reader, file):
            found.add(offsets)
    return found


def _offsets(reader: FileReader, file: DataFile) -> Iterator[npt.NDArray[np.int64]]:
    for rows in reader.scan(file, ["offset"]):
        yield rows.column("offset").to_numpy()


class Counted(Protocol):
    """What was counted of a partition's rows, by whatever reader."""

    @property
    def messages(self) -> int: ...
    @property
    def distinct(self) -> int: ...
    @property
    def first(self) -> int | None: ...
    @property
    def last(self) -> int | None: ...


def finding_of(min_offset: int, end_offset: int, found: Counted) -> str:
    """Return what is wrong with the offsets of a partition; empty when nothing is."""
    expected = end_offset - min_offset
    if found.messages != found.distinct:
        return f"{found.messages - found.distinct} messages have an offset that another one has"
    if found.messages != expected:
        return f"{expected - found.messages} of the {expected} offsets before mq.offset have no message"
    if expected and (found.first, found.last) != (min_offset, end_offset - 1):
        return f"offsets are [{found.first}, {found.last}], not [{min_offset}, {end_offset - 1}]"
    return ""
