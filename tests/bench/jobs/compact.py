"""Compaction: how fast files of the service become files of the target size, and what readers have of it.

The files are those that a busy service leaves: appends of 20,000 messages of 100 bytes, rolled up to 16 MiB at most.
What is timed is a whole run of the job with both its steps, by Spark.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.mq.limits import MIB
from deltamq.tables.config import Config, load
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import Flush
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.payloads import record_batch
from tests.bench.registry import bench
from tests.bench.session import Session
from tests.bench.spark import SparkCounter
from tests.queue_tables import with_spark_engine

__all__: list[str] = []

_APPEND_MESSAGES: Final = 20_000
_BODY_BYTES: Final = 100
_WARM_MESSAGES: Final = 1_000_000
_PARTITIONS: Final = 2
_GB: Final = 1e9


@bench("compact")
def compact_files(session: Session) -> Iterator[Figure]:
    """Bytes of files that compaction reads and writes a second, and the files that it leaves."""
    with SparkCounter(session) as counter:
        spark = counter.started()
        if spark is None:
            session.say("no compaction figures: a quick run starts no Spark")
            return
        _warm_up(session, spark)
        yield from _measured(session, spark)


def _conf(session: Session, name: str) -> Config:
    conf: Config = load(overrides={"warehouse.uri": str(session.fresh(name))}, environ={})
    return with_spark_engine(conf)


def _warm_up(session: Session, spark: Any) -> None:
    """Compact a little, as an application that runs has done before: the first tasks import all they need."""
    conf = _conf(session, "compact-warm")
    warehouse = Warehouse.open(conf.warehouse.uri)
    try:
        for at in range(_PARTITIONS):
            _filled(warehouse, at, _WARM_MESSAGES)
        _compacted(spark, conf)
    finally:
        close_warehouses()
        warehouse.close()


def _measured(session: Session, spark: Any) -> Iterator[Figure]:
    conf = _conf(session, "compact")
    warehouse = Warehouse.open(conf.warehouse.uri)
    try:
        logs = [_filled(warehouse, at, session.effort.history_messages) for at in range(_PARTITIONS)]
        os.sync()  # what was written to get here is not compaction's
        before = sum(len(log.files) for log in logs)
        yield session.figure("compact.scan.before", "a scan of all bodies before it", "s", _scans(session, spark, logs))
        facts = _compacted(spark, conf)
        if facts["made"] == 0:
            raise LoadError(f"nothing was compacted: {facts}")
        rate = facts["bytes"] / facts["ms"] / 1e3
        said = "bytes of files that one run puts into large ones"
        yield session.figure("compact.rate", said, "MB/s", [rate], files_before=before, **facts)
        for log in logs:
            log.refresh()
        large = [file for log in logs for file in log.files if file.size >= conf.jobs.compact_target_bytes // 2]
        per_10_gb = len(large) * 10 * _GB / sum(file.size for file in large)
        yield session.figure("compact.files", "files of 10 GB, the tail aside", "", [per_10_gb], large=len(large))
        yield session.figure("compact.scan.after", "the same scan after it", "s", _scans(session, spark, logs))
    finally:
        close_warehouses()
        warehouse.close()


def _filled(warehouse: Warehouse, number: int, messages: int) -> PartitionLog:
    log = warehouse.create(PartitionRef(Space.TOPICS, "orders", f"orders#{number}@broker-a"))
    rows = record_batch(_APPEND_MESSAGES, _BODY_BYTES, keys=1_000)
    for _ in range(max(1, messages // _APPEND_MESSAGES)):
        log.append([Batch(rows)], flush=Flush.ASYNC)
        log.maintain()
    log.flush()
    return log


def _compacted(spark: Any, conf: Config) -> dict[str, int]:
    from deltamq.jobs.upkeep.compact import compact

    return {name: int(value) for name, value in compact(spark, conf, datetime.now(UTC)).items()}


def _scans(session: Session, spark: Any, logs: list[PartitionLog]) -> list[float]:
    took = []
    for _ in range(1 + session.effort.windows):
        began = time.perf_counter()
        for log in logs:
            spark.read.format("delta").load(log.location).selectExpr("sum(length(body))").collect()
        took.append(time.perf_counter() - began)
    return took[1:]


assert _APPEND_MESSAGES * _BODY_BYTES < 16 * MIB, "appends are smaller than what roll-ups leave"
