"""The jobs `revive` and `delay`: a storm in which everything is due at once, and how late one message is without it.

The tables are written as a service leaves them. A storm is the scheduled job without the process around it: from its
start, with nothing in memory, to the last record that says it is done. Lateness is that of the real process,
`deltamq jobs run` on its default schedules: from the time at which a message is due to the append time of its copy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from deltamq.jobs.queue.delay import Forwarder
from deltamq.jobs.queue.due_followed import DueCheckpoints
from deltamq.jobs.queue.revive import Reviver
from deltamq.jobs.tasks.warehouses import close_warehouses, warehouse_of
from deltamq.mq.limits import REVIVE_QUEUES
from deltamq.mq.meta.group import Group, decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic, decide_put_topic
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import Checkpoint, Pop, Span
from deltamq.tables.config import Config
from deltamq.tables.config_sections import WarehouseSettings
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.records import rows_of_records
from deltamq.tables.queue.recovery import Follower
from deltamq.tables.queue.refs import DELAY, retry_ref, revive_ref, system_ref
from deltamq.tables.schema import ORIGIN, TIME
from tests.bench.figure import Figure
from tests.bench.payloads import record_batch
from tests.bench.registry import bench
from tests.bench.session import Session, Window
from tests.bench.spark import SparkCounter

BROKERS: Final = ("broker-a", "broker-b")
PARTITIONS: Final = 8
_BODY_BYTES: Final = 100
_APPEND: Final = 25_000
_INVISIBLE_MS: Final = 600
_TRICKLE_S: Final = 0.01


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Queue(msgspec.Struct, frozen=True):
    """A topic of eight partitions on two brokers, and a group."""

    warehouse: Warehouse
    conf: Config
    topic: Topic
    group: Group

    def log(self, partition: str) -> PartitionLog:
        return self.warehouse.create(PartitionRef(Space.TOPICS, self.topic.name, partition, self.topic.generation))

    def pop(self, partition: str, *, at_ms: int, queue: int) -> Pop:
        """What the checkpoints of a pop have in common."""
        return Pop(
            topic=self.topic.name,
            topic_id=self.topic.id,
            group=self.group.name,
            epoch=self.group.epoch,
            partition=partition,
            pop_time_ms=at_ms,
            invisible_ms=_INVISIBLE_MS,
            revive_queue=queue,
        )

    def store(self, partition: str, queue: int, checkpoints: list[Checkpoint]) -> None:
        if not checkpoints:
            return
        broker = broker_of(partition)
        log = self.warehouse.create(revive_ref(self.conf.warehouse.cluster, queue, broker))
        log.append([Batch(rows_of_records(checkpoints))])

    def origin(self, partition: str, count: int) -> pa.Array:
        """What delayed messages say of their target."""
        place = {"topic": f"{self.topic.id}/{self.topic.name}", "partition": partition, "offset": -1}
        return pa.array([place] * count, ORIGIN)

    def delay(self, partition: str, rows: pa.RecordBatch, due_ms: np.ndarray) -> None:
        broker = broker_of(partition)
        rows = rows.append_column("deliver_time", pa.array(due_ms * 1_000, pa.int64()).cast(TIME))
        rows = rows.append_column("origin", self.origin(partition, rows.num_rows))
        self.warehouse.create(system_ref(DELAY, self.conf.warehouse.cluster, broker)).append([Batch(rows)])


@contextmanager
def open_queue(folder: Path) -> Iterator[Queue]:
    conf = replace(Config(), warehouse=WarehouseSettings(uri=str(folder)))
    warehouse = Warehouse.open(str(folder))
    try:
        meta = MetaLog(warehouse)
        request = TopicRequest(partitions=PARTITIONS)
        topic = meta.submit(lambda s: decide_put_topic(s, "bench", request, BROKERS, "id", 0)).topics["bench"]
        made = meta.submit_groups(lambda m: decide_put_group(m.groups, "workers", GroupRequest(), 0))
        yield Queue(warehouse, conf, topic, made.groups.group("workers"))
    finally:
        warehouse.close()


def fill_due(queue: Queue, messages: int, per_checkpoint: int) -> None:
    """Messages in all partitions, all popped a minute ago."""
    popped_ms = now_ms() - 60_000
    each = messages // PARTITIONS
    for partition in queue.topic.route.partitions:
        log = queue.log(partition)
        for at in range(0, each, _APPEND):
            log.append([Batch(record_batch(min(_APPEND, each - at), _BODY_BYTES))])
        spans = [Span(at, min(per_checkpoint, each - at)) for at in range(0, each, per_checkpoint)]
        for number in range(REVIVE_QUEUES):
            pop = queue.pop(partition, at_ms=popped_ms, queue=number)
            queue.store(partition, number, [Checkpoint(pop=pop, span=span) for span in spans[number::REVIVE_QUEUES]])


def _revive_storm(session: Session, messages: int, per_checkpoint: int) -> Callable[[float], Window]:
    def once(_: float) -> Window:
        folder = session.fresh("revive")
        with open_queue(folder) as queue:
            fill_due(queue, messages, per_checkpoint)
            try:
                job = Reviver(warehouse_of(queue.conf), queue.conf)
                began = time.perf_counter()
                facts = job.run(now_ms())
                took = time.perf_counter() - began
            finally:
                close_warehouses()
            wanted = messages // PARTITIONS * PARTITIONS
            assert facts["rows"] == wanted == retried(queue), f"{facts} of {wanted}"
        session.make_room()
        return {"took": took, "rate": wanted / took}

    return once


def _retry_logs(queue: Queue) -> list[PartitionLog]:
    topic, group = queue.topic, queue.group
    refs = [retry_ref(group.name, group.epoch, topic.name, topic.generation, broker) for broker in BROKERS]
    logs = [queue.warehouse.open_partition(ref) for ref in refs if queue.warehouse.exists(ref)]
    for log in logs:
        log.refresh()
    return logs


def retried(queue: Queue) -> int:
    return sum(log.end_offset for log in _retry_logs(queue))


def _delay_storm(session: Session, messages: int) -> Callable[[float], Window]:
    def once(_: float) -> Window:
        folder = session.fresh("delay")
        with open_queue(folder) as queue:
            each, due_ms = messages // PARTITIONS, now_ms() - 1_000
            for partition in queue.topic.route.partitions:
                for at in range(0, each, _APPEND):
                    rows = record_batch(min(_APPEND, each - at), _BODY_BYTES)
                    queue.delay(partition, rows, np.full(rows.num_rows, due_ms))
            try:
                job = Forwarder(warehouse_of(queue.conf), queue.conf)
                began = time.perf_counter()
                facts = job.run(now_ms())
                took = time.perf_counter() - began
            finally:
                close_warehouses()
            assert facts["rows"] == each * PARTITIONS, f"{facts}"
        session.make_room()
        return {"took": took, "rate": each * PARTITIONS / took}

    return once


@contextmanager
def driver(folder: Path, *jobs: str, **settings: str) -> Iterator[None]:
    """`deltamq jobs run revive delay` with some settings of the environment, after its first run."""
    command = [
        sys.executable,
        "-m",
        "deltamq.mq.client.cli",
        "jobs",
        "run",
        "--engine",
        "local",
        *(jobs or ("revive", "delay")),
    ]
    command += ["--warehouse", str(folder)]
    environment = os.environ | settings
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("job=")
            yield
        finally:
            process.terminate()
            process.communicate(timeout=60)


def lateness(queue: Queue) -> Callable[[float], Window]:
    """Messages due one after another: a popped one and a delayed one every hundredth of a second."""

    def once(seconds: float) -> Window:
        revives = max(2, int(seconds / _TRICKLE_S))
        before, sent = retried(queue), _delivered(queue)
        began, row = time.perf_counter(), record_batch(1, _BODY_BYTES)
        due: list[int] = []
        partitions = queue.topic.route.partitions
        for at in range(revives):
            partition = partitions[at % PARTITIONS]
            offset = queue.log(partition).append([Batch(row)])[0].base_offset
            pop = queue.pop(partition, at_ms=now_ms(), queue=at % REVIVE_QUEUES)
            queue.store(partition, at % REVIVE_QUEUES, [Checkpoint(pop=pop, span=Span(offset, 1))])
            due.append(now_ms() + _INVISIBLE_MS)
            queue.delay(partition, row, np.array([due[-1]]))
            time.sleep(max(0.0, began + at * _TRICKLE_S - time.perf_counter()))
        while retried(queue) < before + revives or _delivered(queue) < sent + 2 * revives:
            assert time.perf_counter() < began + seconds + 60, "something due was not delivered within a minute"
            time.sleep(0.05)
        revive, delay = _revive_late(queue, revives), _delay_late(queue, min(due))
        return {
            "revive_p50": float(np.percentile(revive, 50)),
            "revive_p99": float(np.percentile(revive, 99)),
            "delay_p50": float(np.percentile(delay, 50)),
            "delay_p99": float(np.percentile(delay, 99)),
        }

    return once


def _delivered(queue: Queue) -> int:
    logs = [queue.log(partition) for partition in queue.topic.route.partitions]
    for log in logs:
        log.refresh()
    return sum(log.end_offset for log in logs)


def _times(log: PartitionLog, name: str, start: int = 0) -> np.ndarray:
    found = [page.rows.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False) for page in pages(log, start)]
    return np.concatenate(found) / 1_000 if found else np.zeros(0)


def _revive_late(queue: Queue, newest: int) -> np.ndarray:
    """How late the newest of the retried messages were appended, in milliseconds, beside when they were first."""
    late = []
    for log in _retry_logs(queue):
        found, again = _times(log, "born_time"), _times(log, "append_time")
        late.append(np.stack([again, again - found - _INVISIBLE_MS]))
    both = np.concatenate(late, axis=1)
    newest_late: np.ndarray = both[1][np.argsort(both[0])][-newest:]
    return newest_late


def _delay_late(queue: Queue, since_ms: int) -> np.ndarray:
    late = []
    for partition in queue.topic.route.partitions:
        log = queue.log(partition)
        due, arrived = _times(log, "deliver_time"), _times(log, "append_time")
        late.append((arrived - due)[due >= since_ms])
    return np.concatenate(late)


@bench("revive")
def revive(session: Session) -> Iterator[Figure]:
    """Storms of batches of 32 and of single messages, and what finding out that nothing is due costs."""
    messages = session.effort.storm_messages
    for per_checkpoint, share, what in ((32, 1, "popped in batches of 32"), (1, 5, "popped one by one")):
        name, count = f"revive.storm.{per_checkpoint}", messages // share
        said = f"{count:,} unacknowledged messages of 8 partitions, {what}, revived"
        windows = session.windows(_revive_storm(session, count, per_checkpoint))
        yield session.figure_of(f"{name}.took", said, "s", "took", windows)
    yield from _match(session, messages)


def _match(session: Session, messages: int) -> Iterator[Figure]:
    """A look for what is due, when nothing is: by the job, which has the state in memory, and by a Spark query."""
    with open_queue(session.fresh("match")) as queue, SparkCounter(session) as counter:
        later_ms = now_ms() + 3_600_000
        rows = []
        for partition in queue.topic.route.partitions:
            spans = [Span(at, 32) for at in range(0, messages // PARTITIONS, 32)]
            for number in range(REVIVE_QUEUES):
                pop = queue.pop(partition, at_ms=later_ms, queue=number)
                mine = spans[number::REVIVE_QUEUES]
                queue.store(partition, number, [Checkpoint(pop=pop, span=span) for span in mine])
                rows += [(partition, span.start_offset, pop.revive_time_ms, span.full, 0, 0, 0) for span in mine]
        said = f"looking for what is due with {messages:,} messages in flight, none due"
        due = DueCheckpoints(Follower(queue.warehouse, queue.conf.warehouse.cluster, BROKERS))
        due.refresh()

        def in_memory(_: float) -> Window:
            began = time.perf_counter()
            due.refresh()
            assert due.take(now_ms()) == []
            return {"took": (time.perf_counter() - began) * 1e3}

        yield session.figure_of("revive.match.memory", said, "ms", "took", session.windows(in_memory))
        spark = counter.started()
        if spark is not None:
            place = str(session.fresh("match-spark") / "pop_checkpoints")
            schema = "partition string, start long, revive_ms long, full long, acked long, replaced long, done long"
            spark.createDataFrame(rows, schema).write.format("delta").save(place)
            open_bits = "(full & ~(acked | replaced | done)) <> 0"

            def by_query(_: float) -> Window:
                began = time.perf_counter()
                table = spark.read.format("delta").load(place)
                assert table.where(f"revive_ms <= {now_ms()} AND {open_bits}").collect() == []
                return {"took": (time.perf_counter() - began) * 1e3}

            yield session.figure_of(
                "revive.match.spark", f"{said}, as a query", "ms", "took", session.windows(by_query)
            )


@bench("delay")
def delay(session: Session) -> Iterator[Figure]:
    """A storm of delayed messages."""
    count = session.effort.storm_messages // 2
    said = f"{count:,} delayed messages of 8 partitions, due at once, forwarded"
    yield session.figure_of("delay.storm.rate", said, "msg/s", "rate", session.windows(_delay_storm(session, count)))


@bench("late")
def late(session: Session) -> Iterator[Figure]:
    """How late a message comes again or is delivered, by the jobs on their default schedules."""
    folder = session.fresh("late")
    with open_queue(folder) as queue, driver(folder):
        windows = session.windows(lateness(queue))
        for name, what in (("revive", "a message whose invisible time has ended"), ("delay", "a delayed message")):
            for part in ("p50", "p99"):
                said = f"{what} is appended so much after it was due, 100 a second"
                yield session.figure_of(f"late.{name}.{part}", said, "ms", f"{name}_{part}", windows)
