"""The streaming sink: rows a second that a query reads from parquet files and stores exactly once, and a small batch.

Rows are 100 bytes with a key, to a topic of four partitions, fsynced. What is timed is `addBatch` as the query's own
progress tells it: reading, staging, manifest, commits, and `done`. The first runs are several times slower, since the
JVM compiles what they do: three warm it up.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.registry import bench
from tests.bench.session import Session

__all__: list[str] = []

_TOPIC: Final = "orders"
_ID: Final = "7b0a4c1e-90f5-4a39-8a7e-0d6f5a0f6a11"
_PARTITIONS: Final = 4
_BODY_BYTES: Final = 100
_BATCH_ROWS: Final = 2_000_000
_FILES: Final = 4
_SMALL_ROWS: Final = 100
_SMALL_BATCHES: Final = 40
_WARMUP_RUNS: Final = 3


@bench("sink")
def sink(session: Session) -> Iterator[Figure]:
    """Rows a second through `writeStream.format("mq")`, and how long a batch of 100 rows takes."""
    if not session.effort.spark:
        session.say("no sink figures: a quick run starts no Spark")
        return
    from deltamq.jobs.spark.session import spark_session

    folder = session.fresh("sink")
    topic = _Topic(folder / "warehouse")
    spark = spark_session("deltamq-bench-sink", warehouse=str(topic.folder))
    try:
        yield from _measured(session, spark, topic, folder)
    finally:
        spark.stop()
        topic.warehouse.close()


class _Topic:
    """What the query writes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = Warehouse.open(str(folder))
        request = TopicRequest(partitions=_PARTITIONS)
        meta = MetaLog(self.warehouse)
        made = meta.submit(lambda state: decide_put_topic(state, _TOPIC, request, ["broker-a"], _ID, 0))
        self._route = made.topics[_TOPIC].route

    def rows(self) -> int:
        """How many messages there are."""
        refs = [PartitionRef(Space.TOPICS, _TOPIC, name) for name in self._route.partitions]
        logs = [self.warehouse.open_partition(ref) for ref in refs if self.warehouse.exists(ref)]
        for log in logs:
            log.refresh()
        return sum(log.end_offset for log in logs)


def _files(folder: Path, rows: int, files: int) -> Path:
    """Write rows as parquet files of about equal size."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    bodies = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(_BODY_BYTES), rows, [None, pa.py_buffer(random.bytes(rows * _BODY_BYTES))]
    ).cast(pa.binary())
    keys = pa.array(random.integers(0, 10_000, rows)).cast(pa.string())
    table = pa.table({"key": keys, "value": bodies})
    each = -(-rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * each, each), folder / f"{number:04d}.parquet", compression="none")
    return folder


def _run(spark: Any, source: Path, checkpoint: Path, files_of_batch: int) -> list[dict[str, Any]]:
    """Run a query over all files of a folder; return the progress of its batches."""
    reader = spark.readStream.schema("key STRING, value BINARY").option("maxFilesPerTrigger", files_of_batch)
    writer = reader.parquet(str(source)).writeStream.format("mq").option("topic", _TOPIC)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    found = [dict(one) for one in query.recentProgress if one["numInputRows"]]
    shutil.rmtree(checkpoint)
    return found


def _measured(session: Session, spark: Any, topic: _Topic, folder: Path) -> Iterator[Figure]:
    source = _files(folder / "large", _BATCH_ROWS, _FILES)
    rates = []
    for number in range(_WARMUP_RUNS + session.effort.windows):
        before, began = topic.rows(), time.perf_counter()
        [progress] = _run(spark, source, folder / f"cp-{number}", _FILES)
        whole_s = time.perf_counter() - began
        if topic.rows() - before != _BATCH_ROWS:
            raise LoadError(f"{topic.rows() - before} of {_BATCH_ROWS} rows are stored")
        rates.append(_BATCH_ROWS / (progress["durationMs"]["addBatch"] / 1e3))
        session.say(f"sink: {rates[-1]:,.0f} rows/s, with the query's start {_BATCH_ROWS / whole_s:,.0f}")
    yield session.figure("sink.rows.rate", "rows read and stored exactly once", "rows/s", rates[_WARMUP_RUNS:])

    small = _files(folder / "small", _SMALL_ROWS * _SMALL_BATCHES, _SMALL_BATCHES)
    for number in range(2):
        batches = _run(spark, small, folder / f"cp-small-{number}", 1)
    half = batches[_SMALL_BATCHES // 2 :]
    took = [float(one["durationMs"]["addBatch"]) for one in half]
    whole = sorted(one["durationMs"]["triggerExecution"] for one in half)[len(half) // 2]
    what = f"a batch of {_SMALL_ROWS} rows, addBatch"
    yield session.figure("sink.small.took", what, "ms", took, trigger_ms=whole)
