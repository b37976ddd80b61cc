"""`format("mq")` and `read_topic` give the same rows for the same options (SPARK-1)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from deltamq.jobs.read.offset_range import resolve
from deltamq.jobs.read.options import parse_options
from deltamq.jobs.read.query_topics import SharePartition
from deltamq.jobs.read.range_reader import read_range
from deltamq.jobs.read.row_format import schema_of
from deltamq.jobs.read.topics import Catalog
from deltamq.jobs.spark.datasource import MessageReader, session_warehouse
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import Corrupt, NotFound, Refused, Unavailable
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.schema import MESSAGE_SCHEMA
from deltamq.tables.store.local import LocalStore
from tests.static_tables import StaticTables
from tests.unit.jobs.warehouses import Filled
from tests.unit.jobs.warehouses import rows as rows_of

pytestmark = pytest.mark.spark

A, B, C = "orders@broker-a", "orders@broker-b", "orders@broker-c"
Read = Callable[..., DataFrame]
_QUEUES = {A: queue_name(0), B: queue_name(1)}


@pytest.fixture
def orders(filled: Filled, request: pytest.FixtureRequest) -> Filled:
    """Two partitions; rows with and without key, tag and headers; several files and row groups.

    For `static` tests they are logical queues with the same offsets, the first in two segments.
    """
    if getattr(request, "param", "plain") == "static":
        topic = StaticTables(filled.warehouse, 2, ("broker-a", "broker-b"))
        topic.append(0, rows_of([f"a{i}".encode() for i in range(10)]))
        topic.remap(["broker-b"], "strict", [0])
        topic.append(0, rows_of([b"", "schön".encode()], key=None, headers={"h": "1", "ö": "ü"}))
        topic.append(1, rows_of([f"b{i}".encode() for i in range(5)], headers={"x": ""}))
        return filled
    filled.append("orders", A, *[f"a{i}".encode() for i in range(10)])
    filled.append("orders", A, b"", "schön".encode(), key=None, headers={"h": "1", "ö": "ü"})
    filled.append("orders", B, *[f"b{i}".encode() for i in range(5)], headers={"x": ""})
    return filled


#: For tests whose native read, which is Delta's, costs seconds and shows little: `make faults` plays it.
NATIVE_SELDOM = pytest.mark.parametrize(
    "read", ["format", pytest.param("native", marks=pytest.mark.long)], indirect=True
)


@pytest.fixture(params=["format", "native"])
def read(request: pytest.FixtureRequest, spark: SparkSession, orders: Filled) -> Read:
    """The two ways to read; the queues of a static topic have the names of a plain topic's partitions."""

    def frame(**options: str) -> DataFrame:
        if request.param == "native":
            return read_topic(spark, warehouse=orders.uri, **options)
        return spark.read.format("mq").options(warehouse=orders.uri, **options).load()

    def renamed(**options: str) -> DataFrame:
        for name, queue in _QUEUES.items():
            options = {option: value.replace(name, queue) for option, value in options.items()}
        found = frame(**options)
        return found.replace({queue: name for name, queue in _QUEUES.items()}, subset=["partition"])

    return renamed if _is_static(request) else frame


def _is_static(request: pytest.FixtureRequest) -> bool:
    callspec = getattr(request.node, "callspec", None)
    return callspec is not None and callspec.params.get("orders") == "static"


def _places(frame: DataFrame) -> list[tuple[str, int]]:
    return sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())


def test_spark_1_columns_are_the_message_row_and_its_place(read: Read) -> None:
    frame = read(topic="orders")
    assert frame.columns == [*MESSAGE_SCHEMA.names, "topic", "partition"]
    assert dict(frame.dtypes)["origin"] == "struct<topic:string,partition:string,offset:bigint>"
    assert dict(frame.dtypes)["headers"] == "map<string,string>"
    assert (dict(frame.dtypes)["body"], dict(frame.dtypes)["append_time"]) == ("binary", "timestamp")


