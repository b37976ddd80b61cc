"""Typed topics in Spark: values in tables, reads, streams, views, writes and jobs (SPEC TYPE-40 to TYPE-43)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from deltamq.jobs.export.export import export_topic
from deltamq.jobs.queue.delay import delay
from deltamq.jobs.sql.catalog import register_tables
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.sql.views import register_views
from deltamq.jobs.upkeep.compact import compact
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.config import load
from deltamq.tables.ops.verification import Gravity, verify
from tests.queue_tables import at, with_spark_engine
from tests.typed_tables import FIRST, TypedTables

pytestmark = pytest.mark.spark


@pytest.fixture(params=["columns", pytest.param("json", marks=pytest.mark.long)])
def orders(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TypedTables]:
    made = TypedTables(tmp_path / "w", request.param)
    made.fill()
    yield made
    made.close()


def mq(spark: SparkSession, orders: TypedTables, **options: str) -> DataFrame:
    return spark.read.format("mq").options(warehouse=orders.uri, topic="orders", **options).load()


def table(spark: SparkSession, orders: TypedTables, partition: int = 0) -> DataFrame:
    location = Path(orders.uri) / orders.tables.log(orders.topic, partition).ref.folder
    return spark.read.format("delta").load(str(location))


def short(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return id, amount and zip of each value, by id; rows without a value are left out."""
    found = frame.where("value IS NOT NULL").selectExpr("value.id", "value.amount", "value.place.zip").collect()
    return sorted(tuple(row) for row in found)


VALUES = [(1, 1.5, None), (2, None, "z"), (3, None, None), (10, 10.0, None)]


def test_type_41_the_format_and_read_topic_give_the_same_values(spark: SparkSession, orders: TypedTables) -> None:
    made = mq(spark, orders, typed="true")
    native = read_topic(spark, "orders", warehouse=orders.uri, typed=True)
    assert short(made) == short(native) == VALUES
    assert made.schema == native.schema
    assert sorted(map(str, made.drop("body").collect())) == sorted(map(str, native.drop("body").collect()))
    assert made.count() == native.count() == 6
    every = read_topic(spark, "orders", warehouse=orders.uri, quarantined=True, columns="offset,partition")
    assert every.count() == mq(spark, orders, quarantined="true").count() == 8
    bodies = sorted(bytes(row.body).replace(b" ", b"") for row in mq(spark, orders).select("body").collect())
    again = read_topic(spark, "orders", warehouse=orders.uri).select("body").collect()
    assert bodies == sorted(bytes(row.body).replace(b" ", b"") for row in again)
    assert b'{"id":1,"amount":1.5}' in bodies and len(bodies) == 6


def test_type_41_a_filter_on_a_field_reads_only_files_that_may_match(spark: SparkSession, tmp_path: Path) -> None:
    orders = TypedTables(tmp_path / "w", "columns")
    orders.version(FIRST)
    for ten in range(5):
        orders.send(0, *(f'{{"id": {10 * ten + one}}}' for one in range(10)))
    native = read_topic(spark, "orders", warehouse=orders.uri, typed=True, columns="offset,value")
    for frame in (table(spark, orders), native):
        ids, files = read_with_files(frame.where("value.id > 42").selectExpr("value.id"))
        assert (ids, files) == ([43, 44, 45, 46, 47, 48, 49], 1)
        assert read_with_files(frame.where("value.id >= 0").select("offset")) == (list(range(50)), 5)
    orders.close()


def read_with_files(frame: DataFrame) -> tuple[list[int], int]:
    """Return the values of the only column, and how many files Spark opened for them; once for each frame."""
    rows = sorted(row[0] for row in frame.collect())
    return rows, _files(frame._jdf.queryExecution().executedPlan())


def _files(plan: Any) -> int:
    found = 0
    metrics = plan.metrics()
    if metrics.contains("numFiles"):
        found += int(metrics.apply("numFiles").value())
    children = plan.children()
    if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return _files(plan.executedPlan())
    return found + sum(_files(children.apply(at)) for at in range(children.size()))


