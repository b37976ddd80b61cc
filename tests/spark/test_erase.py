"""The job `erase` in tasks of Spark, and what Spark reads before and behind it (SPEC SPARK-7, ERASE-1, ERASE-6)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from deltamq.jobs.export.export import export_topic
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.jobs.upkeep.erase import EraseItem, erase, erase_partitions
from deltamq.mq.errors import Unavailable
from deltamq.mq.static.queue_names import queue_name
from deltamq.tables.config import Config
from deltamq.tables.failpoints import FailpointHit, arm
from deltamq.tables.log.batch import Batch
from deltamq.tables.ops.erasures import Erasure, read_erasure, replace_open
from tests.queue_tables import with_spark_engine
from tests.static_tables import StaticTables
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


FITS, MISFIT = b'{"id": "SECRET-of-ada"}', b"SECRET-of-ada is no JSON"
DAY_S = 86_400
_FAILPOINT = "deltamq.jobs.sql.erased_exports.failpoint"


class Killed(BaseException):
    """What no code handles, as none runs after a kill."""


def killed_at(point: str, nth: int) -> Callable[[str], None]:
    """Return what kills the job at the nth time that it comes to a point."""
    left = [nth]

    def come_to(name: str) -> None:
        left[0] -= name == point
        if name == point and not left[0]:
            raise Killed

    return come_to


@pytest.fixture
def exported(spark: SparkSession, filled: Filled, tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Export the topic `orders` to a table, which keeps its old files for no longer than it must."""

    def export(name: str, *columns: str) -> dict[str, int]:
        to = str(tmp_path / name)
        done = export_topic(spark, "orders", to, schema="id STRING", name=name, columns=columns, warehouse=filled.uri)
        for table in (to, f"{to}_quarantine"):
            kept = "'delta.deletedFileRetentionDuration' = 'interval 0 hours', 'delta.checkpointInterval' = '5'"
            spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({kept})")
        return done

    return export


def later(filled: Filled, conf: Config, erasure: Erasure, *tables: Path) -> None:
    """Make it two days later, for the request and for the tables' logs."""
    stored = read_erasure(filled.warehouse.store, erasure.id)
    two_days_ago_ms = warehouse_of(conf).clock.boot_ms() - 2 * DAY_S * 1_000
    replace_open(filled.warehouse.store, replace(stored, erased_boot_ms=two_days_ago_ms))
    then_s = time.time() - 2 * DAY_S
    for table in tables:
        for file in (table / "_delta_log").iterdir():
            os.utime(file, (then_s, then_s))


def places(spark: SparkSession, table: Path) -> list[tuple[str, int]]:
    rows = spark.read.format("delta").load(str(table)).collect()
    return sorted((row._partition, row._offset) for row in rows)


def test_erase_6_an_export_loses_the_rows_of_erased_messages(
    spark: SparkSession, filled: Filled, tmp_path: Path, exported: Callable[..., dict[str, int]]
) -> None:
    silver, quarantine = tmp_path / "silver", tmp_path / "silver_quarantine"
    log = filled.append("orders", A.name, FITS, MISFIT, key=ADA)
    log.append([Batch(rows([b'{"id": "kept"}', b"kept, too"], key="eve"))])
    exported("silver")
    erasure, conf = asked(filled, ADA), with_spark_engine(conf_of(filled))
    assert erase(spark, conf, NOW)["open"] == 1
    assert (places(spark, silver), places(spark, quarantine)) == ([(A.name, 2)], [(A.name, 3)])
    later(filled, conf, erasure, silver, quarantine)
    assert erase(spark, conf, NOW)["open"] == 0
    assert holding(tmp_path, b"SECRET-of-ada", ADA.encode()) == [] and sound(filled)


