"""Other engines read the fields of messages from a typed topic's tables (SPEC TYPE-1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from tests.typed_tables import TypedTables

#: Rows of before the schema and rows that do not fit have no value.
WANTED = [(1, 1.5, None, None), (2, None, "z", "t"), (3, None, None, None)]


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Path]:
    with closing(TypedTables(tmp_path / "w")) as orders:
        orders.fill()
        yield tmp_path / "w" / "topics" / "orders" / orders.topic.route.partitions[0]


def test_type_1_polars_reads_fields(partition: Path) -> None:
    value = pl.col("value").struct
    place = value.field("place").struct
    rows = (
        pl.scan_delta(str(partition))
        .filter(value.field("id").is_not_null())
        .select(
            value.field("id"),
            value.field("amount"),
            place.field("zip"),
            place.field("tags").list.first().struct.field("name"),
        )
        .sort("id")
        .collect()
    )
    assert rows.rows() == WANTED


def test_type_1_duckdb_reads_fields(partition: Path) -> None:
    orders = DeltaTable(str(partition)).to_pyarrow_dataset()  # noqa: F841 # the query names it
    with duckdb.connect() as engine:
        rows = engine.sql(
            "SELECT value.id, value.amount, value.place.zip, value.place.tags[1].name "
            "FROM orders WHERE value.id IS NOT NULL ORDER BY value.id"
        ).fetchall()
        assert rows == WANTED
        assert engine.sql('SELECT count(*) FROM orders WHERE "offset" >= 2').fetchall() == [(5,)]
