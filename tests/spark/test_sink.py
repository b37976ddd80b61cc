"""`df.write.format("mq")` and `df.writeStream.format("mq")` in Spark (SPARK-3)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

from deltamq.jobs.sink.open_sink import OpenSink, SinkSettings
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.config import load
from deltamq.tables.log.warehouse import Warehouse
from tests.static_tables import StaticTables

pytestmark = pytest.mark.spark


@pytest.fixture(params=["plain", pytest.param("static", marks=pytest.mark.long)])
def orders(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A warehouse with a topic of two partitions, or of two logical queues."""
    uri = str(tmp_path / "warehouse")
    warehouse = Warehouse.open(uri)
    if request.param == "static":
        StaticTables(warehouse, 2, ("broker-a", "broker-b"))
    warehouse.close()
    if request.param == "static":
        return uri
    OpenSink(SinkSettings.of(load(overrides={"warehouse.uri": uri}), uri)).topic("orders")
    return uri


def _numbers(spark: SparkSession, low: int, high: int) -> DataFrame:
    return spark.range(low, high, 1, 3).selectExpr("concat('k', id % 20) AS key", "CAST(id AS STRING) AS value")


def _stored(spark: SparkSession, uri: str) -> list[int]:
    rows = spark.read.format("mq").option("warehouse", uri).option("topic", "orders").load().select("body").collect()
    return sorted(int(row.body) for row in rows)


@pytest.mark.promise("PIPE-9")
def test_spark_03_a_batch_write_with_kafkas_columns_is_stored_once_however_often_it_is_repeated(
    spark: SparkSession, orders: str
) -> None:
    frame = _numbers(spark, 0, 900).selectExpr(
        "CAST(key AS BINARY) AS key",
        "CAST(value AS BINARY) AS value",
        "array(named_struct('key', 'h', 'value', CAST('1' AS BINARY))) AS headers",
        "IF(CAST(value AS INT) = 7, 1, NULL) AS partition",
    )
    write = frame.write.format("mq").mode("append").option("warehouse", orders).option("topic", "orders")
    for _ in range(2):
        write.option("producerId", "nightly").option("batchId", "1").save()
    assert _stored(spark, orders) == list(range(900))
    write.option("producerId", "nightly").option("batchId", "2").save()
    assert len(_stored(spark, orders)) == 1800
    read = spark.read.format("mq").option("warehouse", orders).option("topic", "orders").load()
    seven = read.where("CAST(body AS STRING) = '7'").select("partition", "headers").collect()
    assert {row.partition for row in seven} in ({"orders@broker-b"}, {queue_name(1)})
    assert [row.headers for row in seven] == [{"h": "1"}] * 2


def test_spark_03_wrong_columns_and_modes_are_refused_when_the_write_starts(spark: SparkSession, orders: str) -> None:
    wrong = spark.range(3).selectExpr("id AS key", "CAST(id AS STRING) AS value").write.format("mq").mode("append")
    with pytest.raises((PythonException, AnalysisException), match="column 'key' has type bigint"):
        wrong.option("warehouse", orders).option("topic", "orders").save()
    write = _numbers(spark, 0, 3).write.format("mq").option("warehouse", orders).option("topic", "orders")
    with pytest.raises((PythonException, AnalysisException), match="append"):
        write.mode("overwrite").save()
    assert _stored(spark, orders) == []


@pytest.mark.promise("PIPE-6")
def test_spark_03_a_stream_goes_on_after_a_restart_and_stores_each_row_once(
    spark: SparkSession, orders: str, tmp_path: Path
) -> None:
    source = tmp_path / "files"
    _numbers(spark, 0, 100).write.parquet(str(source / "0"))

    def run() -> None:
        rows = spark.readStream.schema("key STRING, value STRING").parquet(str(source / "*"))
        query = (
            rows.writeStream.format("mq")
            .option("warehouse", orders)
            .option("topic", "orders")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)

    run()
    _numbers(spark, 100, 250).write.parquet(str(source / "1"))
    run()
    assert _stored(spark, orders) == list(range(250))
    # Spark forgets that the last batch was done, as after a kill between the sink's commit and its own
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    run()
    assert _stored(spark, orders) == list(range(250))