@pytest.mark.long
def test_erase_6_exports_lose_the_rows_of_erased_messages_and_go_on(
    spark: SparkSession,
    filled: Filled,
    tmp_path: Path,
    exported: Callable[..., dict[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silver, gold = tmp_path / "silver", tmp_path / "gold"
    tables = [tmp_path / f"{name}{end}" for name in ("silver", "gold") for end in ("", "_quarantine")]
    log = filled.append("orders", A.name, FITS, MISFIT, key=ADA)
    log.append([Batch(rows([b'{"id": "kept"}', b"kept, too"], key="eve"))])
    filled.append("orders", B.name, b'{"id": "b"}', FITS, key=ADA)
    done = exported("silver")
    assert (done["rows"], done["quarantined"]) == (4, 2)
    exported("gold", "key", "append_time")
    # Somebody hid a row, which is in its file yet.
    spark.sql(f"ALTER TABLE delta.`{gold}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{gold}` WHERE _partition = '{A.name}' AND _offset = 0")
    erasure, conf = asked(filled, ADA), with_spark_engine(conf_of(filled))

    # Killed when the topic's own messages say nothing any more, and again between an export's tables.
    assert erase_partitions(EraseItem(conf, erasure.id, (A, B), in_task=False)).rows == 4
    for point, nth in (("erase.before_restored", 1), ("erase.after_export", 1)):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(_FAILPOINT, killed_at(point, nth))
            erase(spark, conf, NOW)
    # A table is away.
    away = tmp_path / "away"
    tables[1].rename(away)
    with pytest.raises(Unavailable, match=r"export silver: its table .*silver_quarantine is gone"):
        erase(spark, conf, NOW)
    told = read_erasure(filled.warehouse.store, erasure.id)
    failures = {export.name: export.failure for export in told.exports.values()}
    assert told.state == "waiting" and "silver_quarantine is gone" in failures["silver"] and failures["gold"] == ""
    away.rename(tables[1])

    assert erase(spark, conf, NOW)["open"] == 1
    erased = read_erasure(filled.warehouse.store, erasure.id)
    assert erased.state == "erased" and {export.failure for export in erased.exports.values()} == {""}
    assert erased.gone_ms is not None and erased.gone_ms > (time.time() + DAY_S - 60) * 1_000
    for to in (silver, gold):
        assert places(spark, to) == [(A.name, 2)]
        assert places(spark, Path(f"{to}_quarantine")) == [(A.name, 3)]
    versions = [spark.sql(f"DESCRIBE HISTORY delta.`{to}` LIMIT 1").collect()[0].version for to in tables]
    while read_erasure(filled.warehouse.store, erasure.id).removed:
        erase(spark, conf, NOW)
    assert versions == [spark.sql(f"DESCRIBE HISTORY delta.`{to}` LIMIT 1").collect()[0].version for to in tables]
    assert holding(filled.uri, b"SECRET-of-ada") == [], "the topic's old files do not wait for the exports'"

    # The exports go on, each row once.
    log.refresh()
    log.append([Batch(rows([b'{"id": "new"}', b"new, too"], key="eve"))])
    for name, columns in (("silver", ()), ("gold", ("key", "append_time"))):
        done = exported(name, *columns)
        assert (done["rows"], done["quarantined"], done["batches"]) == (1, 1, 1)
        assert exported(name, *columns)["batches"] == 0
        assert places(spark, tmp_path / name) == [(A.name, 2), (A.name, 4)]

    later(filled, conf, erasure, *tables)
    assert erase(spark, conf, NOW)["open"] == 0
    receipt = read_erasure(filled.warehouse.store, erasure.id)
    assert receipt.state == "gone" and sorted(export.name for export in receipt.exports.values()) == ["gold", "silver"]
    assert holding(tmp_path, b"SECRET-of-ada", ADA.encode()) == []
    for to in tables:
        properties = spark.sql(f"DESCRIBE DETAIL delta.`{to}`").collect()[0].properties
        own = {name: value for name, value in properties.items() if "DeletionVectors" not in name}
        assert own == {"delta.deletedFileRetentionDuration": "interval 0 hours", "delta.checkpointInterval": "5"}
    assert places(spark, gold) == [(A.name, 2), (A.name, 4)] and sound(filled)


@pytest.mark.long
def test_erase_6_a_batch_that_had_read_before_is_looked_through_when_it_is_done(
    spark: SparkSession, filled: Filled, tmp_path: Path, exported: Callable[..., dict[str, int]]
) -> None:
    silver = tmp_path / "silver"
    filled.append("orders", A.name, b'{"id": "kept"}', b"kept", key="eve")
    exported("silver")
    log = filled.warehouse.open_partition(A)
    log.append([Batch(rows([FITS], key=ADA))])
    # A batch has read, and has not written yet.
    arm("export.after_plan=raise")
    try:
        with pytest.raises(FailpointHit):
            exported("silver")
    finally:
        arm("")
    read = spark.createDataFrame([("SECRET-of-ada", A.name, 2)], "id STRING, _partition STRING, _offset BIGINT")
    erasure, conf = asked(filled, ADA), with_spark_engine(conf_of(filled))
    erase(spark, conf, NOW)
    read.coalesce(1).write.format("delta").mode("append").save(str(silver))
    later(filled, conf, erasure)
    with pytest.raises(Unavailable, match="export silver: batch 1 may have read messages before they were erased"):
        erase(spark, conf, NOW)
    assert exported("silver")["quarantined"] == 1, "what is erased before it is exported says nothing"
    later(filled, conf, erasure)
    facts = erase(spark, conf, NOW)
    assert (facts["rows"], facts["open"]) == (1, 1), "its time begins again"
    assert places(spark, silver) == [(A.name, 0)]
    assert places(spark, Path(f"{silver}_quarantine")) == [(A.name, 1), (A.name, 2)]
    later(filled, conf, erasure, silver, Path(f"{silver}_quarantine"))
    assert erase(spark, conf, NOW)["open"] == 0
    assert holding(tmp_path, b"SECRET-of-ada", ADA.encode()) == []


@pytest.mark.long
def test_erase_6_an_export_of_a_static_topic_loses_rows_by_their_logical_queues(
    spark: SparkSession, filled: Filled, tmp_path: Path, exported: Callable[..., dict[str, int]]
) -> None:
    """The queue has moved, so its offsets are not those of the tables; and this export has no times of messages."""
    silver = tmp_path / "silver"
    orders = StaticTables(filled.warehouse, 1, ("broker-a", "broker-b"))
    orders.append(0, rows([b'{"id": "kept"}', b"kept"], key="eve"))
    orders.remap(["broker-b"])
    orders.append(0, rows([FITS, MISFIT], key=ADA))
    orders.append(0, rows([b'{"id": "kept, too"}'], key="eve"))
    done = exported("silver")
    assert (done["rows"], done["quarantined"]) == (3, 2)
    queue = queue_name(0)
    assert places(spark, silver) == [(queue, 0), (queue, 2), (queue, 4)]
    erasure, conf = asked(filled, ADA), with_spark_engine(conf_of(filled))
    assert erase(spark, conf, NOW)["open"] == 1
    assert places(spark, silver) == [(queue, 0), (queue, 4)]
    assert places(spark, Path(f"{silver}_quarantine")) == [(queue, 1)]
    later(filled, conf, erasure, silver, Path(f"{silver}_quarantine"))
    while erase(spark, conf, NOW)["open"]:
        pass
    assert holding(tmp_path, b"SECRET-of-ada", ADA.encode()) == []
