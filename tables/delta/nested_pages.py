"""The pages of nested columns for files of few rows (`small_parquet.py`): levels and values of each leaf.

A leaf has a level for each place where a value could be. Its definition level says how deep the value, or the last
thing around it that is not null, lies; its repetition level, at which list a place goes on:

    value.tags of three rows       null      []       [a, null]
    repetition                     0         0        0 1
    definition (of 4)              1 (tags)  2 ([])   4 3            values: a
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.tables.delta.varints import varint

Levels = NDArray[np.uint8]
Places = NDArray[np.int64]
#: Levels that a run of packed bits holds are a multiple of this.
_PACK: Final = 8
#: Levels up to this many bits are packed.
_BITS_MAX: Final = 8
#: Lists whose levels are written one by one.
_FEW_LISTS: Final = 16


class LeafPage(NamedTuple):
    """What a leaf's page holds behind its header."""

    levels: bytes
    values: pa.Array  #: without nulls
    places: int  #: how many levels of each kind it has


class _Places(NamedTuple):
    """The places of a node: their levels so far, and which of them have an element of the node's array."""

    repetition: Levels | None  #: None without a list around
    definition: Levels
    live: Places | None  #: None: all places
    level: int  #: the definition level of what is around
    lists: int  #: how many lists are around


def leaf_pages(column: pa.Array, level: int) -> list[LeafPage]:
    """Return the pages of a column that may be null, inside of `level` structs without nulls, leaf by leaf."""
    simple = _simple_list(column, level) if pa.types.is_list(column.type) else None
    if simple is not None:
        return [simple]
    pages: list[LeafPage] = []
    _walk(column, _Places(None, np.full(len(column), level, np.uint8), None, level, 0), pages)
    return pages


def _walk(column: pa.Array, at: _Places, pages: list[LeafPage]) -> None:
    kind = column.type
    if pa.types.is_struct(kind):
        valid, below = _present(column, at)
        for number in range(kind.num_fields):
            field = column.field(number)
            _walk(
                field if valid is None else field.filter(valid),
                below._replace(definition=below.definition.copy()),
                pages,
            )
    elif pa.types.is_list(kind):
        column = _without_hidden(column)
        below, low, high = _repeated(column, at)
        _walk(column.values.slice(low, high - low), below, pages)
    elif pa.types.is_map(kind):
        column = _without_hidden(column)
        below, low, high = _repeated(column, at)
        keys = below._replace(definition=below.definition.copy())
        pages.append(_page(keys, keys.level, column.keys.slice(low, high - low)))
        _walk(column.items.slice(low, high - low), below, pages)
    else:
        _, below = _present(column, at)
        pages.append(_page(below, below.level, column.drop_null() if column.null_count else column))


def _present(column: pa.Array, at: _Places) -> tuple[pa.Array | None, _Places]:
    """Raise the level of places whose element is not null; return these elements, None for all."""
    if not column.null_count:
        _raise(at.definition, at.live)
        return None, at._replace(level=at.level + 1)
    valid = column.is_valid()
    mask = np.asarray(valid)
    live = np.flatnonzero(mask) if at.live is None else at.live[mask]
    at.definition[live] += 1
    return valid, at._replace(live=live, level=at.level + 1)


def _raise(definition: Levels, live: Places | None) -> None:
    if live is None:
        definition += 1
    else:
        definition[live] += 1


def _simple_list(column: pa.ListArray, level: int) -> LeafPage | None:
    """Return the page of lists of values without any null or empty list, the same as `_walk` makes in more steps."""
    values = column.values
    if column.null_count or pa.types.is_nested(values.type):
        return None
    ends = column.offsets
    values = values.slice(first := ends[0].as_py(), ends[-1].as_py() - first)
    repetition = (_few if len(column) <= _FEW_LISTS else _many)(ends)
    if values.null_count or repetition is None:
        return None
    definition = _behind_length(varint(len(values) << 1) + bytes((level + 3,)))
    return LeafPage(repetition + definition, values, len(values))


