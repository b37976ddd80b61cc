"""`rowFormat=kafka`: what a Kafka client reads of the same records (SPEC SPARK-18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.rows import records_of, rows_of
from deltamq.jobs.sql.reader import read_topic
from deltamq.mq.limits import HEADER_BYTES_MAX, HEADERS_MAX, KEY_BYTES_MAX, LARGE_MESSAGE_BYTES_MAX
from deltamq.tables.log.batch import Batch
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.schema import HEADERS, TIME
from tests.unit.jobs.warehouses import Filled

pytestmark = pytest.mark.spark

PARTITION = "orders@broker-a"
TIME_MS = 1_000_000_000_123

_Header: TypeAlias = tuple[bytes, bytes | None]
_Record: TypeAlias = tuple[bytes | None, bytes | None, list[_Header] | None, int]
Read = Callable[..., DataFrame]

RECORDS: list[_Record] = [
    (b"\xff\xfe", None, [(b"h", b"\xff"), (b"h", b"2")], TIME_MS),
    (b"k", b"v", [(b"h", b"1")], TIME_MS + 1),
    (None, b"", None, 0),
    ("schön".encode(), None, None, 1),
    (b"\xff" * 100, b"v", None, TIME_MS),
    (b"k", b"v", [(b"none", None)], TIME_MS),
    (b"k", b"v", [(b'control\x01\x1f"\\\n/', None), ("ö\U0001f600".encode(), b"\x00" * 99)], TIME_MS),
    (b"\xfe", None, [(b"mq-key", b"base64"), (b"mq-null-body", b"true"), (b"mq-headers", b"[]")], TIME_MS),
]
#: Headers that somebody else put into reserved names, and the key beside them.
FOREIGN: list[tuple[str | None, dict[str, str]]] = [
    (None, {"mq-key": "base64"}),
    ("no base64!", {"mq-key": "base64"}),
    ("/x==", {"mq-key": "base64"}),
    ("/w", {"mq-key": "base64"}),
    ("/w= =", {"mq-key": "base64", "a": "1"}),
    ("/w==", {"mq-key": "other"}),
    ("k", {"mq-null-body": "false"}),
    *[
        ("k", {"mq-headers": text})
        for text in (
            "",
            "[",
            "[]",
            "{}",
            "null",
            "[[1,2]]",
            '[["a"]]',
            '[[null,"YQ=="]]',
            '[["a","YQ==","b"]]',
            '[["a", "YQ=="]]',
            '[["a","YQ"]]',
            '[["a","YR=="]]',
            '[["a","YQ=="]] ',
            '[["\\ud800","YQ=="]]',
            '{"a":"YQ=="}',
            '[{"a":"YQ=="}]',
        )
    ],
]


@pytest.fixture
def records(filled: Filled) -> Records:
    """The records of a topic `orders`, as the Kafka port gives them."""
    written = [rows_of(_records(RECORDS)), _foreign(b"v"), _foreign(b"")]
    log = filled.warehouse.create(PartitionRef(Space.TOPICS, "orders", PARTITION))
    for rows in written:
        log.append([Batch(rows)])
    found = records_of(pa.Table.from_batches([_whole(rows) for rows in written]))
    assert found.count == len(RECORDS) + 2 * len(FOREIGN)
    return found


@pytest.fixture(params=["format", pytest.param("native", marks=pytest.mark.long)])
def read(request: pytest.FixtureRequest, spark: SparkSession, filled: Filled) -> Read:
    """The two ways to read."""

    def frame(**options: str) -> DataFrame:
        options = {"topic": "orders", "rowFormat": "kafka", **options}
        if request.param == "native":
            return read_topic(spark, warehouse=filled.uri, **options)
        return spark.read.format("mq").options(warehouse=filled.uri, **options).load()

    return frame


def test_spark_18_each_row_is_what_a_kafka_client_reads(records: Records, read: Read) -> None:
    rows = read(includeHeaders="true").selectExpr("*", "unix_micros(timestamp) AS us").orderBy("offset").collect()
    keys, values, times = records.key.to_pylist(), records.value.to_pylist(), records.time_ms.tolist()
    assert records.headers is not None
    for at, (row, headers) in enumerate(zip(rows, records.headers.to_pylist(), strict=True)):
        told = None if row["headers"] is None else [(h["key"].encode(), _bytes(h["value"])) for h in row["headers"]]
        assert (_bytes(row["key"]), _bytes(row["value"])) == (keys[at], values[at]), at
        assert told == ([tuple(header) for header in headers] or None), at
        assert (row["us"], row["timestampType"]) == (times[at] * 1000, 0), at


@pytest.mark.long
def test_spark_18_some_of_the_columns_are_the_same(records: Records, read: Read) -> None:
    whole = read(includeHeaders="true").orderBy("offset")
    for names in ("key", "value", "headers", "timestamp", "headers,key", "value,offset,key"):
        some = read(includeHeaders="true", columns=names)
        assert some.columns == names.split(",")
        assert sorted(map(str, some.collect())) == sorted(map(str, whole.select(*some.columns).collect()))


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _records(rows: list[_Record]) -> Records:
    keys, values, headers, times = zip(*rows, strict=True)
    return Records(
        key=pa.array(keys, pa.binary()),
        value=pa.array(values, pa.binary()),
        headers=pa.array([found or [] for found in headers], pa.map_(pa.binary(), pa.binary())),
        time_ms=np.array(times, dtype=np.int64),
    )


def _foreign(body: bytes) -> pa.RecordBatch:
    """Return rows that another writer made, whose times have parts of a millisecond."""
    marked = [{"mq-null-body": "true", **headers} if not body else headers for _, headers in FOREIGN]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _ in FOREIGN], pa.string()),
            "headers": pa.array([list(headers.items()) for headers in marked], HEADERS),
            "body": pa.array([body] * len(FOREIGN), pa.binary()),
            "born_time": pa.array([TIME_MS * 1000 + 999] * len(FOREIGN), TIME),
        }
    )


def _whole(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with the columns that records are made of."""
    return rows.select(["key", "headers", "body", "born_time"])


def test_kafka_26_spark_reads_the_largest_message(filled: Filled, read: Read) -> None:
    headers = [(f"{n:04}".encode(), b"v" * (HEADER_BYTES_MAX - 4)) for n in range(HEADERS_MAX)]
    largest: _Record = (b"k" * KEY_BYTES_MAX, b"v" * LARGE_MESSAGE_BYTES_MAX, headers, TIME_MS)
    log = filled.warehouse.create(PartitionRef(Space.TOPICS, "orders", PARTITION))
    for record in (largest, (b"next", b"one", None, TIME_MS)):
        log.append([Batch(rows_of(_records([record])))])
    one, two = read(includeHeaders="true").orderBy("offset").collect()
    assert (bytes(one["key"]), bytes(one["value"])) == largest[:2]
    assert [(name.encode(), bytes(value)) for name, value in one["headers"]] == headers
    assert (bytes(two["key"]), bytes(two["value"])) == (b"next", b"one")
