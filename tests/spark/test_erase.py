"""The job `erase` in tasks of Spark, and what Spark reads before and behind it (SPEC SPARK-7, ERASE-1)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.upkeep.erase import erase
from deltamq.tables.log.batch import Batch
from tests.queue_tables import with_spark_engine
from tests.unit.jobs.upkeep.test_compact import NOW
from tests.unit.jobs.upkeep.test_erase import ADA, BODY, A, B, asked, conf_of, filled, holding, sound, typed
from tests.unit.jobs.warehouses import Filled, rows

__all__ = ["filled"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_erase_1_tasks_erase_and_every_reader_of_delta_sees_it(spark: SparkSession, filled: Filled) -> None:
    for ref in (A, B):
        log = filled.warehouse.create(ref)
        log.append([typed([BODY], ADA), Batch(rows([b"kept"], key="eve"))])
        log.append([Batch(rows([b"others"], key="eve"))])
    asked(filled, ADA)
    conf = with_spark_engine(conf_of(filled))
    facts = erase(spark, conf, NOW)
    assert (facts["rows"], facts["files"], facts["open"]) == (2, 2, 1)
    for ref in (A, B):
        table = spark.read.format("delta").load(f"{filled.uri}/{ref.folder}").orderBy("offset")
        assert [(row.offset, row.key, row.body, row.value) for row in table.collect()] == [
            (0, None, None, None),
            (1, "eve", bytearray(b"kept"), None),
            (2, "eve", bytearray(b"others"), None),
        ]
        history = spark.sql(f"DESCRIBE HISTORY delta.`{filled.uri}/{ref.folder}`").collect()
        assert "ERASE" in {row.operation for row in history}
    while erase(spark, conf, NOW)["open"]:
        pass
    assert holding(filled.uri, b"SECRET-of-ada", ADA.encode()) == [] and sound(filled)