def _few(ends: pa.Int32Array) -> bytes | None:
    """Return the repetition levels of lists run by run, faster than numpy begins; None if one is empty."""
    sizes = [high - low for low, high in pairwise(ends.to_pylist())]
    if not all(sizes):
        return None
    runs = [b"\x02\0" + (varint(size - 1 << 1) + b"\x01" if size > 1 else b"") for size in sizes]
    return _behind_length(b"".join(runs))


def _many(ends: pa.Int32Array) -> bytes | None:
    places = np.asarray(ends)
    if not np.diff(places).all():
        return None
    levels = np.ones(places[-1] - places[0], np.uint8)
    levels[places[:-1] - places[0]] = 0
    return _encoded(levels, 1)


def _behind_length(run: bytes) -> bytes:
    return len(run).to_bytes(4, "little") + run


def _without_hidden(column: pa.Array) -> pa.Array:
    """Return a column of lists whose nulls have no elements in the buffers."""
    if not column.null_count:
        return column
    lengths = np.diff(np.asarray(column.offsets))
    is_clean = not lengths[np.asarray(column.is_null())].any()
    return column if is_clean else column.take(pa.array(np.arange(len(column))))


def _repeated(column: pa.Array, at: _Places) -> tuple[_Places, int, int]:
    """Return the places of a list's elements, and which of its elements they are: nulls have none."""
    ends = np.asarray(column.offsets)
    lengths = np.diff(ends).astype(np.int64)
    _, present = _present(column, at)
    places = len(at.definition)
    sizes = np.zeros(places, np.int64)
    if at.live is None:
        sizes[:] = lengths
    else:
        sizes[at.live] = lengths
    slots = np.maximum(sizes, 1)
    firsts = np.cumsum(slots) - slots
    definition = np.repeat(present.definition, slots)
    repetition = np.full(int(slots.sum()), at.lists + 1, np.uint8)
    repetition[firsts] = 0 if at.repetition is None else at.repetition
    is_element = np.repeat(sizes > 0, slots)
    live = np.flatnonzero(is_element)
    definition[live] += 1
    below = _Places(repetition, definition, live, at.level + 2, at.lists + 1)
    return below, int(ends[0]), int(ends[-1])


def _page(at: _Places, level_max: int, values: pa.Array) -> LeafPage:
    levels = _encoded(at.definition, level_max)
    if at.repetition is not None:
        levels = _encoded(at.repetition, at.lists) + levels
    return LeafPage(levels, values, len(at.definition))


def _encoded(levels: Levels, level_max: int) -> bytes:
    """Return levels as Parquet's hybrid of runs has them, behind their length in bytes: one run of either kind."""
    count, width = len(levels), level_max.bit_length()
    first = int(levels[0]) if count else 0
    if not count or (levels == first).all():
        run = varint(count << 1) + bytes((first,))
    else:
        groups = -(-count // _PACK)
        padded = np.zeros(groups * _PACK, np.uint8)
        padded[:count] = levels
        bits = padded if width == 1 else (padded[:, None] >> np.arange(width, dtype=np.uint8)) & 1
        run = varint(groups << 1 | 1) + np.packbits(bits.ravel(), bitorder="little").tobytes()
    return _behind_length(run)


def plain_values(column: pa.Array) -> bytes | None:
    """Return values without nulls in Parquet's plain encoding; None for texts, which have an encoding of their own."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return None
    if pa.types.is_boolean(kind):
        return np.packbits(np.asarray(column.cast(pa.uint8())), bitorder="little").tobytes()
    data = column.buffers()[1]
    if data is None or not len(column):
        return b""
    width = kind.bit_width // 8
    raw = np.frombuffer(data, np.uint8)[column.offset * width : (column.offset + len(column)) * width]
    if pa.types.is_decimal(kind):
        size = decimal_bytes(kind.precision)
        return raw.reshape(-1, width)[:, size - 1 :: -1].tobytes()
    if width < 4:
        return np.asarray(column.cast(pa.int32())).tobytes()
    return raw.tobytes()


def decimal_bytes(precision: int) -> int:
    """Return how many bytes pyarrow gives a decimal of this precision."""
    return (int(10**precision - 1).bit_length() + 8) // 8
