"""The state tables against the folds of the core, whatever is merged when and breaks off (SPEC POP-19, CONS-4).

A batch that breaks off is played by failpoints that raise, and the process that comes after it by a new `Merger`;
`tests/faults/test_killed_merges.py` kills real ones.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace
from pyspark.sql import SparkSession

from deltamq.jobs.merge.merge import SHARDS, Merger
from deltamq.jobs.merge.table_merge import Tuning
from deltamq.mq.errors import Corrupt
from deltamq.mq.meta.group import NO_OFFSET, decide_delete_group, decide_reset_offsets
from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey, LaneKey
from deltamq.mq.queue.progress import CommitNote, Committed, Delivered, OffsetRecord, committed_of
from deltamq.mq.queue.revive import LostReason, LostRecord
from deltamq.mq.queue.revive_log import Ack, CheckpointState, Done, Record, fold
from deltamq.mq.statistics import Consumed, MinuteKey, StatisticsRecord
from deltamq.tables import failpoints
from deltamq.tables.failpoints import FailpointHit
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import Space
from deltamq.tables.queue.merge_plan import merged_to
from deltamq.tables.queue.records import (
    offset_records_of,
    records_of,
    rows_of_lost_records,
    rows_of_offset_records,
    rows_of_statistics,
)
from deltamq.tables.queue.recovery import Follower, recover
from deltamq.tables.queue.refs import LOST, OFFSETS, REVIVE_LOG, STATISTICS, revive_ref, system_ref
from deltamq.tables.state.rows import CHECKPOINT_COLUMNS, committed_of_rows, states_of_rows
from deltamq.tables.state.schema import (
    CONSUMER_OFFSETS,
    CONSUMER_OFFSETS_SCHEMA,
    GROUP_STATISTICS,
    GROUPS,
    LOST_MESSAGES,
    POP_CHECKPOINTS,
    POP_CHECKPOINTS_SCHEMA,
    ROUTES,
    TOPICS,
)
from deltamq.tables.state.table import read_state, read_state_log
from deltamq.tables.state.upkeep import DATA_KEEP_MS, LOG_KEEP_MS, sweep_state
from tests.queue_tables import BROKER, CLUSTER, QueueTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "w")
    yield made
    made.close()
    failpoints.arm("")


class Merges:
    """A job's process, begun anew where a test says so."""

    def __init__(self, spark: SparkSession, tables: QueueTables, tuning: Tuning | None = None) -> None:
        self._spark, self._tables, self._tuning = spark, tables, tuning
        self._opened: list[Warehouse] = []
        self.restart()

    def restart(self) -> None:
        self._opened.append(Warehouse.open(self._tables.conf.warehouse.uri))
        self.merger = Merger(self._opened[-1], self._tables.conf, tuning=self._tuning)

    def run(self, now: datetime = NOW, shards: Sequence[str] | None = None) -> dict[str, Any]:
        return dict(self.merger.run(self._spark, now, shards))

    def close(self) -> None:
        for warehouse in self._opened:
            warehouse.close()


@pytest.fixture
def merges(spark: SparkSession, tables: QueueTables) -> Iterator[Merges]:
    made = Merges(spark, tables)
    yield made
    made.close()


def commit(tables: QueueTables, lane: LaneKey, *committed: Committed, broker: str = BROKER) -> None:
    records = [OffsetRecord(lane=lane, topic="orders", committed=one) for one in committed]
    tables.warehouse.create(system_ref(OFFSETS, CLUSTER, broker)).append([Batch(rows_of_offset_records(records))])


def logged(tables: QueueTables, topic: str, read: Any) -> list[Any]:
    """Every record in the logs of a kind."""
    found = []
    for ref in tables.warehouse.refs(Space.SYS):
        if ref.topic == f"{topic}_{CLUSTER}":
            log = tables.warehouse.open_partition(ref)
            found += [record for page in pages(log, 0) for record in read(page.rows)]
    return found


def expected_states(tables: QueueTables) -> dict[CheckpointKey, CheckpointState]:
    states = fold({}, logged(tables, REVIVE_LOG, records_of))
    return {k: replace(s, checkpoint=s.checkpoint and replace(s.checkpoint, replaces=None)) for k, s in states.items()}


