"""`spark_session`: a session with Delta and the `mq` source, quiet, in UTC, and reused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession, functions
from pyspark.sql.avro.functions import from_avro, to_avro

from deltamq.jobs.setup.java import java_path
from deltamq.jobs.spark.class_archive import archive_path
from deltamq.jobs.spark.datasource import register, session_warehouse
from deltamq.jobs.spark.session import another_session, spark_session
from deltamq.jobs.spark.session_settings import session_jars
from deltamq.jobs.sql.queue_source import register_queue_sources
from deltamq.mq.errors import Refused

pytestmark = pytest.mark.spark


def test_session_has_what_small_data_needs(spark: SparkSession) -> None:
    asked = (
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
        "spark.databricks.delta.snapshotPartitions",
        "spark.ui.enabled",
        "spark.hadoop.parquet.page.verify-checksum.enabled",
    )
    assert [spark.conf.get(key) for key in asked] == ["UTC", "2", "2", "false", "true"]


def test_the_jvm_maps_the_archive_of_classes(spark: SparkSession) -> None:
    """`make test` makes the archive; without it, `pytest` alone takes longer, and nothing else changes."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    maps = Path(f"/proc/{gateway.proc.pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what a process maps")
    path = archive_path(java_path())
    assert (str(path) in maps.read_text()) is path.is_file()


def test_session_reads_and_writes_delta(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "table"))
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 3


def test_a_session_that_is_there_is_used_and_gets_what_can_change(spark: SparkSession) -> None:
    default = session_warehouse(spark) or ""
    again = spark_session("other", warehouse=default, **{"spark.sql.shuffle.partitions": 3})
    assert again is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    spark_session(warehouse=default, **{"spark.sql.shuffle.partitions": 2})


def test_spark_06_a_task_of_databricks_uses_the_session_that_the_platform_has(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the jobs ask for when they make a session themselves is not for a platform to refuse."""
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    default = session_warehouse(spark) or ""
    found = spark_session(warehouse=default, **{"spark.driver.maxResultSize": "1g"})
    assert found is spark


def test_spark_15_registering_the_format_changes_no_setting(spark: SparkSession, tmp_path: Path) -> None:
    register_queue_sources(spark)  # one session has the sources, and another one gets them, too
    other = another_session(spark, str(tmp_path))
    before = {row["key"]: row["value"] for row in other.sql("SET").collect()}
    register(other, warehouse=str(tmp_path))
    register_queue_sources(other)
    assert {row["key"]: row["value"] for row in other.sql("SET").collect()} == before
    assert session_warehouse(other) == str(tmp_path) != session_warehouse(spark)


def test_what_cannot_change_any_more_is_refused_by_name(spark: SparkSession) -> None:
    default = session_warehouse(spark) or ""
    with pytest.raises(Refused, match=r"spark\.driver\.memory cannot change"):
        spark_session(warehouse=default, **{"spark.driver.memory": "17g"})
    with pytest.raises(Refused, match=r"starts with 'spark\.': shuffle"):
        spark_session(warehouse=default, shuffle=1)


def test_jars_are_given_by_path_so_that_a_start_needs_no_network(tmp_path: Path) -> None:
    assert [Path(path).is_file() for path in session_jars(str(tmp_path), {}).split(",")] == [True, True, True]


def test_bodies_in_avro_are_read(spark: SparkSession) -> None:
    schema = '{"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "int"}]}'
    order = functions.struct(functions.lit(7).alias("amount"))
    read = spark.range(1).select(to_avro(order, schema).alias("body")).select(from_avro("body", schema).alias("order"))
    assert read.first()["order"]["amount"] == 7


def test_jars_of_the_caller_come_beside_ours_and_replace_what_they_bring(tmp_path: Path) -> None:
    def names(**asked: str) -> list[str]:
        jars = session_jars(str(tmp_path), {key.replace("_", "."): jars for key, jars in asked.items()})
        return [Path(jar).name.split("_")[0].rsplit("-4", 1)[0] for jar in jars.split(",")]

    assert names() == ["delta-spark", "delta-storage", "spark-avro"]
    assert names(spark_jars="a/mine.jar") == ["mine.jar", "delta-spark", "delta-storage", "spark-avro"]
    assert names(spark_jars_packages="org.apache.spark:spark-sql-kafka:4") == names()
    assert names(spark_jars_packages="io.delta:delta-spark_2.13:4.3.0") == ["spark-avro"]