@pytest.mark.static_too
def test_spark_1_rows_are_what_was_appended(read: Read) -> None:
    found = {(r["partition"], r["offset"]): r for r in read(topic="orders").collect()}
    assert sorted(found) == [(A, i) for i in range(12)] + [(B, i) for i in range(5)]
    first, last = found[A, 0], found[A, 11]
    assert (first["topic"], first["key"], first["tag"], bytes(first["body"])) == ("orders", "k", "TagA", b"a0")
    assert (first["headers"], first["reconsume_times"], first["origin"]) == (None, 0, None)
    assert (last["key"], last["tag"], bytes(last["body"])) == (None, None, "schön".encode())
    assert last["headers"] == {"h": "1", "ö": "ü"}
    assert first["message_id"]
    assert abs(first["append_time"].replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds() < 600


@pytest.mark.long
def test_spark_1_both_ways_give_the_same_rows(spark: SparkSession, orders: Filled) -> None:
    for options in ({}, {"rowFormat": "kafka"}, {"rowFormat": "kafka", "includeHeaders": "false"}):
        ours = spark.read.format("mq").options(topic="orders", warehouse=orders.uri, **options).load()
        native = read_topic(spark, "orders", warehouse=orders.uri, **options)
        assert ours.dtypes == native.dtypes

        def shown(frame: DataFrame) -> list[str]:
            return sorted(str(row) for row in frame.collect())

        assert shown(ours) == shown(native)


@NATIVE_SELDOM
def test_spark_1_kafka_rows_have_the_kafka_sources_columns(read: Read) -> None:
    frame = read(topic="orders", rowFormat="kafka")
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    rows = {(r["partition"], r["offset"]): r for r in frame.collect()}
    assert (bytes(rows[0, 0]["key"]), bytes(rows[0, 0]["value"]), rows[0, 0]["headers"]) == (b"k", b"a0", None)
    assert rows[0, 11]["key"] is None
    assert [(h.key, bytes(h.value)) for h in rows[0, 11]["headers"]] == [("h", b"1"), ("ö", "ü".encode())]
    assert [(h.key, bytes(h.value)) for h in rows[1, 0]["headers"]] == [("x", b"")]
    assert read(topic="orders", rowFormat="kafka", includeHeaders="false").columns == frame.columns[:-1]


@pytest.mark.static_too
@NATIVE_SELDOM
def test_spark_1_bounds_choose_offsets(read: Read) -> None:
    frame = read(
        topic="orders",
        startingOffsets=f'{{"orders": {{"{A}": 9, "1": -2}}}}',
        endingOffsets=f'{{"orders": {{"{A}": -1, "1": 1}}}}',
    )
    assert _places(frame) == [(A, 9), (A, 10), (A, 11), (B, 0)]
    assert _places(read(assign=f'{{"orders": ["{B}"]}}')) == [(B, i) for i in range(5)]


@pytest.mark.static_too
@NATIVE_SELDOM
def test_spark_1_min_partitions_gives_at_least_as_many(read: Read) -> None:
    frame = read(topic="orders", minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 6
    assert len(_places(frame)) == 17


@pytest.mark.static_too
@NATIVE_SELDOM
def test_spark_1_filters_change_no_answer(read: Read) -> None:
    frame = read(topic="orders")
    assert _places(frame.where(f"offset between 3 and 4 and partition = '{A}'")) == [(A, 3), (A, 4)]
    assert _places(frame.where("offset in (0, 11) and append_time > timestamp'2001-01-01'")) == [
        (A, 0),
        (A, 11),
        (B, 0),
    ]
    assert _places(frame.where("topic = 'other' or append_time > timestamp'2101-01-01'")) == []
    assert _places(frame.where("key is null")) == [(A, 10), (A, 11)]


def test_spark_1_an_empty_topic_has_columns_and_no_rows(read: Read, orders: Filled) -> None:
    orders.warehouse.create(orders.append("empty", "empty@broker-a", b"x").ref)
    frame = read(topic="empty", endingOffsets='{"empty": {"0": 0}}')
    assert (frame.count(), len(frame.columns)) == (0, len(MESSAGE_SCHEMA) + 2)


@pytest.mark.promise("FLUSH-7")
def test_spark_1_a_message_is_seen_by_the_first_query_after_its_append(spark: SparkSession, orders: Filled) -> None:
    for expected in (18, 19):
        orders.append("orders", B, b"new")
        assert spark.read.format("mq").options(topic="orders", warehouse=orders.uri).load().count() == expected
        assert read_topic(spark, "orders", warehouse=orders.uri).count() == expected


def test_spark_1_native_bounds_are_those_of_the_call(spark: SparkSession, orders: Filled) -> None:
    frame = read_topic(spark, "orders", warehouse=orders.uri, endingOffsets="latest")
    orders.append("orders", B, b"later")
    assert frame.count() == 17


@pytest.mark.long
def test_spark_1_without_bounds_a_native_read_sees_what_is_there_when_a_query_runs(
    spark: SparkSession, orders: Filled
) -> None:
    orders.warehouse.create(PartitionRef(Space.TOPICS, "orders", C))
    frames = [read_topic(spark, "orders", warehouse=orders.uri, **more) for more in ({}, {"minPartitions": 8})]
    orders.append("orders", B, b"later")
    orders.append("orders", C, b"first")
    assert [frame.count() for frame in frames] == [19, 19]
    assert [frame.where("offset >= 0").count() for frame in frames] == [19, 19]
    recent = read_topic(spark, "orders", warehouse=orders.uri, startingTimestamp="0")
    assert recent.count() == 19


def test_spark_1_a_schema_with_fewer_columns_reads_only_those(spark: SparkSession, orders: Filled) -> None:
    reader = spark.read.format("mq").options(topic="orders", warehouse=orders.uri)
    frame = reader.schema("partition STRING, offset BIGINT").load()
    assert _places(frame) == [(A, i) for i in range(12)] + [(B, i) for i in range(5)]
    assert (
        spark.read.format("mq").options(topic="orders", warehouse=orders.uri).schema("topic STRING").load().count()
        == 17
    )
    with pytest.raises(AnalysisException, match="there is no column 'nope'"):
        spark.read.format("mq").options(topic="orders", warehouse=orders.uri).schema("nope STRING").load().count()
    with pytest.raises(AnalysisException, match="column 'offset' is bigint, not string"):
        spark.read.format("mq").options(topic="orders", warehouse=orders.uri).schema("offset STRING").load().count()


def test_spark_1_wrong_options_fail_in_load_and_unknown_topics_when_planned(
    spark: SparkSession, orders: Filled
) -> None:
    with pytest.raises(AnalysisException, match=r"(?i)option startingOffset: .*did you mean startingOffsets"):
        spark.read.format("mq").options(topic="orders", startingOffset="1").load()
    with pytest.raises(AnalysisException, match="there is no topic 'nope'"):
        spark.read.format("mq").options(topic="nope", warehouse=orders.uri).load().count()
    with pytest.raises(Refused, match="option nope"):
        read_topic(spark, "orders", warehouse=orders.uri, nope=1)
    with pytest.raises(NotFound, match="there is no topic 'nope'"):
        read_topic(spark, "nope", warehouse=orders.uri)


def test_spark_1_the_sessions_warehouse_is_the_default(spark: SparkSession) -> None:
    default = Filled(Path(session_warehouse(spark) or ""))
    default.append("here", "here@broker-a", b"x")
    default.close()
    assert spark.read.format("mq").option("topic", "here").load().count() == 1
    assert read_topic(spark, "here").count() == 1


def test_spark_1_sql_reads_a_topic(spark: SparkSession, orders: Filled) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW orders USING mq OPTIONS (topic 'orders', warehouse '{orders.uri}')")
    try:
        assert spark.sql("SELECT count(*) AS n FROM orders WHERE tag = 'TagA'").first()["n"] == 9
    finally:
        spark.catalog.dropTempView("orders")


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        pytest.param("key = 'k'", 15, marks=pytest.mark.long),
        ("key IN ('k', 'x', NULL)", 15),
        pytest.param("key = 'K'", 0, marks=pytest.mark.long),
        pytest.param("NOT key <=> 'k'", 2, marks=pytest.mark.long),
        ("tag = 'TagA'", 9),
    ],
)
def test_spark_1_filters_on_text_leave_the_same_rows_both_ways(read: Read, condition: str, rows: int) -> None:
    assert read(topic="orders").where(condition).count() == rows
    if "tag" not in condition:
        binary = condition.replace("'k'", "X'6B'").replace("'x'", "X'FF'").replace("'K'", "X'4B'")
        assert read(topic="orders", rowFormat="kafka").where(binary).count() == rows