def merged_states(tables: QueueTables) -> dict[CheckpointKey, CheckpointState]:
    state = read_state(tables.warehouse.store, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA)
    assert state is not None
    found = dict(states_of_rows(state.rows.select(CHECKPOINT_COLUMNS)))
    assert len(found) == state.rows.num_rows, "one row for each checkpoint"
    for (_, one), shown in zip(found.items(), state.rows.column("in_flight").to_pylist(), strict=True):
        assert shown == one.open.bit_count()
    return found


def merged_progress(tables: QueueTables) -> dict[LaneKey, Committed]:
    state = read_state(tables.warehouse.store, CONSUMER_OFFSETS, CONSUMER_OFFSETS_SCHEMA)
    return {} if state is None else {lane: at for lane, (_, at) in committed_of_rows(state.rows).items()}


def rows(spark: SparkSession, tables: QueueTables, table: str) -> list[dict[str, Any]]:
    """What Spark reads."""
    return [row.asDict(recursive=True) for row in spark.read.format("delta").load(table_at(tables, table)).collect()]


def table_at(tables: QueueTables, table: str) -> str:
    return tables.warehouse.store.uri(table)


def any_records(tables: QueueTables, drawn: random.Random, count: int) -> list[Record]:
    """Pops of two topics, and all that may be said about them, out of order and twice."""
    made: list[Record] = []
    topics, group = [tables.topic("orders", 2), tables.topic("taxes")], tables.group()
    for _ in range(count):
        topic = drawn.choice(topics)
        start = drawn.randrange(0, 400)
        offsets = sorted(drawn.sample(range(start, start + 64), drawn.randint(1, 32)))
        popped = tables.checkpoint(
            group,
            topic,
            offsets,
            partition=drawn.randrange(len(topic.route.partitions)),
            at_ms=NOW_MS + drawn.randrange(5),
            queue=drawn.randrange(8),
            attempts=tuple(drawn.randint(1, 3) for _ in offsets),
            retry=drawn.random() < 0.2,
            dead_reason=drawn.choice([None, "bad"]),
        )
        popped = popped.with_bits(drawn.getrandbits(8))
        bits = [drawn.getrandbits(32) | 1 for _ in range(3)]
        index = drawn.randrange(popped.span.num)
        made += drawn.sample(
            [
                popped,
                popped,
                Ack(popped.key, bits[0], popped.revive_time_ms),
                Ack(popped.key, bits[1], popped.revive_time_ms),
                Done(popped.key, bits[2], popped.revive_time_ms),
                popped.changed(
                    index,
                    now_ms=NOW_MS + 9,
                    invisible_ms=10_000,
                    revive_queue=popped.pop.revive_queue,
                    given_back=drawn.random() < 0.5,
                ),
            ],
            drawn.randint(1, 6),
        )
    drawn.shuffle(made)
    return made


def store(tables: QueueTables, records: list[Record], drawn: random.Random) -> None:
    for record in records:
        queue = None if isinstance(record, Checkpoint) else drawn.randrange(8)
        tables.record(record, queue=queue)


@pytest.mark.promise("STATE-1")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_pop_11_whatever_is_merged_when_the_table_is_the_fold_of_the_logs(
    spark: SparkSession, tables: QueueTables, seed: int
) -> None:
    drawn = random.Random(seed)
    records = any_records(tables, drawn, 2 if seed == 1 else 8)
    merges = Merges(spark, tables, Tuning(batch_records_max=15, share_records=4, span_records_max=4, files_max=3))
    while records:
        count = drawn.randint(8, 20)
        now, records = records[:count], records[count:]
        store(tables, now + drawn.sample(now, drawn.randrange(len(now))), drawn)
        if drawn.random() < 0.3:
            merges.restart()
        facts = merges.run()
        assert facts["rows"] > 0
        assert merged_states(tables) == expected_states(tables)
    assert spark.read.format("delta").load(table_at(tables, POP_CHECKPOINTS)).count() == len(expected_states(tables))
    assert merges.run()["rows"] == 0
    merges.close()


