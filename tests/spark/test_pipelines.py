"""Declarative pipelines of Spark, whose sessions take no settings, read topics (SPEC SPARK-15)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.unit.jobs.warehouses import Filled

_DEFINITION = """
name: flights
storage: "{folder}/storage"
catalog: spark_catalog
database: default
libraries:
  - glob:
      include: tables/**
"""

_TABLES = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from deltamq.jobs.spark.datasource import register

spark = SparkSession.active()
register(spark, warehouse="{warehouse}")


@dp.materialized_view(format="parquet")
def counted():
    return spark.read.format("mq").option("topic", "orders").load().groupBy("partition").count()


@dp.table(format="parquet")
def copied():
    stream = spark.readStream.format("mq").option("topic", "orders").option("startingOffsets", "earliest")
    return stream.load().select("partition", "offset")
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_spark_15_a_declarative_pipeline_reads_a_topic(filled: Filled, tmp_path: Path) -> None:
    filled.append("orders", "orders@broker-a", b"x", b"y", b"z")
    folder = tmp_path / "pipeline"
    (folder / "tables").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(_DEFINITION.format(folder=folder.as_uri()))
    (folder / "tables" / "orders.py").write_text(_TABLES.format(warehouse=filled.uri))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("spark-pipelines")), "run"],
        cwd=folder,
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    # Spark 4.2's command ends with UNKNOWN_RESPONSE after that, whatever the Python source is
    assert "Run is COMPLETED" in ran.stdout + ran.stderr, ran.stderr
    made = {name: pq.read_table(folder / "spark-warehouse" / name).to_pylist() for name in ("counted", "copied")}
    assert made["counted"] == [{"partition": "orders@broker-a", "count": 3}]
    assert sorted(row["offset"] for row in made["copied"]) == [0, 1, 2]