def test_spark_14_rows_that_the_filter_is_not_true_for_do_not_go_to_spark(orders: Filled) -> None:
    reader = pickle.loads(pickle.dumps(_reader(orders, filter="key = 'k' AND tag = 'TagA'", columns="offset,tag")))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert {tag for batch in batches for tag in batch.column("tag").to_pylist()} == {"TagA"}
    assert sum(batch.num_rows for batch in batches) == 8 and batches[0].schema.names == ["offset", "tag"]
    kafka = _reader(orders, filter="h = '1'", rowFormat="kafka", columns="value")
    assert [batch.column("value").to_pylist() for task in kafka.partitions() for batch in kafka.read(task)] == [
        [b"", "schön".encode()]
    ]
    with pytest.raises(Refused, match="option filter: "):
        _reader(orders, filter="key =")


def test_rely_4_an_altered_byte_is_an_error_and_no_row(read: Read, orders: Filled) -> None:
    (path,) = Path(orders.uri).glob("topics/orders/orders@broker-b/*.parquet")
    data = bytearray(path.read_bytes())
    data[data.index(b"b3")] ^= 1
    path.write_bytes(data)
    with pytest.raises((PySparkException, Py4JJavaError), match="checksum"):
        read(assign=f'{{"orders": ["{B}"]}}').collect()