@pytest.mark.long
def test_f8_a_clock_that_jumps_takes_nothing_away_that_is_open(spark: SparkSession, tables: QueueTables) -> None:
    """The clock of a merge only tells how late records may be about what is finished and committed."""
    topic, group = tables.topic(), tables.group()
    merges = Merges(spark, tables, Tuning(look_every_s=0))
    for number, hours in enumerate((30, -30, 1_000)):
        offsets = range(4 * number, 4 * number + 4)
        popped = tables.pop(group, topic, offsets, at_ms=NOW_MS + number, queue=number)
        merges.run(NOW + timedelta(hours=hours))
        tables.ack(popped, *offsets[: number % 4 + 1])
        merges.run(NOW - timedelta(hours=hours))
        assert merged_states(tables) == expected_states(tables)
    merges.close()


POINTS = [f"merge.{point}=raise@{hit}" for point in ("after_plan", "before_merge", "after_merge") for hit in (1, 2)]


@pytest.mark.promise("STATE-2")
@pytest.mark.long
def test_whatever_breaks_off_each_record_is_merged_once(tables: QueueTables, merges: Merges) -> None:
    """Hit 1 is in the offsets, hit 2 in the checkpoints; each time more is stored before the next run."""
    drawn = random.Random(3)
    records = any_records(tables, drawn, 12)
    lane = LaneKey(tables.topic("orders", 2).id, "billing", False, f"orders@{BROKER}")
    epoch = tables.group().epoch
    for at, point in enumerate(POINTS):
        store(tables, records[at * 4 : at * 4 + 4], drawn)
        commit(tables, lane, Committed(epoch, at))
        failpoints.arm(point)
        with pytest.raises(FailpointHit):
            merges.run()
        failpoints.arm("")
        merges.restart()
        if at % 2:
            store(tables, records[40 + at :][:1], drawn)
            merges.run()
            assert merged_states(tables) == expected_states(tables)
            assert merged_progress(tables) == {lane: Committed(epoch, at)}


@pytest.mark.long
def test_a_run_without_news_commits_nothing(tables: QueueTables, merges: Merges) -> None:
    topic, group = tables.topic(), tables.group()
    tables.pop(group, topic, [1, 2], at_ms=NOW_MS)
    merges.run()
    logs = [read_state_log(tables.warehouse.store, table) for table in (POP_CHECKPOINTS, TOPICS, ROUTES, GROUPS)]
    facts = merges.run()
    assert (facts["rows"], facts["batches"], facts["meta"]) == (0, 0, 0)
    merges.restart()
    merges.run()
    assert [
        read_state_log(tables.warehouse.store, table) for table in (POP_CHECKPOINTS, TOPICS, ROUTES, GROUPS)
    ] == logs


@pytest.mark.long
def test_spark_07_a_run_without_news_needs_no_spark(spark: SparkSession, tables: QueueTables) -> None:
    merges = Merges(spark, tables, Tuning(look_every_s=3_600))
    tables.pop(tables.group(), tables.topic(), [1, 2], at_ms=NOW_MS)
    merges.run()
    nothing: Any = None
    facts = merges.merger.run(nothing, NOW)
    assert (facts["rows"], facts["batches"], facts["meta"], facts["behind_records"]) == (0, 0, 0, 0)
    merges.close()


@pytest.mark.long
def test_a_log_whose_maker_was_killed_before_its_first_commit_is_nothing_yet(
    tables: QueueTables, merges: Merges
) -> None:
    (Path(tables.conf.warehouse.uri) / revive_ref(CLUSTER, 7, BROKER).folder / "_delta_log").mkdir(parents=True)
    assert merges.run()["rows"] == 0
    tables.pop(tables.group(), tables.topic(), [1, 2], at_ms=NOW_MS)
    assert merges.run()["rows"] == 1


@pytest.mark.long
def test_spark_07_a_driver_merges_the_tables_whose_locks_it_has(tables: QueueTables, merges: Merges) -> None:
    topic, group = tables.topic(), tables.group()
    lane = LaneKey(topic.id, group.name, False, f"orders@{BROKER}")
    tables.pop(group, topic, [1, 2], at_ms=NOW_MS)
    commit(tables, lane, Committed(group.epoch, 1))
    facts = merges.run(shards=("consumer_offsets",))
    assert (facts["rows"], "meta" in facts) == (1, False)
    assert merged_progress(tables) == {lane: Committed(group.epoch, 1)}
    assert read_state_log(tables.warehouse.store, POP_CHECKPOINTS) is None
    assert merges.run(shards=("pop_checkpoints", "meta")) | {"ms": 0} == {
        "rows": 1,
        "batches": 1,
        "behind_records": 0,
        "meta": 3,
        "ms": 0,
    }
    assert merged_states(tables) == expected_states(tables)
    assert set(SHARDS) == {"consumer_offsets", "pop_checkpoints", "lost_messages", "group_statistics", "meta"}


