"""Columns as JSON, all rows of a leaf at once (SPEC TYPE-16).

`text.py` has the form, and writes the same row by row.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.tables.typed.json.text import Write, json_string, writer_of
from deltamq.tables.typed.rows import rows_of
from deltamq.tables.typed_row import VALUE

#: Signs that a string of JSON has only escaped.
_ESCAPED: Final = r'["\\\x00-\x1f]'
#: Arrow writes a number as Python does between these powers of ten, and a decimal up to this scale.
_PLAIN_FROM: Final = 1e-4
_PLAIN_TO: Final = 1e10
_PLAIN_SCALE: Final = 6

_Texts = Callable[[pa.Array], pa.StringArray]
_NULL: Final = pa.scalar(None, pa.string())


def rendered(values: pa.StructArray) -> pa.BinaryArray:
    """Return values as JSON; null for null."""
    return _texts(values).cast(pa.binary())


def with_bodies(rows: pa.Table) -> pa.Table:
    """Return rows whose missing bodies are made of their column `value`."""
    at, value_at = rows.schema.get_field_index("body"), rows.schema.get_field_index(VALUE)
    if at < 0 or value_at < 0 or not rows.column(at).null_count:
        return rows
    values = [rendered(chunk) for chunk in rows.column(value_at).chunks]
    bodies = pc.coalesce(rows.column(at), pa.chunked_array(values, pa.binary()))
    return rows.set_column(at, rows.schema.field(at), bodies)


def _texts(values: pa.Array) -> pa.StringArray:
    """Return the JSON of each value; null for null."""
    kind = values.type
    if pa.types.is_struct(kind):
        texts = _structs(values)
    elif pa.types.is_map(kind):
        texts = _maps(values)
    elif pa.types.is_list(kind):
        texts = _lists(values, _texts(values.flatten()), "[", "]")
    else:
        return _leaves(values)
    return pc.if_else(values.is_valid(), texts, _NULL) if values.null_count else texts


def _structs(values: pa.StructArray) -> pa.StringArray:
    fields = [
        pc.binary_join_element_wise(f"{json_string(field.name)}:", _texts(column), "")
        for field, column in zip(values.type, values.flatten(), strict=True)
    ]
    if all(field.null_count for field in fields):
        # A row that has no field is left out by Arrow's join, unless one of its texts is empty.
        is_empty = functools.reduce(pc.and_, (field.is_null() for field in fields))
        fields[0] = pc.if_else(is_empty, "", fields[0])
    return _between("{", pc.binary_join_element_wise(*fields, ",", null_handling="skip"), "}")


def _maps(values: pa.MapArray) -> pa.StringArray:
    # A map's own keys and items are those of its whole buffers, whatever slice of them it is.
    kind = pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)]))
    entries = values.cast(kind)
    keys, items = entries.flatten().flatten()
    pairs = pc.binary_join_element_wise(_texts(keys), pc.fill_null(_texts(items), "null"), ":")
    return _lists(entries, pairs, "{", "}")


def _lists(values: pa.ListArray, items: pa.StringArray, begin: str, end: str) -> pa.StringArray:
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int32)), dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pc.fill_null(items, "null"))
    return _between(begin, pc.binary_join(lists, ","), end)


def _between(begin: str, texts: pa.StringArray, end: str) -> pa.StringArray:
    return pc.binary_join_element_wise(begin, texts, end, "")


# Leaves.


def _leaves(values: pa.Array) -> pa.StringArray:
    kind = values.type
    if pa.types.is_floating(kind):
        return _numbers(values)
    if pa.types.is_string(kind):
        return _mended(values, _between('"', values, '"'), pc.match_substring_regex(values, _ESCAPED))
    if pa.types.is_decimal(kind):
        return (_quoted if 0 <= kind.scale <= _PLAIN_SCALE else _by_row)(values)
    return _LEAVES.get(kind.id, _by_row)(values)


def _numbers(values: pa.Array) -> pa.StringArray:
    """Return doubles or floats: whole ones end with `.0`, very large and small ones have an exponent."""
    texts, size = values.cast(pa.string()), pc.abs(values)
    texts = pc.if_else(pc.match_substring(texts, "."), texts, pc.binary_join_element_wise(texts, ".0", ""))
    is_plain = pc.or_(pc.and_(pc.greater_equal(size, _PLAIN_FROM), pc.less(size, _PLAIN_TO)), pc.equal(size, 0.0))
    return _mended(values, texts, pc.invert(is_plain))


def _mended(values: pa.Array, texts: pa.StringArray, odd: pa.BooleanArray) -> pa.StringArray:
    """Return texts with those of `odd` values written one by one."""
    odd = pc.fill_null(odd, False)
    if not pc.any(odd).as_py():
        return texts
    return pc.replace_with_mask(texts, odd, _by_row(values.filter(odd)))


def _by_row(values: pa.Array) -> pa.StringArray:
    write: Write = writer_of(values.type)
    return pa.array([None if row is None else write(row) for row in rows_of(values)], pa.string())


def _base64(values: pa.BinaryArray) -> pa.StringArray:
    texts = [None if value is None else f'"{base64.b64encode(value).decode()}"' for value in values.to_pylist()]
    return pa.array(texts, pa.string())


def _timestamps(values: pa.TimestampArray) -> pa.StringArray:
    texts = values.cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise('"', pc.replace_substring(texts, " ", "T"), 'Z"', "")


def _quoted(values: pa.Array) -> pa.StringArray:
    return _between('"', values.cast(pa.string()), '"')


_bare: Final = functools.partial(pc.cast, target_type=pa.string())
_LEAVES: Final[dict[int, _Texts]] = {
    **{kind.id: _bare for kind in (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.binary().id: _base64,
    pa.date32().id: _quoted,
    pa.timestamp("us").id: _timestamps,
}