# Without Spark: what a task does.


def _reader(orders: Filled, **options: str) -> MessageReader:
    parsed = parse_options({"topic": "orders", **options}, warehouse=orders.uri)
    return MessageReader(parsed, schema_of(parsed))


def test_a_task_needs_only_what_was_pickled(orders: Filled) -> None:
    reader = pickle.loads(pickle.dumps(_reader(orders)))
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    batches = [batch for task in tasks for batch in reader.read(task)]
    assert sum(batch.num_rows for batch in batches) == 17
    assert {batch.schema.names[-1] for batch in batches} == {"partition"}
    assert {type(task) for task in tasks} == {SharePartition}


def test_spark_13_what_comes_while_a_query_runs_is_for_the_next_one(orders: Filled) -> None:
    reader = _reader(orders)
    first, second = reader.partitions()
    rows = sum(batch.num_rows for batch in reader.read(first))
    orders.append("orders", B, b"late")
    rows += sum(batch.num_rows for batch in reader.read(second))
    assert rows == 17
    assert sum(batch.num_rows for share in reader.partitions() for batch in reader.read(share)) == 18


def test_spark_13_a_store_that_takes_no_files_is_said(orders: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise Unavailable("read-only", code="storage_error")

    monkeypatch.setattr(LocalStore, "put_if_absent", refuse)
    with pytest.raises(Refused, match=r"takes no files \(.*read-only.*option asOfTime"):
        list(_reader(orders).read(SharePartition("plan")))


def test_a_read_goes_on_in_the_files_that_a_roll_up_made_meanwhile(tmp_path: Path) -> None:
    filled = Filled(tmp_path, rollup_files=3)
    log = [filled.append("orders", A, *[b"x"] * 5) for _ in range(3)][-1]
    planned = resolve(Catalog(storage(filled.uri)), parse_options({"topic": "orders"}, warehouse=filled.uri))[0]
    reading = read_range(filled.uri, planned, ["offset", "body"])
    seen = next(reading).column("offset").to_pylist()
    while log.maintain():
        pass
    filled.close()
    replaced = {file.path for file in planned.files} - {file.path for file in log.files}
    assert len(replaced) == 3
    for path in replaced:
        Path(filled.uri, log.ref.folder, path).unlink()
    for rows in reading:
        seen += rows.column("offset").to_pylist()
    assert seen == list(range(15))


def test_rows_that_retention_took_during_a_read_are_an_error(orders: Filled) -> None:
    options = parse_options({"topic": "orders"}, warehouse=orders.uri)
    planned = resolve(Catalog(storage(orders.uri)), options)[0]
    Path(orders.uri, planned.partition.ref.folder, planned.files[0].path).unlink()
    with pytest.raises(Corrupt):
        list(read_range(orders.uri, planned, ["offset", "key"]))


def test_offsets_alone_are_counted_and_no_file_is_read(orders: Filled) -> None:
    options = parse_options({"topic": "orders", "columns": "partition, offset"}, warehouse=orders.uri)
    reader = MessageReader(options, schema_of(options))
    planned = reader.partitions()
    for found in resolve(Catalog(storage(orders.uri)), options):
        for file in found.files:
            Path(orders.uri, found.partition.ref.folder, file.path).unlink()
    rows = [row for task in planned for batch in reader.read(task) for row in batch.to_pylist()]
    places = [(row["partition"], row["offset"]) for row in rows]
    assert places == [*((A, i) for i in range(12)), *((B, i) for i in range(5))]
