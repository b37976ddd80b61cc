"""Reads of typed topics: bodies, values of all versions, and what does not fit (SPEC TYPE-41)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from deltamq.jobs.read.offset_range import resolve, split
from deltamq.jobs.read.options import parse_options
from deltamq.jobs.read.range_reader import RangePartition, RangeRows
from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.read.typed_columns import conformed_sql
from deltamq.jobs.spark.datasource import MessageSource
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import Conflict, Refused
from deltamq.tables.log.log import PartitionLog
from tests.typed_tables import FIRST, SECOND, TypedTables
from tests.unit.jobs.stream.driven import Stream

PLACE = {"zip": "z", "tags": [{"name": "t"}]}


@pytest.fixture(params=["json", "columns"])
def orders(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TypedTables]:
    made = TypedTables(tmp_path / "w", request.param)
    made.fill()
    yield made
    made.close()


def read(orders: TypedTables, schema: StructType | None = None, **options: str) -> list[dict[str, Any]]:
    """Return the rows that tasks read, in the order of partitions and offsets."""
    given = {"topic": "orders", "warehouse": orders.uri} | options
    parsed = parse_options(given)
    rows = pickle.loads(pickle.dumps(RangeRows(parsed, schema or MessageSource(given).schema())))
    found: list[dict[str, Any]] = []
    for one in split(resolve(Catalog(storage(orders.uri)), parsed), partitions_min=3, rows_max=None):
        for batch in rows.read(pickle.loads(pickle.dumps(RangePartition(one)))):
            found += batch.to_pylist()
    return found


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["value"] for row in rows]


def test_type_41_values_of_all_versions_have_the_newest_columns(orders: TypedTables) -> None:
    rows = read(orders, typed="true")
    assert values(rows) == [
        None,
        None,
        {"id": 1, "amount": 1.5, "place": None},
        {"id": 2, "amount": None, "place": PLACE},
        {"id": 3, "amount": None, "place": None},
        {"id": 10, "amount": 10.0, "place": None},
    ]
    assert all(row["invalid"] is None and row["rescued"] is None for row in rows)
    assert [row["offset"] for row in rows] == [0, 1, 2, 4, 6, 0]


def test_type_41_readers_of_bytes_get_bodies_and_nothing_that_does_not_fit(orders: TypedTables) -> None:
    bodies = [row["body"].replace(b" ", b"") for row in read(orders)]
    assert bodies == [
        b'{"id":0}',
        b"ofbefore",
        b'{"id":1,"amount":1.5}',
        b'{"id":2,"place":{"zip":"z","tags":[{"name":"t"}]}}',
        b'{"id":3}',
        b'{"id":10,"amount":10.0}',
    ]
    kafka = [row["value"].replace(b" ", b"") for row in read(orders, rowFormat="kafka")]
    assert kafka == bodies


def test_type_41_quarantined_messages_are_read_if_they_are_asked_for(orders: TypedTables) -> None:
    rows = read(orders, typed="true", quarantined="true", columns="offset,value,invalid")
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4, 5, 6, 0]
    assert [row["invalid"] and row["invalid"]["code"] for row in rows] == [
        None, None, None, "not_json", None, "wrong_type", None, None,
    ]  # fmt: skip
    assert len(read(orders, quarantined="true")) == 8


@pytest.mark.parametrize("columns", ["offset", "key", "partition", "body,offset"])
def test_type_41_offsets_without_bodies_leave_out_the_same_rows(orders: TypedTables, columns: str) -> None:
    assert len(read(orders, columns=columns)) == 6
    if "offset" in columns:
        assert [row["offset"] for row in read(orders, columns=columns)] == [0, 1, 2, 4, 6, 0]


def test_type_41_only_typed_columns_can_be_read(orders: TypedTables) -> None:
    assert [value and value["id"] for value in values(read(orders, typed="true", columns="value"))] == [
        None, None, 1, 2, 3, 10,
    ]  # fmt: skip


def test_type_41_a_filter_sees_rendered_bodies_and_their_rows_only(orders: TypedTables) -> None:
    assert [row["value"]["id"] for row in read(orders, typed="true", filter="key = 'k2'")] == [3]


def test_type_41_a_compacted_partition_reads_alike(orders: TypedTables) -> None:
    before = read(orders, typed="true", quarantined="true")
    log: PartitionLog = orders.tables.log(orders.topic)
    while log.maintain():
        pass
    assert read(orders, typed="true", quarantined="true") == before


def test_type_41_a_schema_may_name_fewer_fields(orders: TypedTables) -> None:
    value = StructType([StructField("id", LongType())])
    rows = read(orders, StructType([StructField("value", value)]), typed="true")
    assert values(rows) == [None, None, {"id": 1}, {"id": 2}, {"id": 3}, {"id": 10}]
    text = StructType([StructField("id", StringType())])
    with pytest.raises(Conflict, match=r"value\.id"):
        read(orders, StructType([StructField("value", text)]), typed="true")


def test_type_41_typed_reads_of_a_topic_of_bytes_are_refused(tmp_path: Path) -> None:
    made = TypedTables(tmp_path / "w")
    made.send(0, "a")
    with pytest.raises(Refused) as refused:
        read(made, typed="true")
    assert refused.value.code == "no_schema" and len(read(made)) == 1
    with pytest.raises(Refused, match="option typed"):
        read(made, typed="true", rowFormat="kafka")
    made.close()


def test_type_41_a_topic_without_messages_has_the_columns_of_its_schema(tmp_path: Path) -> None:
    made = TypedTables(tmp_path / "w", "columns")
    made.version(FIRST)
    schema = MessageSource({"topic": "orders", "warehouse": made.uri, "typed": "true"}).schema()
    assert schema["value"].dataType.names == ["id", "amount"]
    assert read(made, typed="true") == []
    made.close()


def test_type_41_a_stream_goes_on_with_its_columns_and_a_restart_sees_new_ones(tmp_path: Path) -> None:
    made = TypedTables(tmp_path / "w", "columns")
    made.version(FIRST)
    made.send(0, '{"id": 1}', "nonsense")
    options = {"typed": "true", "columns": "partition,offset,value"}
    stream = Stream(made.uri, **options)
    assert [at for _, at in stream.batch()] == [0]
    made.version(SECOND)
    made.send(0, '{"id": 2, "place": {"zip": "z"}}')
    assert [at for _, at in stream.batch()] == [2]
    names = MessageSource({"topic": "orders", "warehouse": made.uri, **options}).schema()["value"].dataType.names
    assert names == ["id", "amount", "place"]
    made.send(0, '{"id": 3}')
    assert [at for _, at in Stream(made.uri, stream.at, **options).batch()] == [3]
    made.close()


def test_columns_of_unlike_types_are_joined_in_sql() -> None:
    inner = pa.struct([("a", pa.int64())])
    wide = pa.struct([("a", pa.int64()), ("b c", pa.decimal128(9, 2))])
    assert conformed_sql("`value`", inner, inner) == "`value`"
    assert conformed_sql("`value`", inner, wide) == (
        "IF(`value` IS NULL, NULL, named_struct('a', `value`.`a`, 'b c', CAST(NULL AS DECIMAL(9, 2))))"
    )
    assert "transform(`x`, e0 -> " in conformed_sql("`x`", pa.list_(inner), pa.list_(wide))
