"""The columns of a write: which are taken, and what a user is told of one that is not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from deltamq.jobs.sink.columns import check_schema, pieces
from deltamq.jobs.sink.options import parse_sink_options
from deltamq.mq.errors import Refused
from deltamq.mq.limits import KEY_BYTES_MAX, MESSAGE_BYTES_MAX
from deltamq.tables.schema import HEADERS, INGEST_SCHEMA, TIME
from deltamq.tables.settings import Flush

_VALUE = T.StructField("value", T.BinaryType())


def _schema(*fields: tuple[str, T.DataType]) -> T.StructType:
    return T.StructType([_VALUE, *(T.StructField(name, kind) for name, kind in fields)])


@pytest.mark.parametrize(
    ("schema", "column", "told"),
    [
        (T.StructType([T.StructField("key", T.StringType())]), "value", "is missing"),
        (_schema(("body", T.StringType())), "value", "and 'body' are both given"),
        (T.StructType([T.StructField("value", T.LongType())]), "value", "to_json"),
        (_schema(("key", T.LongType())), "key", r"bigint.*CAST\(key AS STRING\)"),
        (_schema(("partition", T.DoubleType())), "partition", "its number"),
        (_schema(("headers", T.ArrayType(T.StringType()))), "headers", "MAP<STRING,STRING>"),
        (_schema(("headers", T.MapType(T.StringType(), T.LongType()))), "headers", "MAP<STRING,STRING>"),
        (_schema(("born_time", T.StringType())), "born_time", "CAST"),
        (_schema(("deliver_time", T.TimestampNTZType())), "deliver_time", "CAST"),
        (_schema(("delay_ms", T.StringType())), "delay_ms", "BIGINT"),
        (_schema(("headres", T.StringType())), "headres", "Drop or rename"),
    ],
)
def test_spark_03_a_column_that_is_not_taken_is_named_with_its_remedy(
    schema: T.StructType, column: str, told: str
) -> None:
    with pytest.raises(Refused, match=told) as raised:
        check_schema(schema, topic="orders")
    assert raised.value.field == column


def test_spark_03_without_a_topic_a_query_does_not_start() -> None:
    with pytest.raises(Refused, match="give it, or the option topic"):
        check_schema(_schema(), topic=None)
    assert "topic" in check_schema(_schema(("topic", T.StringType())), topic=None).names
    assert "topic" not in check_schema(_schema(("topic", T.StringType())), topic="wins").names


def test_spark_03_rows_of_a_read_can_be_written_as_they_are() -> None:
    read = ["offset", "append_time", "reconsume_times", "origin", "producer_id", "producer_seq", "timestampType"]
    columns = check_schema(_schema(*((name, T.StringType()) for name in read)), topic="orders")
    assert columns.names == ("value",)


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[("a", "1"), ("b", "2")], None, []], HEADERS),
        pa.array([[("a", b"1"), ("b", b"2")], None, []], pa.map_(pa.string(), pa.binary())),
        pa.array(
            [[{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], None, []],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    ],
    ids=["map", "map of bytes", "pairs"],
)
def test_spark_03_headers_of_any_form_are_a_map_of_text(headers: pa.Array) -> None:
    columns = check_schema(_schema(("headers", T.MapType(T.StringType(), T.StringType()))), topic="orders")
    batch = pa.RecordBatch.from_arrays([pa.array([b"x", b"y", b"z"]), headers], names=["value", "headers"])
    # a slice has offsets that do not begin at 0
    joined = pa.concat_batches([batch, batch]).slice(3)
    for given in (batch, joined):
        made = columns.rows(given, 0).rows.column("headers")
        assert made.type == HEADERS
        assert made.to_pylist() == [[("a", "1"), ("b", "2")], None, []]


def test_spark_03_columns_come_out_in_the_exact_types_of_the_message_row() -> None:
    fields = [("key", T.BinaryType()), ("tag", T.StringType()), ("born_time", T.TimestampType())]
    columns = check_schema(_schema(*fields), topic="orders")
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["text"], pa.large_string()),
            pa.array([b"k"], pa.large_binary()),
            pa.array(["t"], pa.large_string()),
            pa.array([5], pa.timestamp("us", tz="Europe/Berlin")),
        ],
        names=["value", "key", "tag", "born_time"],
    )
    rows = columns.rows(batch, 0).rows
    assert [(f.name, f.type) for f in rows.schema] == [
        (f.name, f.type) for f in INGEST_SCHEMA if f.name in ("body", "key", "tag", "born_time")
    ]
    assert rows.column("born_time").type == TIME


@pytest.mark.parametrize(
    ("name", "values", "kind", "told"),
    [
        ("value", [b"a", None], pa.binary(), "^value: every message needs a body"),
        ("value", [b"x" * (MESSAGE_BYTES_MAX + 1)], pa.binary(), "^value: row 0 has"),
        ("key", [b"a", b"\xff"], pa.binary(), "^key: is not UTF-8"),
        ("key", ["a", "k" * (KEY_BYTES_MAX + 1)], pa.string(), "^key: row 1 has"),
        ("born_time", [-1], TIME, "^born_time: must be from 1970"),
        ("topic", ["a", None], pa.string(), "null in row 1"),
        ("delay_ms", [41 * 24 * 3600 * 1000], pa.int64(), "delay_ms"),
    ],
)
def test_spark_03_a_value_that_is_not_taken_is_named_by_the_users_column(
    name: str, values: list[Any], kind: pa.DataType, told: str
) -> None:
    kinds = {"born_time": T.TimestampType(), "delay_ms": T.LongType(), "key": T.BinaryType()}
    fields = [] if name == "value" else [(name, kinds.get(name, T.StringType()))]
    columns = check_schema(_schema(*fields), topic=None if name == "topic" else "orders")
    arrays = {"value": pa.array([b"x"] * len(values), pa.binary()), name: pa.array(values, kind)}
    with pytest.raises(Refused, match=told) as raised:
        columns.rows(pa.RecordBatch.from_pydict(arrays), 0)
    assert raised.value.field == name


def test_spark_03_small_batches_are_joined_to_pieces() -> None:
    batches = [pa.RecordBatch.from_pydict({"value": [b"x" * 100] * 10}) for _ in range(25)]
    found = list(pieces(iter(batches), 5_000))
    assert sum(piece.num_rows for piece in found) == 250
    assert max(piece.num_rows for piece in found) > 10
    assert list(pieces(iter([batches[0].slice(0, 0)]), 5_000)) == []


@pytest.mark.parametrize(
    ("options", "streaming", "told"),
    [
        ({"topic": "a", "idempotencykey": "k"}, True, "checkpoint"),
        ({"topic": "a", "producerId": "p"}, False, "batchId: is missing"),
        ({"topic": "a", "batchId": "1"}, False, "producerId: is missing"),
        ({"topic": "a", "producerId": "p", "batchId": "-1"}, False, "whole number"),
        ({"topic": "a", "idempotencyKey": "k", "producerId": "p"}, False, "cannot be combined"),
        ({"topic": "a", "idempotencyKey": "a b"}, False, "visible"),
        ({"topic": "a", "flush": "later"}, False, "sync or async"),
        ({"topik": "a"}, False, "did you mean topic"),
        ({"topic": "%RETRY%g_t"}, False, "RETRY"),
    ],
)
def test_spark_03_options_that_cannot_be_are_refused_by_name(
    options: dict[str, str], streaming: bool, told: str
) -> None:
    with pytest.raises(Refused, match=told):
        parse_sink_options(options, warehouse="w", streaming=streaming)


def test_spark_03_options_of_kafka_clients_and_of_spark_mean_nothing() -> None:
    given = {"topic": "a", "kafka.bootstrap.servers": "x", "checkpointLocation": "c", "FLUSH": "async"}
    asked = parse_sink_options(given, warehouse="w", streaming=True)
    assert (asked.warehouse, asked.topic, asked.flush, asked.name) == ("w", "a", Flush.ASYNC, None)
    with pytest.raises(Refused, match="warehouse"):
        parse_sink_options({"topic": "a"}, warehouse=None, streaming=False)
