"""Nested columns of few rows, written without pyarrow: pyarrow reads what was there."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.tables.delta.native_parquet import native_writer
from deltamq.tables.delta.small_parquet import encode_few_stamped
from deltamq.tables.delta.stamped import RowsPart, Stamped
from deltamq.tables.delta.typed_stats import _FEW_ROWS, joined_typed, typed_bounds

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.timestamp("us", tz="UTC"): st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
    pa.decimal128(3, 1): st.integers(-999, 999).map(lambda number: Decimal(number) / 10),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
}
SIMPLE = st.sampled_from(list(VALUES))


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.StructType]:
    fields = st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3)
    return fields.map(lambda kinds: pa.struct(list(kinds.items())))


KINDS: st.SearchStrategy[pa.DataType] = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(structs(inner), inner.map(pa.list_), inner.map(lambda kind: pa.map_(pa.string(), kind))),
    max_leaves=5,
)


def of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: of(field.type) for field in kind})
    if pa.types.is_list(kind):
        return st.none() | st.lists(of(kind.value_type), max_size=3)
    if pa.types.is_map(kind):
        return st.none() | st.dictionaries(st.text(max_size=2), of(kind.item_type), max_size=3).map(
            lambda entries: list(entries.items())
        )
    return st.none() | VALUES[kind]


@st.composite
def columns(draw: st.DrawFn) -> pa.StructArray:
    kind = draw(structs(KINDS))
    rows = draw(st.lists(of(kind), min_size=1, max_size=12))
    low = draw(st.integers(0, len(rows) - 1))
    return pa.array(rows, kind).slice(low)


def written(values: pa.StructArray, **others: pa.Array) -> pa.Table:
    count = len(values)
    rows = pa.RecordBatch.from_pydict({"body": pa.array([b"b"] * count, pa.binary()), "value": values, **others})
    stamped = Stamped(rows, [RowsPart(count)], batch_id="0" * 32, append_us=1, start=0)
    file = encode_few_stamped(stamped, [], 1 << 20)
    assert file is not None
    with pq.ParquetFile(io.BytesIO(file.data), page_checksum_verification=True) as parquet:
        return parquet.read()


pytestmark = pytest.mark.skipif(native_writer() is None, reason="there is no compiler")


@given(columns())
def test_pyarrow_reads_the_values_that_were_written(values: pa.StructArray) -> None:
    read = written(values)
    assert read.column("value").to_pylist() == values.to_pylist()
    assert read.column("body").to_pylist() == [b"b"] * len(values) and read.column("offset")[0].as_py() == 0


def test_nulls_with_elements_in_the_buffers_are_nulls() -> None:
    lists = pa.Array.from_buffers(
        pa.list_(pa.int64()),
        2,
        [pa.py_buffer(b"\x02"), pa.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0")],
        children=[pa.array([1, 2, 3])],
    )
    assert lists.to_pylist() == [None, [3]]
    read = written(pa.StructArray.from_arrays([lists], names=["many"]))
    assert read.column("value").to_pylist() == [{"many": None}, {"many": [3]}]


def test_many_rows_and_the_other_typed_columns() -> None:
    values = pa.array([{"n": number} if number % 3 else None for number in range(1_000)])
    rescued = pa.array([None if number % 7 else f"{number}" for number in range(1_000)])
    read = written(values, rescued=rescued)
    assert read.column("value").to_pylist() == values.to_pylist()
    assert read.column("rescued").to_pylist() == rescued.to_pylist()


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("count", [1, 2, 16, 17, 300])
def test_lists_in_any_number_of_rows(count: int, empty: bool) -> None:
    rows = [{"tags": [f"{row}-{at}" for at in range(row % 5 + (not empty))]} for row in range(count)]
    values = pa.array([{"tags": ["before"]}, *rows], pa.struct([("tags", pa.list_(pa.string()))]))[1:]
    assert written(values).column("value").to_pylist() == rows


@given(columns())
def test_few_rows_have_the_same_statistics_as_many(values: pa.StructArray) -> None:
    times = _FEW_ROWS + 1
    many = pa.concat_arrays([values] * times)
    few, all_ = (typed_bounds(pa.RecordBatch.from_arrays([rows], names=["value"])) for rows in (values, many))
    assert (few.least, few.greatest) == (all_.least, all_.greatest)
    assert all_.nulls == joined_typed([few.nulls] * times, "sum")
