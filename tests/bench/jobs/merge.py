"""The merge job: records of the revive logs a second that become rows of `state/pop_checkpoints`.

Half of the records are checkpoints of 32 messages, half acknowledgements, over the 8 queues of one broker, in commits
of 500 records as a busy service makes them. What is timed is a whole run of the job, files to commit, with offsets.

`merge.cores` compares one worker of a standalone cluster with two, each on a core of its own; `merge.idle` has the
metadata and progress of 3,000 topics with 12,000 partitions in which nothing happens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from deltamq.mq.limits import MIB, REVIVE_QUEUES
from deltamq.mq.meta.group import decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Event, MetaState, decide_put_topic
from deltamq.mq.queue.checkpoint import Checkpoint, LaneKey, Pop, Span
from deltamq.mq.queue.progress import Committed, OffsetRecord
from deltamq.mq.queue.revive_log import Ack, Record
from deltamq.tables.config import Config, load
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.records import rows_of_offset_records, rows_of_records
from deltamq.tables.queue.refs import OFFSETS, revive_ref, system_ref
from deltamq.tables.settings import Flush
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.registry import bench
from tests.bench.session import Session
from tests.spark.cluster import cluster

__all__ = ["BACKLOG_RECORDS", "WARMUP_RUNS", "Logs", "run_once"]

_BROKER: Final = "broker-a"
_GROUP: Final = "billing"
_COMMIT_RECORDS: Final = 500
_ARRIVING_PER_S: Final = 20_000
#: What has piled up in half a minute.
BACKLOG_RECORDS: Final = 600_000
#: The first runs are slow: the JVM compiles what they do.
WARMUP_RUNS: Final = 4
_IDLE_TOPICS: Final = 3_000
_IDLE_PARTITIONS: Final = 4
_TOPICS_AT_ONCE: Final = 100


class Logs:
    """The logs of a busy service."""

    def __init__(self, folder: Path) -> None:
        self.conf: Config = load(overrides={"warehouse.uri": str(folder)}, environ={})
        self.warehouse = Warehouse.open(str(folder))
        meta = MetaLog(self.warehouse)
        request = TopicRequest(partitions=REVIVE_QUEUES)
        made = meta.submit(lambda state: decide_put_topic(state, "orders", request, [_BROKER], "id-1", 0))
        self._partitions = made.topics["orders"].route.partitions
        groups = meta.submit_groups(lambda m: decide_put_group(m.groups, _GROUP, GroupRequest(), 0)).groups
        self._epoch = groups.group(_GROUP).epoch
        self._popped = 0

    def add(self, records: int) -> int:
        """Append about so many records, and the offsets that go with them; returns how many of the former."""
        cluster = self.conf.warehouse.cluster
        rounds = max(1, records // (_COMMIT_RECORDS * REVIVE_QUEUES))
        for _ in range(rounds):
            for queue in range(REVIVE_QUEUES):
                found: list[Record] = []
                for _ in range(_COMMIT_RECORDS // 2):
                    checkpoint = self._pop(queue)
                    found += [checkpoint, Ack(checkpoint.key, 0x0FFF_FFFF, checkpoint.revive_time_ms)]
                log = self.warehouse.create(revive_ref(cluster, queue, _BROKER))
                log.append([Batch(rows_of_records(found))], flush=Flush.ASYNC)
        offsets = [
            OffsetRecord(
                lane=LaneKey("id-1", _GROUP, False, name),
                topic="orders",
                committed=Committed(self._epoch, self._popped),
            )
            for name in self._partitions
        ]
        self.warehouse.create(system_ref(OFFSETS, cluster, _BROKER)).append([Batch(rows_of_offset_records(offsets))])
        return rounds * _COMMIT_RECORDS * REVIVE_QUEUES

    def add_topics(self, count: int) -> None:
        """Make topics, and let the group have begun in every partition of theirs."""
        meta = MetaLog(self.warehouse)
        for low in range(0, count, _TOPICS_AT_ONCE):
            names = [f"idle-{at:05d}" for at in range(low, min(count, low + _TOPICS_AT_ONCE))]
            meta.submit(partial(_new_topics, names))
        commits = [
            OffsetRecord(
                lane=LaneKey(topic.id, _GROUP, False, partition),
                topic=name,
                committed=Committed(self._epoch, 0),
            )
            for name, topic in meta.state.topics.items()
            for partition in topic.route.partitions
        ]
        log = self.warehouse.create(system_ref(OFFSETS, self.conf.warehouse.cluster, _BROKER))
        log.append([Batch(rows_of_offset_records(commits))])

    def _pop(self, queue: int) -> Checkpoint:
        self._popped += 32
        pop = Pop(
            topic="orders",
            topic_id="id-1",
            group=_GROUP,
            epoch=self._epoch,
            partition=self._partitions[queue],
            pop_time_ms=time.time_ns() // 1_000_000,
            invisible_ms=60_000,
            revive_queue=queue,
        )
        return Checkpoint(pop=pop, span=Span(self._popped, 32))


def _new_topics(names: Sequence[str], state: MetaState) -> list[Event]:
    request = TopicRequest(partitions=_IDLE_PARTITIONS)
    return [event for name in names for event in decide_put_topic(state, name, request, [_BROKER], f"id-{name}", 0)]


@bench("merge")
def merge(session: Session) -> Iterator[Figure]:
    """Records of the revive logs that a run of the merge job folds into its table, a second."""
    if not session.effort.spark:
        session.say("no merge figures: a quick run starts no Spark")
        return
    with _spark(session, "merge") as (logs, spark):
        yield from _measured(session, logs, spark)
    yield from _by_cores(session)
    with _spark(session, "merge-idle") as (logs, spark):
        yield from _idle(session, logs, spark)


@contextmanager
def _spark(session: Session, name: str) -> Iterator[tuple[Logs, Any]]:
    from deltamq.jobs.spark.session import spark_session

    logs = Logs(session.fresh(name))
    spark = spark_session(f"deltamq-bench-{name}", warehouse=logs.conf.warehouse.uri)
    try:
        yield logs, spark
    finally:
        spark.stop()
        logs.warehouse.close()


def run_once(merger: Any, spark: Any, logs: Logs, records: int) -> dict[str, float]:
    """Let so many records arrive, and one run merge them."""
    records = logs.add(records)
    began = time.perf_counter()
    facts = merger.run(spark, datetime.now(UTC))
    took = time.perf_counter() - began
    if int(facts["rows"]) < records:
        raise LoadError(f"merged {facts['rows']} of {records} records")
    return {"rate": records / took, "seconds": took}


def _measured(session: Session, logs: Logs, spark: Any) -> Iterator[Figure]:
    from deltamq.jobs.merge.merge import Merger

    merger = Merger(logs.warehouse, logs.conf)
    # Each run finds what arrived while the one before it worked: where they stop growing, the job keeps up.
    took = [logs.conf.jobs.merge_every_ms / 1e3]
    for _ in range(WARMUP_RUNS + session.effort.windows):
        arrived = _ARRIVING_PER_S * max(took[-1], took[0])
        took.append(run_once(merger, spark, logs, int(arrived))["seconds"])
    said = f"{_ARRIVING_PER_S:,} CK/ACK records/s arrive"
    yield session.figure("merge.steady.took", f"a run while {said}", "s", took[1 + WARMUP_RUNS :])
    before = _resident_bytes()
    backlog = run_once(merger, spark, logs, BACKLOG_RECORDS)
    backlog["driver_grew_mib"] = (_resident_bytes() - before) / MIB
    yield session.figure(
        "merge.backlog.rate", "CK/ACK records merged, 30 s of them", "records/s", [backlog["rate"]], **backlog
    )


def _by_cores(session: Session) -> Iterator[Figure]:
    """How much a second worker is worth: each has a core of this machine, which the driver uses as well."""
    rates = {}
    for workers in (1, 2):
        folder = session.fresh(f"merge-workers-{workers}")
        with cluster(folder / "cluster", workers=workers, memory="2g") as running:
            for core, worker in enumerate(running.workers):
                psutil.Process(worker.pid).cpu_affinity([core % (psutil.cpu_count() or 1)])
            command = [sys.executable, "-m", "tests.bench.jobs.merge_on", str(folder / "warehouse"), running.master]
            environment = os.environ | running.environment
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
        rates[workers] = float(np.median(json.loads(done.stdout.splitlines()[-1])))
    extra = {"one": rates[1], "two": rates[2]}
    said = "records/s with two workers of one core to one worker"
    yield session.figure("merge.cores.ratio", said, "times", [rates[2] / rates[1]], **extra)


def _idle(session: Session, logs: Logs, spark: Any) -> Iterator[Figure]:
    """The first merge of many partitions, and those after it, which find no news."""
    from deltamq.jobs.merge.merge import Merger

    logs.add_topics(_IDLE_TOPICS)
    merger = Merger(logs.warehouse, logs.conf)
    took = []
    for _ in range(1 + 10 * session.effort.windows):
        began = time.perf_counter()
        merger.run(spark, datetime.now(UTC))
        took.append(time.perf_counter() - began)
    said = f"{_IDLE_TOPICS:,} topics of {_IDLE_PARTITIONS} partitions"
    yield session.figure("merge.idle.first", f"the first run, cold, with {said}", "s", took[:1])
    yield session.figure("merge.idle.took", f"a run without news, with {said}", "ms", [one * 1e3 for one in took[1:]])


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