@pytest.mark.promise("STATE-9")
def test_spark_07_a_damaged_record_is_told_by_log_and_offset_and_stops_the_merge(
    tables: QueueTables, merges: Merges
) -> None:
    """Found in a task, raised by the run as what it is; nothing of the batch is in the table."""
    popped = tables.pop(tables.group(), tables.topic(), [1, 2], at_ms=NOW_MS)
    log = tables.warehouse.open_partition(revive_ref(CLUSTER, 0, BROKER))
    rows_without_record = {"tag": pa.array(["ack"]), "body": pa.array([b'{"no": "record"}'], pa.binary())}
    log.append([Batch(pa.RecordBatch.from_pydict(rows_without_record))])
    tables.ack(popped, 1)
    for _ in range(2):
        with pytest.raises(Corrupt, match=re.escape(f"{log.ref.name}: the record at offset 1 is damaged")) as raised:
            merges.run()
        assert raised.value.code == "record_corrupt"
        assert merged_states(tables) == {}


@pytest.mark.promise("STATE-10")
def test_what_retention_took_out_of_a_planned_batch_is_told(tables: QueueTables, merges: Merges) -> None:
    topic, group = tables.topic(), tables.group()
    for at in range(3):
        tables.pop(group, topic, [at], at_ms=NOW_MS)
    failpoints.arm("merge.before_merge=raise")
    with pytest.raises(FailpointHit):
        merges.run()
    failpoints.arm("")
    tables.warehouse.open_partition(revive_ref(CLUSTER, 0, BROKER)).delete_below(2)
    merges.restart()
    with pytest.raises(Corrupt, match=r"offsets \[0, 2\) were not merged and are gone") as raised:
        merges.run()
    assert raised.value.code == "merge_gap"


