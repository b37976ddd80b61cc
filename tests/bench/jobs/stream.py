"""Streaming reads: rates, latency from acknowledgement to `foreachBatch`, idle cost, planning, resuming.

Planning and resuming are measured on the reader alone, driven as Spark drives its planner process; the rest in Spark.
The first queries of a session are slow, since the JVM compiles what they do: those are run and not counted.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa

from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic, decide_put_topic
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.settings import Flush
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.payloads import record_batch
from tests.bench.registry import bench
from tests.bench.session import Session

__all__ = ["WARMUP_QUERIES", "FilledTopic", "query_s", "stream_of"]

_BODY_BYTES: Final = 100
_PARTITIONS: Final = 4
_APPEND: Final = 100_000
_MANY_PARTITIONS: Final = 100
WARMUP_QUERIES: Final = 3
#: The interval of rows, and how many of them are measured.
_ROW_EVERY_S: Final = 0.15
_ROWS: Final = 200
_WARMUP_BATCHES: Final = 50
_IDLE_S: Final = 10.0


class FilledTopic:
    """A warehouse with one topic."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.uri = str(folder)
        self._warehouse = Warehouse.open(self.uri)
        request = TopicRequest(partitions=partitions)
        made = MetaLog(self._warehouse).submit(
            lambda state: decide_put_topic(state, "orders", request, ["broker-a"], "id-1", 0)
        )
        self._topic: Topic = made.topics["orders"]
        self.logs: list[PartitionLog] = [
            self._warehouse.create(PartitionRef(Space.TOPICS, "orders", name)) for name in self._topic.route.partitions
        ]

    def fill(self, messages: int) -> None:
        """Append so many messages with key and tag in large commits, evenly."""
        rows = record_batch(_APPEND, _BODY_BYTES, keys=10_000)
        tags = pa.array(["TagA", "TagB"] * (_APPEND // 2))
        rows = pa.RecordBatch.from_pydict({**{n: rows.column(n) for n in rows.schema.names}, "tag": tags})
        for at in range(0, messages, _APPEND):
            log = self.logs[at // _APPEND % len(self.logs)]
            log.append([Batch(rows)], flush=Flush.ASYNC)

    def commits(self, count: int) -> None:
        """Append so many commits of one row to the first partition, with all upkeep that is due."""
        row = record_batch(1, _BODY_BYTES)
        for _ in range(count):
            self.logs[0].append([Batch(row)], flush=Flush.ASYNC)
            self.logs[0].maintain()

    def one_each(self) -> None:
        """Append a message to every partition."""
        for log in self.logs:
            log.append([Batch(record_batch(1, _BODY_BYTES))], flush=Flush.ASYNC)

    def close(self) -> None:
        """Let go of the tables."""
        self._warehouse.close()


def stream_of(spark: Any, uri: str, columns: str = "") -> Any:
    """A stream of the topic in this warehouse."""
    options = {"topic": "orders", "warehouse": uri, "startingOffsets": "earliest"}
    reader = spark.readStream.format("mq").options(**options)
    return (reader.option("columns", columns) if columns else reader).load()


class _Planner:
    """The reader as Spark's planner process has it."""

    def __init__(self, uri: str, start: dict[str, Any] | None = None) -> None:
        from deltamq.jobs.spark.datasource import MessageSource

        source = MessageSource({"topic": "orders", "warehouse": uri, "startingOffsets": "earliest"})
        self.reader = source.streamReader(source.schema())
        self.at = start or _text(self.reader.initialOffset())

    def plan(self) -> list[Any]:
        """Plan a batch and go on behind it; its tasks."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        end = _text(self.reader.latestOffset(self.at, ReadAllAvailable()))
        found = list(self.reader.partitions(self.at, end))
        self.at = end
        return found


def _text(offset: dict[str, Any]) -> dict[str, Any]:
    """Through JSON, as Spark passes offsets."""
    read: dict[str, Any] = json.loads(json.dumps(offset))
    return read


@bench("stream.plan")
def plan(session: Session) -> Iterator[Figure]:
    """Planning a batch over 100 partitions with a message each, offset by offset behind a long log."""
    topic = FilledTopic(session.fresh("stream-plan"), _MANY_PARTITIONS)
    try:
        topic.commits(session.effort.flat_commits[-1])
        topic.fill(_APPEND)
        planner = _Planner(topic.uri)
        planner.plan()
        took = []
        for _ in range(4 * session.effort.windows + 1):
            topic.one_each()
            began = time.perf_counter()
            tasks = planner.plan()
            took.append((time.perf_counter() - began) * 1e3)
            if len(tasks) != _MANY_PARTITIONS:
                raise LoadError(f"{len(tasks)} tasks for {_MANY_PARTITIONS} partitions")
        yield session.figure("stream.plan.p50", f"planning over {_MANY_PARTITIONS} partitions", "ms", took[1:])
    finally:
        topic.close()


@bench("stream.resume")
def resume(session: Session) -> Iterator[Figure]:
    """A stream that goes on from a position many commits ago: until its first batch is planned and read."""
    topic = FilledTopic(session.fresh("stream-resume"), _PARTITIONS)
    try:
        topic.one_each()
        before = _Planner(topic.uri)
        before.plan()
        commits = session.effort.flat_commits[-1]
        topic.commits(commits)
        took = []
        for _ in range(session.effort.windows):
            began = time.perf_counter()
            planner = _Planner(topic.uri, before.at)
            batches: list[pa.RecordBatch] = [batch for task in planner.plan() for batch in planner.reader.read(task)]
            rows = sum(batch.num_rows for batch in batches)
            took.append((time.perf_counter() - began) * 1e3)
            if rows != commits:
                raise LoadError(f"{rows} of {commits} rows")
        yield session.figure("stream.resume.took", f"first batch after {commits:,} commits", "ms", took)
    finally:
        topic.close()


@bench("stream.rate")
def rate(session: Session) -> Iterator[Figure]:
    """Messages of 100 bytes a second out of 4 partitions, whole rows and two columns; the time of `addBatch`."""
    with _spark(session, "stream-rate") as spark:
        if spark is None:
            return
        messages = session.effort.history_messages
        topic = FilledTopic(session.fresh("stream-rate"), _PARTITIONS)
        try:
            topic.fill(messages)
            for name, what, columns in (
                ("rows", "whole rows", ""),
                ("columns", "two columns", "offset, body"),
                ("tags", "one column", "tag"),
            ):
                frame = stream_of(spark, topic.uri, columns)
                runs = [
                    query_s(frame, session.fresh(name), messages)
                    for _ in range(WARMUP_QUERIES + session.effort.windows)
                ]
                rates = [messages / took for took in runs[WARMUP_QUERIES:]]
                yield session.figure(f"stream.rate.{name}", f"a stream of {what}", "msg/s", rates)
        finally:
            topic.close()


def query_s(frame: Any, folder: Path, messages: int) -> float:
    """Seconds in `addBatch` of a query that reads everything into nothing."""
    writer = frame.writeStream.format("noop")
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    found = sum(p.numInputRows for p in query.recentProgress)
    if found != messages:
        raise LoadError(f"the stream read {found} of {messages} rows")
    return float(sum(p.durationMs["addBatch"] for p in query.recentProgress)) / 1e3


@bench("stream.latency")
def latency(session: Session) -> Iterator[Figure]:
    """From the acknowledgement of a message to `foreachBatch`, one every 150 ms; and what an idle query costs."""
    with _spark(session, "stream-latency") as spark:
        if spark is None:
            return
        topic = FilledTopic(session.fresh("stream-latency"), _PARTITIONS)
        try:
            acked: dict[int, float] = {}
            called: dict[int, float] = {}
            read: dict[int, float] = {}

            def seen(frame: Any, _: int) -> None:
                began = time.perf_counter()
                rows = frame.where(f"partition = '{topic.logs[0].ref.name}'").select("offset").collect()
                now = time.perf_counter()
                for row in rows:
                    called.setdefault(row["offset"], began)
                    read.setdefault(row["offset"], now)

            writer = stream_of(spark, topic.uri, "partition, offset, body").writeStream.foreachBatch(seen)
            query = writer.option("checkpointLocation", str(session.fresh("checkpoint"))).start()
            row = record_batch(1, _BODY_BYTES)
            for _ in range(_WARMUP_BATCHES):
                topic.one_each()
                query.processAllAvailable()
            for _ in range(_ROWS):
                offset = topic.logs[0].append([Batch(row)])[0].base_offset
                acked[offset] = time.perf_counter()
                time.sleep(_ROW_EVERY_S)
            query.processAllAvailable()
            for name, what, times in (
                ("called", "ack to the call of foreachBatch", called),
                ("latency", "ack until foreachBatch has read the row", read),
            ):
                took = np.array([(times[at] - acked[at]) * 1e3 for at in acked])
                for part in (50, 99):
                    figure = float(np.percentile(took, part))
                    yield session.figure(f"stream.{name}.p{part}", what, "ms", [figure])
            idle = [_busy_percent(_IDLE_S) for _ in range(session.effort.windows)]
            yield session.figure("stream.latency.idle", "an idle stream", "% of a core", idle)
            query.stop()
        finally:
            topic.close()


def _busy_percent(seconds: float) -> float:
    """What this process and all that it started use of one core."""
    before = _cpu_s()
    began = time.perf_counter()
    time.sleep(seconds)
    took, after = time.perf_counter() - began, _cpu_s()
    return 100 * sum(used - before.get(process, 0.0) for process, used in after.items()) / took


def _cpu_s() -> dict[int, float]:
    """CPU seconds of this process and of each that it started: one that ends takes its own along."""
    found = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            found[process.pid] = used.user + used.system
    return found


@contextmanager
def _spark(session: Session, name: str) -> Iterator[Any]:
    """A Spark session; None, and a line that says so, where the run starts no Spark."""
    if not session.effort.spark:
        session.say(f"no {name} figures: a quick run starts no Spark")
        yield None
        return
    from deltamq.jobs.spark.session import spark_session

    spark = spark_session(f"deltamq-bench-{name}", warehouse=session.folder)
    try:
        yield spark
    finally:
        spark.stop()
