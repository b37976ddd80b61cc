"""The job `verify` over many partitions: how long a run takes, and what the driver needs for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

from deltamq.tables.config import Config, load
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import Flush, LogSettings
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.payloads import record_batch
from tests.bench.registry import bench
from tests.bench.session import Session
from tests.bench.spark import SparkCounter
from tests.queue_tables import with_spark_engine

__all__: list[str] = []

#: Partitions, and of how many topics: a warehouse of one team, and of a company.
_SIZES: Final = ((401, 100), (12_001, 3_000))
_MESSAGES: Final = 100


@bench("verify")
def verify_partitions(session: Session) -> Iterator[Figure]:
    """How long the job verify takes over many partitions, and how much memory its driver has meanwhile."""
    with SparkCounter(session) as counter:
        spark = counter.started()
        if spark is None:
            session.say("no verify figures: a quick run starts no Spark")
            return
        for partitions, topics in _SIZES:
            yield _measured(session, spark, partitions, topics)


def _measured(session: Session, spark: Any, partitions: int, topics: int) -> Figure:
    from deltamq.jobs.upkeep.verify import run

    folder = session.fresh(f"verify-{partitions}")
    _fill(folder, partitions, topics)
    conf: Config = load(overrides={"warehouse.uri": str(folder)}, environ={})
    conf = with_spark_engine(conf)
    began = time.perf_counter()
    facts = run(spark, conf, datetime.now(UTC))
    took = time.perf_counter() - began
    if facts["partitions"] != partitions or facts["messages"] != partitions * _MESSAGES:
        raise LoadError(f"verified {facts} of {partitions} partitions")
    heap, process = _memory(spark)
    name, what = f"verify.{partitions}.took", f"a run of verify over {partitions:,} partitions of {topics:,} topics"
    return session.figure(name, what, "s", [took], heap_mib=heap, driver_mib=process)


def _fill(folder: Path, partitions: int, topics: int) -> None:
    warehouse = Warehouse.open(str(folder), settings=LogSettings(flush=Flush.ASYNC))
    rows = Batch(record_batch(_MESSAGES, 100))
    for at in range(partitions):
        topic = f"topic-{at % topics}"
        ref = PartitionRef(Space.TOPICS, topic, f"{topic}#{at // topics}@broker-a")
        warehouse.create(ref).append([rows], flush=Flush.ASYNC)
        warehouse.close_partition(ref)
    warehouse.close()


def _memory(spark: Any) -> tuple[int, int]:
    """MiB that the driver's heap uses after a collection, and that its Python process has."""
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    used = runtime.totalMemory() - runtime.freeMemory()
    return used >> 20, psutil.Process().memory_info().rss >> 20