def test_type_41_views_have_the_fields_at_the_top_and_what_does_not_fit(
    spark: SparkSession, orders: TypedTables
) -> None:
    conf = load(overrides={"warehouse.uri": orders.uri})
    names = register_views(spark, conf)
    assert {"mq_values_orders", "mq_quarantine_orders"} <= set(names)
    schema = f"typed_{orders.topic.id[:8]}"
    assert {"values_orders", "quarantine_orders"} <= set(register_tables(spark, schema, conf))
    for prefix in ("mq_", f"{schema}."):
        values = spark.sql(f"SELECT id, amount, place.zip, mq_offset, mq_partition FROM {prefix}values_orders")
        assert sorted(tuple(row)[:4] for row in values.collect()) == [
            (1, 1.5, None, 2),
            (2, None, "z", 4),
            (3, None, None, 6),
            (10, 10.0, None, 0),
        ]
        unfit = spark.sql(f"SELECT offset, code, field, CAST(body AS STRING) FROM {prefix}quarantine_orders")
        assert sorted(map(tuple, unfit.collect())) == [
            (3, "not_json", "", "nonsense"),
            (5, "wrong_type", "id", '{"id": "x"}'),
        ]
    orders.send(1, '{"id": 11}')
    assert spark.sql("SELECT id FROM mq_values_orders WHERE id > 10").collect()[0].id == 11
    spark.sql(f"DROP SCHEMA {schema} CASCADE")


EVERY_TYPE = (
    "id BIGINT, b BOOLEAN, t TINYINT, s SMALLINT, i INT, f FLOAT, d DOUBLE, n DECIMAL(38, 4), text STRING, raw BINARY, "
    "day DATE, at TIMESTAMP, parts STRUCT<at: TIMESTAMP, n: DECIMAL(5, 2)>, times ARRAY<TIMESTAMP>, "
    "days MAP<STRING, DATE>, lines ARRAY<STRUCT<raw: BINARY, at: TIMESTAMP>>"
)
_EVERY_VALUE = {
    "id": 1,
    "b": True,
    "t": 1,
    "s": 2,
    "i": 3,
    "f": 0.5,
    "d": 0.1,
    "n": "12.3400",
    "text": "a",
    "raw": "YQ==",
    "day": "2026-01-02",
    "at": "2026-01-02T03:04:05.000006Z",
    "parts": {"at": "1600-01-01T00:00:00Z", "n": "1.50"},
    "times": ["2999-12-31T23:59:59.999999Z"],
    "days": {"x": "0001-01-01"},
    "lines": [{"raw": "YQ==", "at": "2026-01-02T03:04:05Z"}],
}


def test_type_41_every_type_of_a_field_is_read_in_each_way(spark: SparkSession, tmp_path: Path) -> None:
    orders = TypedTables(tmp_path / "w", "columns")
    orders.version(EVERY_TYPE)
    orders.send(0, json.dumps(_EVERY_VALUE))
    conf = load(overrides={"warehouse.uri": orders.uri})
    register_views(spark, conf)
    schema = f"typed_{orders.topic.id[:8]}"
    register_tables(spark, schema, conf)
    fields = ", ".join(f"to_json(struct({name})) AS {name}" for name in _EVERY_VALUE)
    (stored,) = table(spark, orders).where("value IS NOT NULL").select("value.*").selectExpr("*").collect()
    (texts,) = spark.sql(f"SELECT {fields} FROM mq_values_orders").collect()
    assert None not in stored and None not in texts
    for frame in (
        mq(spark, orders, typed="true").where("value IS NOT NULL").select("value.*"),
        read_topic(spark, "orders", warehouse=orders.uri, typed=True).where("value IS NOT NULL").select("value.*"),
        *(
            spark.sql(f"SELECT {', '.join(_EVERY_VALUE)} FROM {view}")
            for view in ("mq_values_orders", f"{schema}.values_orders")
        ),
    ):
        assert frame.collect() == [stored], frame
    spark.sql(f"DROP SCHEMA {schema} CASCADE")
    orders.close()


def test_type_41_a_stream_has_values(spark: SparkSession, orders: TypedTables, tmp_path: Path) -> None:
    def run() -> list[int]:
        stream = spark.readStream.format("mq").options(
            warehouse=orders.uri, topic="orders", typed="true", startingOffsets="earliest"
        )
        query = (
            stream.load()
            .where("value IS NOT NULL")
            .selectExpr("value.id")
            .writeStream.format("delta")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "copy"))
        )
        query.awaitTermination()
        return sorted(row.id for row in spark.read.format("delta").load(str(tmp_path / "copy")).collect())

    assert run() == [1, 2, 3, 10]
    orders.send(1, '{"id": 12, "place": {"zip": "q"}}')
    assert run() == [1, 2, 3, 10, 12]


