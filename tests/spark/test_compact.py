"""The job `compact` in tasks of Spark, and what Spark reads before and behind it (SPEC SPARK-7, SPARK-8)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.jobs.upkeep.compact import compact
from deltamq.mq.errors import Corrupt
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.settings import LogSettings
from tests.queue_tables import with_spark_engine
from tests.rows import all_bodies, batch
from tests.unit.jobs.upkeep.test_compact import A, B, conf_of, fill
from tests.unit.jobs.warehouses import Filled

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.promise("PIPE-13")]

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    made = Filled(tmp_path / "warehouse")
    yield made
    close_warehouses()
    made.close()


def conf(filled: Filled) -> Config:
    return with_spark_engine(conf_of(filled))


@pytest.mark.long
def test_spark_08_tasks_compact_what_the_local_engine_would_and_readers_see_the_same_rows(
    spark: SparkSession, filled: Filled
) -> None:
    sent = {ref: fill(filled, ref, 30) for ref in (A, B)}
    table = spark.read.format("delta").load(f"{filled.uri}/{A.folder}")
    before = table.orderBy("offset").toArrow()
    facts = compact(spark, conf(filled), NOW)
    assert {name: facts[name] for name in ("partitions", "files", "made", "rows")} == {
        "partitions": 2,
        "files": 50,
        "made": 10,
        "rows": 150,
    }
    # A query that was planned before reads the old files, one that is planned now the new ones.
    assert table.orderBy("offset").toArrow().equals(before)
    after = spark.read.format("delta").load(f"{filled.uri}/{A.folder}")
    assert after.orderBy("offset").toArrow().equals(before)
    assert len(after.inputFiles()) == 10 and after.count() == 90
    assert after.where("offset = 44").count() == 1
    for ref in (A, B):
        log = filled.warehouse.open_partition(ref)
        assert log.append([batch(b"goes on")])[0].base_offset == 90
        assert all_bodies(log) == [*sent[ref], b"goes on"]
    assert [one for one in verify(filled.warehouse) if one.gravity is not Gravity.NOTE] == []
    assert compact(spark, conf(filled), NOW)["files"] == 0


def test_spark_08_row_groups_that_were_copied_are_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    settings = LogSettings(rollup_files=3, row_group_rows=1_024)
    warehouse = Warehouse.open(str(tmp_path), settings=settings)
    log = warehouse.create(A)
    sent = [b"%d" % i for i in range(5_700)]
    for start, end in ((0, 1_600), (1_600, 3_600), (3_600, 5_700)):
        log.append([batch(*sent[start:end])])
    table = spark.read.format("delta").load(str(tmp_path / A.folder))
    before = table.orderBy("offset").toArrow()
    assert log.maintain()
    (file,) = log.files
    footer = pq.read_metadata(tmp_path / A.folder / file.path)
    groups = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
    assert groups == [1_024, 576, 1_024, 976, 1_024, 1_024, 52]
    after = spark.read.format("delta").load(str(tmp_path / A.folder))
    assert after.orderBy("offset").toArrow().equals(before)
    assert [row.body for row in after.where("offset >= 3590 and offset < 3610").orderBy("offset").collect()] == [
        bytearray(one) for one in sent[3_590:3_610]
    ]
    warehouse.close()


@pytest.mark.long
def test_spark_08_two_drivers_at_once_do_each_file_once(spark: SparkSession, filled: Filled) -> None:
    from concurrent.futures import ThreadPoolExecutor

    sent = fill(filled, A, 30)
    with ThreadPoolExecutor(2) as pool:
        found = [one.result() for one in [pool.submit(compact, spark, conf(filled), NOW) for _ in range(2)]]
    assert sum(int(facts["files"]) for facts in found) == 25
    log = filled.warehouse.open_partition(A)
    log.refresh()
    assert all_bodies(log) == sent and len(log.files) == 10


@pytest.mark.long
def test_spark_08_a_damaged_partition_fails_no_task(spark: SparkSession, filled: Filled) -> None:
    for ref in (A, B):
        fill(filled, ref, 10)
    victim = sorted(Path(filled.uri, A.folder).glob("*.parquet"))[2]
    victim.write_bytes(victim.read_bytes()[:-9])
    with pytest.raises(Corrupt, match="1 partitions failed"):
        compact(spark, conf(filled), NOW)
    log = filled.warehouse.open_partition(B)
    log.refresh()
    assert len(log.files) == 6
