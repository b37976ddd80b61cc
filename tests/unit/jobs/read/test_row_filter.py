"""The option `filter`: rows that a condition is true for, in the columns that it needs (SPEC SPARK-14)."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from deltamq.jobs.read.range_reader import RowFilter

ROWS = pa.table(
    {
        "key": ["a", "b", None],
        "tag": ["x", None, "x"],
        "headers": pa.array([[("region", "eu")], [("region", "us")], None], pa.map_(pa.string(), pa.string())),
    }
)


@pytest.mark.parametrize(
    ("text", "columns", "left"),
    [
        ("", [], [0, 1, 2]),
        ("key = 'a' OR key IS NULL", ["key"], [0, 2]),
        ("tag = 'x' AND region = 'eu'", ["headers", "tag"], [0]),
        ("region <> 'eu'", ["headers"], [1]),
    ],
)
def test_spark_14_rows_are_left_that_the_condition_is_true_for(text: str, columns: list[str], left: list[int]) -> None:
    found = pickle.loads(pickle.dumps(RowFilter(text)))
    assert found.columns == columns
    assert found.apply(ROWS).equals(ROWS.take(left))