def test_type_41_a_topic_is_exported_with_the_bodies_of_its_values(
    spark: SparkSession, orders: TypedTables, tmp_path: Path
) -> None:
    to = str(tmp_path / "exported")
    done = export_topic(spark, "orders", to, schema="id BIGINT NOT NULL, amount DOUBLE", warehouse=orders.uri)
    assert (done["rows"], done["quarantined"]) == (5, 1), "what the topic holds back is not exported"
    rows = spark.read.format("delta").load(to).select("id", "amount").collect()
    assert sorted(map(tuple, rows), key=str) == [(0, None), (1, 1.5), (10, 10.0), (2, None), (3, None)]


def test_type_43_structs_and_bodies_are_written(spark: SparkSession, orders: TypedTables) -> None:
    values = spark.range(100, 103).selectExpr(
        "CAST(id AS STRING) AS key",
        "named_struct('id', id, 'amount', CAST(id AS DOUBLE), 'place', named_struct('zip', 'w')) AS value",
    )
    write = values.write.format("mq").mode("append").options(warehouse=orders.uri, topic="orders")
    write.save()
    assert [row for row in short(mq(spark, orders, typed="true")) if row[0] >= 100] == [
        (number, float(number), "w") for number in (100, 101, 102)
    ]
    # What was read with values, what did not fit among it, is written with its bodies.
    read = mq(spark, orders, typed="true", quarantined="true").drop("partition", "topic")
    read.where("value.id = 101 OR invalid IS NOT NULL").write.format("mq").mode("append").options(
        warehouse=orders.uri, topic="orders"
    ).save()
    every = mq(spark, orders, typed="true", quarantined="true")
    assert every.where("value.id = 101").count() == 2 and every.where("invalid IS NOT NULL").count() == 4
    wrong = values.selectExpr("key", "named_struct('id', 'text') AS value")
    with pytest.raises(PySparkException, match="id"):
        wrong.write.format("mq").mode("append").options(warehouse=orders.uri, topic="orders").save()


def test_type_43_a_write_that_a_topic_refuses_names_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    orders = TypedTables(tmp_path / "w", "json", "reject")
    orders.version(FIRST)
    rows = spark.range(0, 50).selectExpr(
        "concat('k', id) AS key", "IF(id % 20 = 7, 'nonsense', to_json(struct(id))) AS value"
    )
    with pytest.raises(PySparkException) as failed:
        rows.write.format("mq").mode("append").options(warehouse=orders.uri, topic="orders").save()
    assert "do not fit the schema of topic orders" in str(failed.value)
    assert any(f"'k{row}'" in str(failed.value) for row in (7, 27, 47))
    assert mq(spark, orders).count() == 0
    orders.close()


def test_type_42_delayed_messages_arrive_with_values(spark: SparkSession, orders: TypedTables) -> None:
    now_ms = SYSTEM_CLOCK.wall_us() // 1_000
    due = "CAST(current_timestamp() + INTERVAL 2 SECONDS AS TIMESTAMP) AS deliver_time"
    rows = spark.range(200, 202).selectExpr("named_struct('id', id) AS value", due)
    rows.write.format("mq").mode("append").options(warehouse=orders.uri, topic="orders").save()
    conf = with_spark_engine(load(overrides={"warehouse.uri": orders.uri}))
    ids: list[int] = []
    until_s = time.monotonic() + 120
    while len(ids) < 2 and time.monotonic() < until_s:
        now_ms = SYSTEM_CLOCK.wall_us() // 1_000
        delay(spark, conf, at(now_ms))
        ids = [row[0] for row in short(mq(spark, orders, typed="true")) if row[0] >= 200]
    assert ids == [200, 201]


def test_type_40_a_compaction_in_tasks_keeps_what_tables_say(spark: SparkSession, orders: TypedTables) -> None:
    orders.send(0, '{"id": 4}', "nonsense")
    log = orders.send(0, '{"id": 5}')
    before = [sorted(map(str, table(spark, orders, number).collect())) for number in (0, 1)]
    # The first four files are one that is finished then, and none is left to roll-ups.
    size = sum(file.size for file in log.files[:4])
    conf = with_spark_engine(load(overrides={"warehouse.uri": orders.uri}))
    conf = replace(conf, jobs=replace(conf.jobs, compact_target_bytes=size), log=replace(conf.log, rollup_bytes_max=2))
    facts = compact(spark, conf, at(SYSTEM_CLOCK.wall_us() // 1_000))
    assert (facts["made"], facts["files"]) == (1, 4)
    after = [sorted(map(str, table(spark, orders, number).collect())) for number in (0, 1)]
    assert after == before
    assert [one for one in verify(orders.tables.warehouse) if one.gravity is not Gravity.NOTE] == []
    assert short(table(spark, orders))[:3] == VALUES[:3]
