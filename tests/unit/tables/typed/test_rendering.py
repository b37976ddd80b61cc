"""Columns as JSON, all rows at once, beside the same row by row."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.tables.typed.json.rendering import rendered, with_bodies
from deltamq.tables.typed.json.text import writer_of
from deltamq.tables.typed.node import TIMESTAMP
from deltamq.tables.typed.rows import rows_of

_DAYS = st.integers(date.min.toordinal() - 719_163, date.max.toordinal() - 719_163)
_MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
_EXACT = [
    0.0,
    -0.0,
    1.0,
    1e10,
    9999999999.5,
    1e-4,
    9.999e-5,
    1e15,
    1e16,
    999999999999999.9,
    123456789012345.6,
    5e-324,
    1e22,
    0.1,
    1 / 3,
]


def _wholes(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.integers(-(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1)


def _decimals(precision: int, scale: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1)
    return pa.decimal128(precision, scale), unscaled.map(lambda value: Decimal(f"{value}e-{scale}"))


_LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *((kind, _wholes(kind)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    (pa.float64(), st.floats() | st.sampled_from(_EXACT)),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), st.text(max_size=8) | st.sampled_from(['"', "\\", "\n", "\x7f", "ü", "\u2028", "😀"])),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), _DAYS.map(lambda day: date.fromordinal(day + 719_163))),
    (TIMESTAMP, _MICROS),
    *(_decimals(*kind) for kind in ((5, 2), (9, 0), (38, 6), (38, 7), (20, 20))),
]


@st.composite
def _typed(draw: st.DrawFn, depth: int = 3) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    form = draw(st.sampled_from(["leaf", "leaf", "struct", "list", "map"] if depth else ["leaf"]))
    if form == "leaf":
        kind, values = draw(st.sampled_from(_LEAVES))
        return kind, st.none() | values
    if form == "struct":
        return draw(_structs(depth - 1))
    kind, values = draw(_typed(depth - 1))
    if form == "list":
        return pa.list_(kind), st.none() | st.lists(values, max_size=3)
    return pa.map_(pa.string(), kind), st.none() | st.dictionaries(st.text(max_size=3), values, max_size=3).map(
        lambda pairs: list(pairs.items())
    )


@st.composite
def _structs(draw: st.DrawFn, depth: int = 3) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    names = draw(st.lists(st.sampled_from(["a", "b", 'c"', "größe"]), min_size=1, max_size=3, unique=True))
    parts = {name: draw(_typed(depth)) for name in names}
    kind = pa.struct([(name, part[0]) for name, part in parts.items()])
    return kind, st.none() | st.fixed_dictionaries({name: part[1] for name, part in parts.items()})


@st.composite
def _columns(draw: st.DrawFn) -> pa.StructArray:
    kind, values = draw(_structs())
    rows = pa.array(draw(st.lists(values, max_size=6)), kind)
    start = draw(st.integers(0, len(rows)))
    return rows.slice(start, draw(st.integers(0, len(rows) - start)))


@given(_columns())
def test_type_16_all_rows_at_once_are_what_each_row_is(values: pa.StructArray) -> None:
    write = writer_of(values.type)
    assert rendered(values).to_pylist() == [None if row is None else write(row).encode() for row in rows_of(values)]


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1.0"), (1e15, "1000000000000000.0"), (1e-5, "1e-05"), (-0.0, "-0.0")]
)
def test_type_16_a_double_has_the_fewest_digits_that_give_it_again(value: float, text: str) -> None:
    assert rendered(pa.array([{"x": value}])).to_pylist() == [b'{"x":%s}' % text.encode()]


def test_type_16_bodies_are_made_where_there_are_none() -> None:
    values = pa.chunked_array([pa.array([{"x": 1}, None]), pa.array([{"x": 3}])])
    rows = with_bodies(pa.table({"body": pa.chunked_array([pa.array([None, b"own", None])]), "value": values}))
    assert rows["body"].to_pylist() == [b'{"x":1}', b"own", b'{"x":3}']
