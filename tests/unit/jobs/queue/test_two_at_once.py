"""Two runs of the same work at once: tasks that Spark repeats, two drivers, both engines (SPEC SPARK-7, I11)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest

from deltamq.jobs.queue.revive_batch import ReviveBatch
from deltamq.mq.limits import ACK_SETTLE_MS
from deltamq.mq.queue.checkpoint import Checkpoint
from deltamq.mq.queue.revive import DueCheckpoint
from deltamq.tables import failpoints
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart
from deltamq.tables.log.bounds import LogBounds
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.refs import retry_ref
from deltamq.tables.schema import INGEST_SCHEMA
from tests.queue_engines import COLD, ENGINES, QueueJob, delay_job, revive_job
from tests.queue_tables import BROKER, CLUSTER, QueueTables

pytestmark = pytest.mark.promise("JOB-18")


DUE = 10_000 + ACK_SETTLE_MS
#: A partition of these tests forgets producers soon.
BOUNDS = LogBounds(producers_max=1_000)


def _open(tables: QueueTables) -> Warehouse:
    """Open the tables as a further process does."""
    return Warehouse.open(tables.warehouse.uri, bounds=BOUNDS)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    with closing(QueueTables(tmp_path / "w", bounds=BOUNDS)) as made:
        yield made
    failpoints.arm("")


def _batch(tables: QueueTables, open_here: ExitStack, meanwhile: list[DueCheckpoint]) -> ReviveBatch:
    """A batch in a process of its own; while it decides, another run deals with `meanwhile`."""
    warehouse = open_here.enter_context(closing(_open(tables)))

    def failures(_: DueCheckpoint) -> int:
        if meanwhile:
            others = [meanwhile.pop()]
            assert _batch(tables, open_here, []).run(others).settled == others
        return 0

    return ReviveBatch(warehouse, CLUSTER, MetaLog(warehouse).meta, DUE, failures)


def _two_bits(tables: QueueTables) -> Checkpoint:
    return tables.pop(tables.group(), tables.topic(), tables.send(tables.topic(), "a", "b"))


@pytest.mark.promise("JOB-21")
@pytest.mark.parametrize("bits", [0b01, 0b10, 0b11])
def test_pop_11_a_run_that_was_overtaken_stores_nothing_twice(tables: QueueTables, bits: int) -> None:
    """The other one could read only some of the messages: its request is another one."""
    popped = _two_bits(tables)
    with ExitStack() as open_here:
        outcome = _batch(tables, open_here, [DueCheckpoint(popped, bits)]).run([DueCheckpoint(popped, 0b11)])
        if bits != 0b11:
            assert any("another run stored" in trouble for trouble in outcome.troubles)
            assert [due.bits for due, _ in outcome.later] == [0b11]
        _batch(tables, open_here, []).run([DueCheckpoint(popped, 0b11)])
    assert Counter(row["body"] for row in tables.retried(tables.group(), tables.topic())) == {b"a": 1, b"b": 1}


def _fill(warehouse: Warehouse, tables: QueueTables) -> None:
    """As many requests of other producers as a partition remembers."""
    group, topic = tables.group(), tables.topic()
    log = warehouse.create(retry_ref(group.name, group.epoch, topic.name, topic.generation, BROKER))
    schema = pa.schema([INGEST_SCHEMA.field("body")])
    rows = pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(b"x"), BOUNDS.producers_max)], schema=schema)
    log.append_rows(rows, [RowsPart(1, ProducerStamp(f"p{i}", 0, None, 1)) for i in range(BOUNDS.producers_max)])


@pytest.mark.promise("JOB-22")
@pytest.mark.parametrize("engine", ENGINES)
def test_pop_11_what_a_destination_has_forgotten_its_rows_tell(tables: QueueTables, engine: str) -> None:
    _two_bits(tables)
    failpoints.arm("revive.after_append=raise")
    job = revive_job(engine, tables.warehouse, tables.conf)
    try:
        job.run(DUE)
    except failpoints.FailpointHit:
        assert engine == "local"
    failpoints.arm("")
    _fill(tables.warehouse, tables)
    with closing(_open(tables)) as warehouse:
        assert revive_job(engine, warehouse, tables.conf).run(DUE + 60_000)["rows"] == 0
    bodies = Counter(row["body"] for row in tables.retried(tables.group(), tables.topic()))
    assert (bodies[b"a"], bodies[b"b"]) == (1, 1)


@pytest.mark.promise("JOB-22")
def test_pop_11_a_destination_that_forgets_while_a_run_decides_refuses_it(tables: QueueTables) -> None:
    popped = _two_bits(tables)
    with ExitStack() as open_here:
        warehouse = open_here.enter_context(closing(_open(tables)))
        once = [None]

        def failures(_: DueCheckpoint) -> int:
            while once:
                once.pop()
                _batch(tables, open_here, []).run([DueCheckpoint(popped, 0b11)])
                _fill(warehouse, tables)
            return 0

        outcome = ReviveBatch(warehouse, CLUSTER, MetaLog(warehouse).meta, DUE, failures).run(
            [DueCheckpoint(popped, 0b11)]
        )
        assert any("forgotten" in trouble for trouble in outcome.troubles)
    bodies = Counter(row["body"] for row in tables.retried(tables.group(), tables.topic()))
    assert (bodies[b"a"], bodies[b"b"]) == (1, 1)


@pytest.mark.promise("JOB-21")
@pytest.mark.parametrize("engines", [("spark", "spark"), ("local", "spark"), ("local", COLD)])
def test_pop_11_retry_05_two_drivers_at_once_deliver_each_once(tables: QueueTables, engines: tuple[str, str]) -> None:
    topic, group, late = tables.topic(partitions=2), tables.group(max_attempts=2), tables.topic("late")
    bodies: Counter[str] = Counter()
    for at in range(16):
        sent = [f"{at}-{number}" for number in range(7)]
        offsets = tables.send(topic, *sent, partition=at % 2)
        tables.pop(group, topic, offsets, partition=at % 2, at_ms=at, queue=at % 4, attempts=1 + at % 2)
        bodies.update(sent)
    tables.delay(late, *((f"late-{body}", 1_000) for body in bodies))
    with ExitStack() as open_here:
        runs = [threading.Thread(target=_both, args=(_jobs(tables, open_here, one),)) for one in engines]
        for thread in runs:
            thread.start()
        for thread in runs:
            thread.join()
        _both(_jobs(tables, open_here, "spark"))
    again = [*tables.retried(group, topic), *tables.dead(group)]
    assert Counter(row["body"].decode() for row in again) == bodies
    delivered = Counter(row["body"].decode() for row in tables.delivered(late))
    assert delivered == Counter(f"late-{body}" for body in bodies)


def _jobs(tables: QueueTables, open_here: ExitStack, engine: str) -> list[QueueJob]:
    warehouse = open_here.enter_context(closing(_open(tables)))
    return [made(engine, warehouse, tables.conf) for made in (revive_job, delay_job)]


def _both(jobs: list[QueueJob]) -> None:
    for job in jobs:
        job.run(DUE + 60_000)