@pytest.mark.long
def test_a_run_says_how_many_records_came_meanwhile(
    tables: QueueTables, merges: Merges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what the job is behind: the next run merges them."""
    topic, group = tables.topic(), tables.group()
    popped = tables.pop(group, topic, [1, 2], at_ms=NOW_MS)
    carry_out = SparkSession.sql

    def while_acks_come(session: SparkSession, query: str, *arguments: Any, **options: Any) -> Any:
        done = carry_out(session, query, *arguments, **options)
        if query.startswith("MERGE"):
            for offset in (1, 2):
                tables.ack(popped, offset)
        return done

    with monkeypatch.context() as patched:
        patched.setattr(SparkSession, "sql", while_acks_come)
        assert merges.run()["behind_records"] == 2
    facts = merges.run()
    assert (facts["rows"], facts["behind_records"]) == (2, 0)


@pytest.mark.long
def test_pop_19_what_is_in_flight_for_whom_since_when_due_when(
    spark: SparkSession, tables: QueueTables, merges: Merges
) -> None:
    topic, group = tables.topic(), tables.group()
    popped = tables.pop(group, topic, [3, 5, 6], at_ms=NOW_MS, invisible_ms=30_000, attempts=(1, 2, 1), queue=4)
    tables.ack(popped, 5)
    merges.run()
    (row,) = rows(spark, tables, POP_CHECKPOINTS)
    naive = NOW.replace(tzinfo=None)
    assert row == {
        "group": "billing",
        "topic": "orders",
        "topic_id": topic.id,
        "retry": False,
        "partition": f"orders@{BROKER}",
        "broker": BROKER,
        "epoch": group.epoch,
        "start_offset": 3,
        "pop_time": naive,
        "num": 3,
        "diffs": [0, 2, 3],
        "attempts": [1, 2, 1],
        "invisible_ms": 30_000,
        "revive_time": naive + timedelta(seconds=30),
        "acked": 0b010,
        "replaced": 0,
        "done": 0,
        "in_flight": 2,
        "dead_reason": None,
        "given_back": None,
        "revive_queue": 4,
        "revive_offset": 0,
        "merged_at": naive,
        "due_time": naive + timedelta(seconds=30),
    }


def due_times(tables: QueueTables) -> dict[CheckpointKey, int | None]:
    """When each checkpoint is due, as the table says, and that its data files have statistics of it."""
    state = read_state(tables.warehouse.store, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA)
    assert state is not None
    keys = [key for key, _ in states_of_rows(state.rows.select(CHECKPOINT_COLUMNS))]
    return dict(zip(keys, pc.divide(state.rows.column("due_time").cast("int64"), 1_000).to_pylist(), strict=True))


def expected_due_times(tables: QueueTables) -> dict[CheckpointKey, int | None]:
    return {key: one.revive_time_ms if one.open else None for key, one in expected_states(tables).items()}


@pytest.mark.promise("STATE-11")
@pytest.mark.long
def test_pop_11_what_is_due_is_found_by_the_statistics_of_the_data_files(
    spark: SparkSession, tables: QueueTables, merges: Merges
) -> None:
    """A checkpoint is due at its revive time while messages of it are given away, and never when it is not known."""
    topic, group = tables.topic(), tables.group()
    soon, late, done = (
        tables.pop(group, topic, [at, at + 1], at_ms=NOW_MS, invisible_ms=10_000 + at) for at in (1, 500, 20)
    )
    unknown = tables.checkpoint(group, topic, [30], at_ms=NOW_MS)
    tables.record(Ack(unknown.key, 1, unknown.revive_time_ms))
    merges.run()
    tables.ack(done, 20, 21)
    tables.ack(late, 500)
    merges.run()
    expected = {soon.key: NOW_MS + 10_001, late.key: NOW_MS + 10_500, done.key: None, unknown.key: None}
    assert due_times(tables) == expected
    files = DeltaTable(table_at(tables, POP_CHECKPOINTS)).get_add_actions(flatten=True)
    shown = pa.table(files).to_pylist()
    least = min(row["min.due_time"] for row in shown if row["min.due_time"] is not None)
    assert least == NOW + timedelta(milliseconds=10_001)
    assert sum(row["null_count.due_time"] for row in shown) == 2


@pytest.mark.promise("STATE-1")
@pytest.mark.long
def test_cons_04_progress_is_merged_with_its_epochs_and_what_ordered_groups_have(
    spark: SparkSession, tables: QueueTables, merges: Merges
) -> None:
    topic, group = tables.topic("orders", 2, ("a", "b")), tables.group()
    lanes = [LaneKey(topic.id, group.name, False, name) for name in topic.route.partitions]
    epoch = group.epoch
    commit(tables, lanes[0], Committed(epoch, 5), Committed(epoch, 9), Committed(epoch, 7), broker="a")
    leases = Delivered(3, 2, 50, 90), Delivered(7, 1, 50, 90)
    commit(tables, lanes[1], Committed(epoch, 2, ((4, 6),), leases), broker="b")
    merges.run()
    commit(tables, lanes[0], Committed(epoch, 8), broker="a")
    leases = Delivered(3, 3, 91, 99), Delivered(7, 1, 60, 95)
    commit(tables, lanes[1], Committed(epoch, 3, ((5, 7), (9, 10)), leases), broker="b")
    merges.run()
    records = logged(tables, OFFSETS, offset_records_of)
    assert merged_progress(tables) == committed_of({}, records)
    shown = {row["partition"]: row for row in rows(spark, tables, CONSUMER_OFFSETS)}
    assert shown["orders@a"]["committed_offset"] == 9
    second = shown["orders@b"]
    assert (second["committed_offset"], second["broker"], second["topic"]) == (3, "b", "orders")
    assert second["done"] == [{"low": 4, "high": 7}, {"low": 9, "high": 10}]
    assert second["delivered"] == [
        {"offset": 3, "attempt": 3, "pop_time_ms": 91, "visible_ms": 99},
        {"offset": 7, "attempt": 1, "pop_time_ms": 60, "visible_ms": 95},
    ]
    reset = tables.meta.submit_groups(lambda m: decide_reset_offsets(m.groups, group.name, "orders", {lanes[0]: 1}))
    commit(tables, lanes[0], Committed(reset.groups.epoch, 2), Committed(epoch, 50), broker="a")
    merges.run()
    assert merged_progress(tables)[lanes[0]] == Committed(reset.groups.epoch, 2)


@pytest.mark.long
def test_kafka_13_texts_are_merged_with_the_offsets_that_they_were_committed_with(
    spark: SparkSession, tables: QueueTables, merges: Merges
) -> None:
    topic, group = tables.topic("orders", 2, ("a", "b")), tables.group()
    one, two = (LaneKey(topic.id, group.name, False, name) for name in topic.route.partitions)
    epoch = group.epoch

    def merge(of_one: list[Committed], of_two: list[Committed]) -> list[tuple[str | None, int | None]]:
        for lane, told, broker in ((one, of_one, "a"), (two, of_two, "b")):
            if told:
                commit(tables, lane, *told, broker=broker)
        merges.run()
        shown = {row["partition"]: row for row in rows(spark, tables, CONSUMER_OFFSETS)}
        return [(shown[lane.partition]["metadata"], shown[lane.partition]["metadata_number"]) for lane in (one, two)]

    assert merge([Committed(epoch, 5)], [Committed(epoch, 5)]) == [(None, None), (None, None)]
    first, second = (Committed(epoch, 5, note=CommitNote(number, text)) for number, text in ((1, "a"), (2, "b")))
    assert merge([second, first], []) == [("b", 2), (None, None)]
    cleared, ahead = Committed(epoch, 5, note=CommitNote(3, "")), Committed(epoch, 7, note=CommitNote(1, "c"))
    assert merge([first, cleared, second], [ahead]) == [(None, 3), ("c", 1)]
    assert merged_progress(tables) == committed_of({}, logged(tables, OFFSETS, offset_records_of))
    last = Committed(epoch, 5, note=CommitNote(4, "d"))
    assert merge([last], [Committed(epoch, 8)]) == [("d", 4), (None, None)], "a later commit without a text has none"
    tables.meta.submit_groups(lambda m: decide_reset_offsets(m.groups, group.name, "orders", {one: 5}))
    late = Committed(epoch, 5, note=CommitNote(5, "late"))
    assert merge([late], []) == [(None, None), (None, None)], "a reset clears it, whatever comes late"


@pytest.mark.promise("STATE-4")
@pytest.mark.long
def test_rows_that_nobody_needs_are_deleted(tables: QueueTables, merges: Merges) -> None:
    """Finished and below the committed offset; of a reset epoch; of a group and of a topic that are gone."""
    topic, other = tables.topic(), tables.topic("taxes")
    group, gone = tables.group(), tables.group("gone")
    lane = LaneKey(topic.id, group.name, False, f"orders@{BROKER}")
    finished, ahead, open_one = (
        tables.pop(group, topic, [at, at + 1], at_ms=NOW_MS, invisible_ms=10_000) for at in (0, 2, 4)
    )
    for popped in (finished, ahead):
        tables.ack(popped, *(popped.span.offset_of(index) for index in range(2)))
    tables.pop(gone, topic, [0], at_ms=NOW_MS)
    tables.pop(group, other, [0], at_ms=NOW_MS)
    commit(tables, lane, Committed(group.epoch, 2))
    commit(tables, lane._replace(retry=True), Committed(group.epoch, 5))
    commit(tables, lane._replace(group=gone.name), Committed(gone.epoch, 1))
    merges.run()
    assert len(merged_states(tables)) == 5
    assert len(merged_progress(tables)) == 3
    tables.meta.submit_groups(lambda m: decide_delete_group(m.groups, gone.name))
    tables.delete_topic(other)
    merges.restart()
    merges.run(NOW + timedelta(seconds=69))
    assert set(merged_states(tables)) == {finished.key, ahead.key, open_one.key}
    assert set(merged_progress(tables)) == {lane, lane._replace(retry=True)}
    merges.restart()
    assert merges.run(NOW + timedelta(seconds=70))["batches"] == 1
    assert set(merged_states(tables)) == {ahead.key, open_one.key}
    put = {lane: 1, lane._replace(retry=True): NO_OFFSET}
    tables.meta.submit_groups(lambda m: decide_reset_offsets(m.groups, group.name, "orders", put))
    merges.restart()
    merges.run(NOW + timedelta(seconds=71))
    assert merged_states(tables) == {}
    assert merged_progress(tables) == {lane: tables.meta.groups.resets[lane]}


@pytest.mark.promise("STATE-4")
@pytest.mark.long
def test_pop_09_a_checkpoint_that_is_still_in_memory_is_not_forgotten_what_was_taken_over(
    tables: QueueTables, merges: Merges
) -> None:
    """Only the change is stored so far: the row of the old checkpoint has no revive time, and yet it must stay."""
    topic, group = tables.topic(), tables.group()
    held = tables.checkpoint(group, topic, [0, 1], at_ms=NOW_MS)
    tables.record(held.changed(1, now_ms=NOW_MS + 1, invisible_ms=10_000, revive_queue=0))
    merges.run()
    merges.restart()
    merges.run(NOW + timedelta(seconds=69))
    tables.record(held)
    merges.run(NOW + timedelta(seconds=70))
    assert merged_states(tables)[held.key].open == 0b01


@pytest.mark.long
def test_pop_12_losses_are_rows(spark: SparkSession, tables: QueueTables, merges: Merges) -> None:
    topic = tables.topic()
    lane = LaneKey(topic.id, "billing", False, f"orders@{BROKER}")
    lost = [
        LostRecord(lane=lane, topic="orders", ranges=ranges, reason=LostReason.RETENTION, time_ms=NOW_MS + at)
        for at, ranges in enumerate([((1, 4), (6, 7)), ((6, 7),), ((9, 10),)])
    ]
    log = tables.warehouse.create(system_ref(LOST, CLUSTER, BROKER))
    for record in lost:
        log.append([Batch(rows_of_lost_records([record]))])
        merges.run()
    shown = rows(spark, tables, LOST_MESSAGES)
    assert sorted((row["low"], row["high"]) for row in shown) == [(1, 4), (6, 7), (9, 10)]
    assert {(row["group"], row["topic"], row["reason"], row["broker"]) for row in shown} == {
        ("billing", "orders", "retention", BROKER)
    }


@pytest.mark.long
def test_cons_06_statistics_are_merged_once_and_forgotten_after_a_week(
    spark: SparkSession, tables: QueueTables, merges: Merges
) -> None:
    """A minute may be stored twice, and again with more; each process counts for itself."""
    log = tables.warehouse.create(system_ref(STATISTICS, CLUSTER, BROKER))

    def told(process: str, minutes_ago: float, *delivered: int) -> None:
        key = MinuteKey(NOW_MS - int(minutes_ago * 60_000), "billing", "orders", "id", BROKER)
        records = [StatisticsRecord(key, process, Consumed(delivered=one, age_ms=10 * one)) for one in delivered]
        log.append([Batch(rows_of_statistics(records))])

    def shown() -> list[tuple[str, int, int, int]]:
        found = rows(spark, tables, GROUP_STATISTICS)
        return sorted((row["process"], row["delivered"], row["age_ms"], row["failed"]) for row in found)

    week = 7 * 24 * 60
    told("a", 1, 3, 5, 3)
    told("b", 1, 2)
    told("a", week - 1, 9)
    told("a", week + 1, 7)
    merges.run()
    assert shown() == [("a", 5, 50, 0), ("a", 9, 90, 0), ("b", 2, 20, 0)]
    told("a", 1, 4)
    told("b", 1, 6)
    merges.run()
    assert shown() == [("a", 5, 50, 0), ("a", 9, 90, 0), ("b", 6, 60, 0)], "the highest counts"
    told("b", 0, 1)
    merges.run(NOW + timedelta(minutes=2))
    assert shown() == [("a", 5, 50, 0), ("b", 1, 10, 0), ("b", 6, 60, 0)], "a week is over"
    log.append([Batch(pa.RecordBatch.from_pydict({"tag": ["statistics"], "body": pa.array([b"{}"], pa.binary())}))])
    with pytest.raises(Corrupt, match="the record at offset 9 is damaged") as raised:
        merges.run()
    assert raised.value.code == "record_corrupt"


@pytest.mark.promise("STATE-3")
@pytest.mark.long
def test_meta_03_a_start_needs_the_tables_and_what_the_logs_have_behind_them(
    tables: QueueTables, merges: Merges
) -> None:
    """Retention cuts what is merged; a start, and a follower that was behind, know everything all the same."""
    drawn = random.Random(5)
    records = any_records(tables, drawn, 12)
    lane = LaneKey(tables.topic("orders", 2).id, "billing", False, f"orders@{BROKER}")
    epoch = tables.group().epoch
    behind = Follower(Warehouse.open(tables.conf.warehouse.uri), CLUSTER, [BROKER])
    store(tables, records[:5], drawn)
    behind.refresh()
    store(tables, records[5:30], drawn)
    commit(tables, lane, Committed(epoch, 3, ((5, 6),)))
    merges.run()
    reached = merged_to(tables.warehouse.store)
    expected = expected_states(tables)
    for ref, offset in reached.items():
        assert tables.warehouse.open_partition(ref).end_offset == offset
        tables.warehouse.open_partition(ref).delete_below(offset)
    store(tables, records[30:], drawn)
    commit(tables, lane, Committed(epoch, 4))
    late = [
        record
        for ref, offset in [(revive_ref(CLUSTER, queue, BROKER), 0) for queue in range(8)]
        if tables.warehouse.exists(ref)
        for page in pages(tables.warehouse.open_partition(ref), reached.get(ref, offset))
        for record in records_of(page.rows)
    ]
    expected = fold(expected, late)
    plain = {
        k: replace(s, checkpoint=s.checkpoint and replace(s.checkpoint, replaces=None)) for k, s in expected.items()
    }
    behind.refresh()
    found = {
        k: replace(s, checkpoint=s.checkpoint and replace(s.checkpoint, replaces=None))
        for k, s in behind.states.items()
    }
    assert found == plain
    recovered = recover(Warehouse.open(tables.conf.warehouse.uri), CLUSTER, [BROKER])
    assert recovered.committed == {lane: Committed(epoch, 4, ((5, 6),))}
    assert sum(map(len, recovered.states.values())) == sum(1 for one in plain.values() if one.checkpoint)
    assert recover(tables.warehouse, CLUSTER, ["elsewhere"]).states == {}


@pytest.mark.long
def test_replaced_files_and_old_commits_are_swept(spark: SparkSession, tables: QueueTables) -> None:
    merges = Merges(spark, tables, Tuning(files_max=2))
    topic, group = tables.topic(), tables.group()
    for at in range(4):
        tables.pop(group, topic, [at], at_ms=NOW_MS)
        merges.run()
        if at == 0:
            often = "SET TBLPROPERTIES ('delta.checkpointInterval' = '2')"
            spark.sql(f"ALTER TABLE delta.`{table_at(tables, POP_CHECKPOINTS)}` {often}")
    expected = expected_states(tables)
    warehouse = tables.warehouse.store
    log = read_state_log(warehouse, POP_CHECKPOINTS)
    assert log is not None and log.checkpoint_version > 0 and len(log.files) <= 3
    files = {entry.name: entry for entry in warehouse.entries(POP_CHECKPOINTS)}
    newest_ms = max(entry.modified_ms for entry in files.values())
    oldest_ms = min(entry.modified_ms for entry in files.values())
    assert sweep_state(warehouse, POP_CHECKPOINTS, oldest_ms + DATA_KEEP_MS) == 0
    assert sweep_state(warehouse, POP_CHECKPOINTS, newest_ms + LOG_KEEP_MS + 60_000) > 4
    left = {entry.name for entry in warehouse.entries(POP_CHECKPOINTS)}
    assert left == {name for path in log.paths for name in (path, f".{path}.crc")}, "and Spark's checksums with them"
    versions = [re.search(r"(\d{20})", entry.name) for entry in warehouse.entries(f"{POP_CHECKPOINTS}/_delta_log")]
    assert min(int(found[1]) for found in versions if found) == log.checkpoint_version
    merges.restart()
    tables.pop(group, topic, [99], at_ms=NOW_MS)
    merges.run()
    assert merged_states(tables).keys() > expected.keys()
    assert spark.read.format("delta").load(table_at(tables, POP_CHECKPOINTS)).count() == 5
    merges.close()
