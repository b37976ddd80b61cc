"""The pages of a column of maps of text, such as a message's headers, for files of few rows (`small_parquet.py`).

    row             repetition   definition                    values
    null            0            0
    no entries      0            1
    {a: x, b: null} 0 1          key 2 2, value 3 2            key a b, value x

All levels of a page lie in one run of packed bits, or in one repeated level: numpy makes either without a look at
single entries.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.tables.delta.varints import varint

#: Definition levels of a key, and of a value that is not null; two more are a null map and one without entries.
_KEY: Final = 2
_VALUE: Final = 3
#: Levels that a run of packed bits holds are a multiple of this.
_PACK: Final = 8


class MapPages(NamedTuple):
    """What the two leaves of a column of maps hold."""

    key_levels: bytes
    keys: pa.Array
    value_levels: bytes
    values: pa.Array  #: without nulls
    entries: int  #: levels of each leaf: one for each entry, and for each row without any


def map_pages(column: pa.MapArray) -> MapPages | None:
    """Return the pages' levels and values of a column of maps; None if a null row has entries in the buffers."""
    ends = np.asarray(column.offsets)
    lengths = np.diff(ends)
    valid = np.asarray(column.is_valid())
    if lengths[~valid].any():
        return None
    low, count = int(ends[0]), int(ends[-1] - ends[0])
    keys, values = column.keys.slice(low, count), column.items.slice(low, count)
    slots = np.maximum(lengths, 1)
    firsts = np.cumsum(slots) - slots
    entries = int(slots.sum())
    repetition = np.ones(entries, dtype=np.uint8)
    repetition[firsts] = 0
    bare = lengths == 0
    is_entry = np.ones(entries, dtype=bool)
    is_entry[firsts[bare]] = False
    definition = np.empty(entries, dtype=np.uint8)
    definition[firsts[bare]] = valid[bare]
    definition[is_entry] = _KEY
    repeated = _levels(repetition, 1)
    key_levels = repeated + _levels(definition, 2)
    definition[is_entry] = np.where(np.asarray(values.is_valid()), _VALUE, _KEY)
    return MapPages(key_levels, keys, repeated + _levels(definition, 2), values.drop_null(), entries)


def _levels(levels: NDArray[np.uint8], width: int) -> bytes:
    """Return levels of `width` bits as Parquet's hybrid of runs has them, behind their length in bytes."""
    count = len(levels)
    if (levels == levels[0]).all():
        run = varint(count << 1) + bytes((int(levels[0]),))
    else:
        groups = -(-count // _PACK)
        padded = np.zeros(groups * _PACK, dtype=np.uint8)
        padded[:count] = levels
        bits = padded if width == 1 else np.stack((padded & 1, padded >> 1), axis=1).ravel()
        run = varint(groups << 1 | 1) + np.packbits(bits, bitorder="little").tobytes()
    return len(run).to_bytes(4, "little") + run
