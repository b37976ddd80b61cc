"""The merge job: records of the revive logs a second that become rows of `state/pop_checkpoints`.

Half of the records are checkpoints of 32 messages, half acknowledgements, over the 8 queues of one broker, in commits
of 500 records as a busy service makes them. What is timed is a whole run of the job, files to commit, offsets included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from mq.checkpoint import Checkpoint, LaneKey, Pop, Span
from mq.group import decide_put_group
from mq.group_settings import GroupRequest
from mq.progress import Committed, OffsetRecord
from mq.queue_limits import REVIVE_QUEUES
from mq.revive_record import Ack, Record
from mq.topics import TopicRequest, decide_put_topic
from tables.config import Config, load
from tables.log import Batch
from tables.metadata import MetaLog
from tables.queue_refs import OFFSETS, revive_ref, system_ref
from tables.records import rows_of_offset_records, rows_of_records
from tables.settings import Flush
from tables.warehouse import Warehouse
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.registry import bench
from tests.bench.session import Session

__all__: list[str] = []

_BROKER: Final = "broker-a"
_GROUP: Final = "billing"
_COMMIT_RECORDS: Final = 500
_ARRIVING_PER_S: Final = 20_000
#: What has piled up in half a minute.
_BACKLOG_RECORDS: Final = 600_000
#: The first runs are slow: the JVM compiles what they do.
_WARMUP_RUNS: Final = 4


class _Logs:
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


@bench("merge")
def merge(session: Session) -> Iterator[Figure]:
    """Records of the revive logs that a run of the merge job folds into its table, a second."""
    if not session.effort.spark:
        session.say("no merge figures: a quick run starts no Spark")
        return
    from jobs.sql import spark_session

    logs = _Logs(session.fresh("merge"))
    spark = spark_session("deltamq-bench-merge", warehouse=logs.conf.warehouse.uri)
    try:
        yield from _measured(session, logs, spark)
    finally:
        spark.stop()
        logs.warehouse.close()


def _measured(session: Session, logs: _Logs, spark: Any) -> Iterator[Figure]:
    from jobs.merge.merge import Merger

    merger = Merger(logs.warehouse, logs.conf)

    def run(records: int) -> dict[str, float]:
        records = logs.add(records)
        began = time.perf_counter()
        facts = merger.run(spark, datetime.now(UTC))
        took = time.perf_counter() - began
        if int(facts["rows"]) < records:
            raise LoadError(f"merged {facts['rows']} of {records} records")
        return {"rate": records / took, "seconds": took}

    # Each run finds what arrived while the one before it worked: where they stop growing, the job keeps up.
    took = [logs.conf.jobs.merge_every_ms / 1e3]
    for _ in range(_WARMUP_RUNS + session.effort.windows):
        arrived = _ARRIVING_PER_S * max(took[-1], took[0])
        took.append(run(int(arrived))["seconds"])
    said = f"{_ARRIVING_PER_S:,} CK/ACK records/s arrive"
    yield session.figure("merge.steady.took", f"a run while {said}", "s", took[1 + _WARMUP_RUNS :])
    backlog = run(_BACKLOG_RECORDS)
    yield session.figure(
        "merge.backlog.rate", "CK/ACK records merged, 30 s of them", "records/s", [backlog["rate"]], **backlog
    )
