"""Rows that Spark would drop do not go to it (SPARK-1)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, Not

from jobs.read.options import RowFormat
from jobs.read.row_filter import RowFilter

_KEYS = st.sampled_from(["a", "b", "", "ä", None])


def _left(rows: pa.Table, *filters: Filter, row_format: RowFormat = RowFormat.MESSAGE) -> list[dict[str, object]]:
    found = RowFilter(row_format)
    for one in filters:
        found.take(one)
    left: list[dict[str, object]] = found.apply(rows).to_pylist()
    return left


@given(
    st.lists(st.tuples(_KEYS, _KEYS), max_size=20),
    st.lists(st.sampled_from(["key", "tag"]), max_size=3),
    st.lists(_KEYS, max_size=3),
    st.booleans(),
)
def test_spark_01_rows_are_left_that_every_filter_lets_through(
    pairs: list[tuple[str | None, str | None]], columns: list[str], values: list[str | None], as_list: bool
) -> None:
    rows = pa.table({name: pa.array([pair[i] for pair in pairs], pa.string()) for i, name in enumerate(("key", "tag"))})
    filters: list[Filter] = []
    if as_list:
        filters = [In((column,), tuple(values)) for column in columns]
    else:
        filters = [EqualTo((column,), values[0]) for column in columns if values and values[0] is not None]

    def passes(row: dict[str, str | None]) -> bool:
        wanted = [(one.attribute[0], one.value if isinstance(one, In) else (one.value,)) for one in filters]
        return all(row[column] is not None and row[column] in texts for column, texts in wanted)

    assert _left(rows, *filters) == [row for row in rows.to_pylist() if passes(row)]


@pytest.mark.parametrize(
    "found",
    [
        GreaterThan(("key",), "a"),
        Not(EqualTo(("key",), "a")),
        IsNotNull(("key",)),
        EqualTo(("body",), b"a"),
        EqualTo(("origin", "topic"), "a"),
    ],
)
def test_spark_01_other_filters_are_sparks(found: Filter) -> None:
    rows = pa.table({"key": ["a", None], "body": [b"x", b"y"]})
    assert len(_left(rows, found)) == 2


def test_spark_01_keys_of_kafkas_format_are_bytes() -> None:
    rows = pa.table({"key": ["ä", "b", None]})
    wanted = In(("KEY",), ("ä".encode(), b"\xff"))
    assert _left(rows, wanted, row_format=RowFormat.KAFKA) == [{"key": "ä"}]
    assert len(_left(pa.table({"tag": ["x"]}), EqualTo(("tag",), b"y"), row_format=RowFormat.KAFKA)) == 1
