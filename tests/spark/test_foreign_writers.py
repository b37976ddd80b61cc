"""Spark at our message tables: it reads them and may not write them (SPEC TABLE-1)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tables.paths import PartitionRef, Space
from tests.rows import batch
from tests.unit.jobs.warehouses import Filled

REF = PartitionRef(Space.TOPICS, "orders", "orders@broker-a")
STATEMENTS = [
    "OPTIMIZE {table}",
    "VACUUM {table}",
    "DELETE FROM {table} WHERE offset < 3",
    "UPDATE {table} SET key = 'k'",
    "INSERT INTO {table} SELECT * FROM {table}",
    "ALTER TABLE {table} ADD COLUMNS (more STRING)",
    "ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "COMMENT ON TABLE {table} IS 'ours'",
    "RESTORE TABLE {table} TO VERSION AS OF 1",
]


def test_table_01_spark_reads_and_may_not_write(spark: SparkSession, filled: Filled) -> None:
    log = filled.warehouse.create(REF)
    for body in (b"a", b"b", b"c", b"d"):
        log.append([batch(body)])
    table = f"delta.`{log.location}`"
    for statement in STATEMENTS:
        with pytest.raises(Exception, match="deltamq"):
            spark.sql(statement.format(table=table))
        assert spark.table(table).count() == 4, statement
    assert log.append([batch(b"e")])[0].version == 5, "none of them left a commit"
    assert [bytes(row.body) for row in spark.table(table).orderBy("offset").collect()] == [b"a", b"b", b"c", b"d", b"e"]
