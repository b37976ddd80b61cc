"""A count of the offsets in a partition's data files, from their `offset` columns (SPEC MODEL-3).

Only the names of the live files come from the log, because what the log says about their rows is being checked. The
checksum of every row group is checked, and one row group is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.snapshot import Snapshot, load
from deltamq.tables.paths import PartitionRef
from deltamq.tables.store.store import Store

#: Size of the cache: nothing is read twice, so nothing is kept.
_CACHE_BYTES: Final = 1
#: Where offsets are not in sequence, distinct ones are counted in maps with this many places of a byte each ...
_MAP_PLACES: Final = 1 << 13
#: ... and with at most this many maps: a quarter of a gigabyte for any kind of damage.
_MAPS_MAX: Final = 1 << 15


class Count(msgspec.Struct):
    """The number of rows and of distinct offsets, and the first and the last offset."""

    messages: int = 0
    first: int | None = None
    last: int | None = None
    maps_max: int = _MAPS_MAX
    #: While all offsets are in sequence: the next offset, and the number of offsets so far.
    _next: int | None = None
    _distinct: int = 0
    #: The maps by number, used from the first break in the sequence on.
    _seen: dict[int, npt.NDArray[np.bool_]] = msgspec.field(default_factory=dict)

    @property
    def distinct(self) -> int:
        """The number of distinct offsets."""
        return self._distinct + sum(int(bits.sum()) for bits in self._seen.values())

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Count the rows with these offsets."""
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
            # The offsets in sequence so far go into maps, too: later ones may repeat them.
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
    """Return a partition's newest state, and the count of the offsets in its live files.

    Raises
    ------
    PartitionNotFound
        The partition does not exist, or no longer exists.
    Corrupt
        Its log, or a file that the log still names, is damaged.
    """
    while True:
        snapshot = load(store, ref.folder)
        try:
            return snapshot, _counted(store, ref, snapshot)
        except Corrupt:
            # A roll-up, a compaction or retention may have removed a file, which may be deleted by now.
            live = {file.path for file in load(store, ref.folder).files}
            if {file.path for file in snapshot.files} <= live:
                raise


def _counted(store: Store, ref: PartitionRef, snapshot: Snapshot) -> Count:
    reader = FileReader(store, ref.folder, RowCache(_CACHE_BYTES))
    count = Count()
    for file in snapshot.files:
        for offsets in _offsets(reader, file):
            count.add(offsets)
    return count


def _offsets(reader: FileReader, file: DataFile) -> Iterator[npt.NDArray[np.int64]]:
    for rows in reader.scan(file, ["offset"]):
        yield rows.column("offset").to_numpy()


class RowCount(Protocol):
    """A count of a partition's rows, by any reader."""

    @property
    def messages(self) -> int: ...
    @property
    def distinct(self) -> int: ...
    @property
    def first(self) -> int | None: ...
    @property
    def last(self) -> int | None: ...


def finding_of(min_offset: int, end_offset: int, counted: RowCount) -> str:
    """Return what is wrong with the offsets of a partition; an empty string if nothing is."""
    expected = end_offset - min_offset
    if counted.messages != counted.distinct:
        return f"{counted.messages - counted.distinct} messages have an offset that another message has, too"
    if counted.messages != expected:
        return f"{expected - counted.messages} of the {expected} offsets before mq.offset have no message"
    if expected and (counted.first, counted.last) != (min_offset, end_offset - 1):
        return f"offsets are [{counted.first}, {counted.last}], not [{min_offset}, {end_offset - 1}]"
    return ""
