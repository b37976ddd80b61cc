"""Delayed messages arrive when they are due: once, in order, unless cancelled, whatever happens to the job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.jobs.queue.batch_bounds import BOUNDS, BatchBounds
from deltamq.jobs.queue.delay_queue import WaitingOffsets, ranges_of
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.delay import Ended
from deltamq.mq.schemas.changes import decide_delete_subject
from deltamq.mq.schemas.setting import Format, OnInvalid
from deltamq.tables import failpoints
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.delay_marks import DelayMarks, ended_below, void_marks_below
from deltamq.tables.queue.records import rows_of_delay_marks
from deltamq.tables.queue.refs import DELAY, DELAY_MARKS, system_ref
from deltamq.tables.store.store import MemoryStore
from deltamq.tables.typed_row import TYPED
from tests.queue_engines import ENGINES, QueueJob, delay_job
from tests.queue_tables import BROKER, CLUSTER, QueueTables
from tests.rows import batch
from tests.set_clock import AheadClock
from tests.typed import make_typed

pytestmark = pytest.mark.promise("JOB-18")


class Bench:
    """A service's tables with one topic, and a job in a process of its own."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.engine = engine
        self.tables = QueueTables(folder)
        self.topic: Topic = self.tables.topic()
        self._warehouses: list[Warehouse] = []
        self.job = self.new_job()

    def new_job(self, *, clock: Clock = SYSTEM_CLOCK, bounds: BatchBounds = BOUNDS) -> QueueJob:
        """The job as it starts."""
        warehouse = Warehouse.open(self.tables.warehouse.uri, clock=clock)
        self._warehouses.append(warehouse)
        return delay_job(self.engine, warehouse, self.tables.conf, bounds)

    def delay(self, *messages: tuple[str, int]) -> list[int]:
        return self.tables.delay(self.topic, *messages)

    def delivered(self) -> list[str]:
        return [row["body"].decode() for row in self.tables.delivered(self.topic)]

    def ended_below(self) -> int:
        return ended_below(self.tables.warehouse, CLUSTER, BROKER)

    def close(self) -> None:
        for warehouse in self._warehouses:
            warehouse.close()
        self.tables.close()


@pytest.fixture(params=ENGINES)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(tmp_path / "w", request.param)
    yield made
    failpoints.arm("")
    made.close()


def test_retry_04_each_arrives_when_it_is_due_and_not_before(bench: Bench) -> None:
    bench.delay(("c", 3_000), ("a", 1_000), ("b", 2_000))
    assert bench.job.run(999)["rows"] == 0
    assert bench.job.run(2_000)["rows"] == 2
    assert bench.delivered() == ["a", "b"]
    bench.delay(("d", 2_500))
    facts = bench.job.run(3_100)
    assert (facts["rows"], facts["late_ms"], facts["waiting"]) == (2, 600, 0)
    assert bench.delivered() == ["a", "b", "d", "c"]


def test_retry_04_a_message_arrives_as_it_was_sent(bench: Bench) -> None:
    bench.delay(("a", 1_000))
    (waiting,) = bench.tables.rows(system_ref(DELAY, CLUSTER, BROKER))
    bench.job.run(1_000)
    (row,) = bench.tables.delivered(bench.topic)
    kept = ("message_id", "key", "tag", "headers", "body", "born_time", "deliver_time")
    assert {name: row[name] for name in kept} == {name: waiting[name] for name in kept}
    assert (row["origin"], row["reconsume_times"]) == (None, 0)


def test_retry_05_a_restart_neither_loses_nor_repeats(bench: Bench) -> None:
    bench.delay(("a", 1_000), ("b", 5_000))
    bench.job.run(1_000)
    bench.new_job().run(1_000)
    bench.delay(("c", 4_000))
    again = bench.new_job()
    again.run(4_000)
    again.run(5_000)
    bench.new_job().run(9_000)
    assert bench.delivered() == ["a", "c", "b"]


def test_retry_04_a_cancelled_message_never_arrives(bench: Bench) -> None:
    first, second, _ = bench.delay(("a", 1_000), ("b", 1_000), ("c", 1_000))
    bench.tables.cancel(first)
    bench.job.run(500)
    bench.tables.cancel(second)
    assert bench.job.run(1_000)["cancelled"] == 2
    assert bench.new_job().run(1_000)["cancelled"] == 0
    assert bench.delivered() == ["c"]


def test_pop_12_a_topic_made_again_does_not_get_the_messages_of_its_earlier_life(bench: Bench) -> None:
    bench.delay(("a", 1_000))
    bench.tables.delete_topic(bench.topic)
    bench.topic = bench.tables.topic()
    assert bench.job.run(1_000)["dropped"] == 1
    assert bench.delivered() == []
    assert bench.ended_below() == 1


def test_retry_04_targets_of_all_brokers_and_partitions(bench: Bench) -> None:
    wide = bench.tables.topic("wide", partitions=4, brokers=("broker-a", "broker-b"))
    brokers = [name.rpartition("@")[2] for name in wide.route.partitions]
    for index, broker in enumerate(brokers):
        bench.tables.delay(wide, (f"late-{index}", 2_000), (f"m-{index}", 1_000), partition=index, broker=broker)
    assert bench.job.run(2_000)["rows"] == 8
    for index in range(4):
        assert [row["body"].decode() for row in bench.tables.delivered(wide, index)] == [f"m-{index}", f"late-{index}"]


@pytest.mark.parametrize("on_invalid", ["reject", "quarantine", "rescue"])
@pytest.mark.parametrize("form", ["json", "columns"])
def test_type_42_delayed_messages_get_columns_and_none_is_lost(
    bench: Bench, form: Format, on_invalid: OnInvalid
) -> None:
    """What was accepted before the topic had this schema, or in an older version, may not fit now."""
    text = "id BIGINT NOT NULL" if form == "columns" else '{"properties": {"id": {"type": "integer"}}}'
    bench.delay(('{"id": 1}', 1_000), ("nonsense", 1_000), ('{"id": 2}', 1_001))
    make_typed(bench.tables.meta, "orders", form, text, on_invalid=on_invalid)
    assert bench.job.run(2_000)["rows"] == 3
    log = bench.tables.log(bench.topic)
    log.refresh()
    rows = log.read(0, max_messages=10, max_bytes=1 << 20, columns=("offset", "key", "body", *TYPED)).rows
    assert rows.column("value").to_pylist()[::2] == [{"id": 1}, {"id": 2}]
    assert rows.column("body").to_pylist() == [b'{"id":1}', b"nonsense", b'{"id":2}'] or form == "json"
    if on_invalid == "rescue":
        assert "nonsense" in rows.column("rescued").to_pylist()[1]
    else:
        assert rows.column("invalid").to_pylist()[1]["code"] == "not_json"
        assert log.has_invalid(0, 3)
    assert bench.ended_below() == 3
    assert bench.new_job().run(3_000)["rows"] == 0


def _removed(subject: str, permanent: bool, state: Meta) -> Sequence[AnyEvent]:
    return decide_delete_subject(state.schemas, subject, permanent=permanent)


def test_type_42_a_topic_whose_schema_is_gone_gets_its_messages_later(bench: Bench) -> None:
    setting = make_typed(bench.tables.meta, "orders", "columns", "id BIGINT")
    bench.delay(('{"id": 1}', 1_000))
    for permanent in (False, True):
        remove = partial(_removed, setting.subject, permanent)
        bench.tables.meta.submit_any(remove)
    assert "has no version" in str(bench.job.run(1_000)["trouble"])
    assert bench.ended_below() == 0
    make_typed(bench.tables.meta, "orders", "columns", "id BIGINT")
    assert bench.new_job().run(10_000_000)["rows"] == 1


@pytest.mark.promise("JOB-7")
def test_retry_05_a_job_that_was_down_for_days_finds_what_it_had_forwarded(bench: Bench) -> None:
    """Longer than a partition remembers its producers: its rows tell."""
    clock = AheadClock(-3 * 24 * 3_600_000)
    days_ms = clock.wall_us() // 1_000 - 100
    bench.delay(("a", days_ms), ("b", days_ms + 1), ("c", days_ms + 1_000))
    failpoints.arm("delay.after_append=raise")
    assert "FailpointHit" in str(bench.new_job(clock=clock).run(days_ms + 100)["trouble"])
    failpoints.arm("")
    assert bench.delivered() == ["a", "b"]
    assert bench.new_job().run(time.time_ns() // 1_000_000)["rows"] == 1
    assert bench.delivered() == ["a", "b", "c"]
    assert bench.ended_below() == 3


@pytest.mark.parametrize("point", ["delay.after_append", "delay.after_mark", "commit.after_link"])
@pytest.mark.parametrize("hit", [1, 2, 3])
def test_retry_05_each_arrives_once_wherever_a_run_breaks_off(bench: Bench, point: str, hit: int) -> None:
    """The same job goes on, or another that knows nothing: the target tells what it has."""
    few = BatchBounds(messages=20)
    job = bench.new_job(bounds=few)
    bodies = [f"m{i}" for i in range(50)]
    bench.delay(*[(body, 1_000 + at) for at, body in enumerate(bodies)])
    bench.tables.cancel(7)
    failpoints.arm(f"{point}=raise@{hit}")
    facts = job.run(2_000)
    assert "trouble" in facts
    failpoints.arm("")
    for _ in range(2):
        (job if hit == 1 else bench.new_job(bounds=few)).run(4_000)
    assert sorted(bench.delivered()) == sorted(set(bodies) - {"m7"})
    assert bench.ended_below() == 50


@pytest.mark.promise("JOB-8")
def test_retry_04_a_target_that_cannot_be_written_delays_only_its_own(tmp_path: Path, bench: Bench) -> None:
    other = bench.tables.topic("other")
    log = bench.tables.log(bench.topic)
    (commit,) = (tmp_path / "w" / log.ref.folder / "_delta_log").glob("*.json")
    whole = commit.read_bytes()
    commit.write_bytes(whole[:-20])
    bench.delay(("a", 1_000))
    bench.tables.delay(other, ("b", 1_000))
    facts = bench.job.run(1_100)
    assert [row["body"] for row in bench.tables.delivered(other)] == [b"b"]
    assert (facts["rows"], facts["waiting"], facts["behind_ms"]) == (1, 1, 100)
    assert bench.ended_below() == 0
    commit.write_bytes(whole)
    assert bench.job.run(1_900)["rows"] == 0
    facts = bench.job.run(2_100)
    assert (facts["rows"], facts["late_ms"], facts["behind_ms"]) == (1, 1_100, 0)
    assert bench.delivered() == ["a"]
    assert bench.ended_below() == 2


def test_retry_04_a_row_without_a_target_delays_nothing_else(bench: Bench) -> None:
    bench.delay(("a", 1_000))
    bench.tables.warehouse.open_partition(system_ref(DELAY, CLUSTER, BROKER)).append([batch(b"stray")])
    facts = bench.job.run(1_000)
    assert "names no target" in str(facts["trouble"])
    assert bench.delivered() == ["a"]
    assert bench.ended_below() == 1


def test_retry_04_a_broker_whose_marks_cannot_be_read_is_held(tmp_path: Path, bench: Bench) -> None:
    (offset,) = bench.delay(("a", 1_000))
    bench.tables.cancel(offset)
    (data,) = (tmp_path / "w" / system_ref(DELAY_MARKS, CLUSTER, BROKER).folder).glob("*.parquet")
    data.rename(tmp_path / "away")
    assert "broker-a is held" in str(bench.job.run(1_000)["trouble"])
    assert bench.delivered() == []
    (tmp_path / "away").rename(data)
    assert bench.new_job().run(1_000)["cancelled"] == 1
    assert bench.delivered() == []


def test_retry_06_logs_may_begin_behind_what_has_ended(bench: Bench) -> None:
    for at in range(4):
        bench.delay((f"m{at}", 1_000 * at))
    bench.tables.cancel(1)
    bench.job.run(1_000)
    assert bench.ended_below() == 2
    assert void_marks_below(bench.tables.warehouse, CLUSTER, BROKER) == 0
    bench.tables.warehouse.open_partition(system_ref(DELAY, CLUSTER, BROKER)).delete_below(2)
    keep_from = void_marks_below(bench.tables.warehouse, CLUSTER, BROKER)
    assert keep_from == 2
    bench.tables.warehouse.open_partition(system_ref(DELAY_MARKS, CLUSTER, BROKER)).delete_below(keep_from)
    bench.tables.cancel(3)
    bench.new_job().run(9_000)
    assert bench.delivered() == ["m0", "m2"]
    assert bench.ended_below() == 4


def test_retry_04_large_messages_pass_in_pieces(bench: Bench) -> None:
    bodies = [f"{i:03}" * 500 for i in range(40)]
    bench.delay(*[(body, 1_000 - at) for at, body in enumerate(bodies)])
    assert bench.new_job(bounds=BatchBounds(outbox_bytes=5_000)).run(2_000)["rows"] == 40
    assert bench.delivered() == bodies[::-1]


def test_marks_without_a_delay_log_hold_nothing(bench: Bench) -> None:
    assert (bench.ended_below(), void_marks_below(bench.tables.warehouse, CLUSTER, BROKER)) == (0, 0)
    assert bench.job.run(1)["waiting"] == 0


offsets_with_times = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 100)), unique_by=lambda one: one[1])


@given(st.lists(st.tuples(offsets_with_times, st.integers(0, 40))))
def test_waiting_offsets_come_in_order_when_due(steps: list[tuple[list[tuple[int, int]], int]]) -> None:
    waiting, expected, now = WaitingOffsets(), [], 0
    for added, later in steps:
        waiting.add(np.array([t for t, _ in added], np.int64), np.array([o for _, o in added], np.int64))
        expected += added
        now += later
        times, offsets = waiting.take(now)
        due = sorted(one for one in expected if one[0] <= now)
        assert list(zip(times.tolist(), offsets.tolist(), strict=True)) == due
        expected = [one for one in expected if one[0] > now]
        assert len(waiting) == len(expected)


@given(st.sets(st.integers(0, 60), min_size=1), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=9))
def test_ranges_and_marks_agree_with_sets(offsets: set[int], ended: list[tuple[int, int]]) -> None:
    ranges = ranges_of(np.array(sorted(offsets, reverse=True), np.int64))
    assert {offset for low, high in ranges for offset in range(low, high)} == offsets
    assert all(low < high for low, high in ranges)
    warehouse = Warehouse.open("memory", store=MemoryStore())
    marks = DelayMarks(warehouse, CLUSTER, BROKER)
    mark = Ended(marks.delay_partition, tuple((low, low + length) for low, length in ended))
    warehouse.create(system_ref(DELAY_MARKS, CLUSTER, BROKER)).append([Batch(rows_of_delay_marks([mark]))])
    marks.refresh()
    gone = {offset for low, length in ended for offset in range(low, low + length)}
    assert marks.not_ended(np.arange(80)).tolist() == [offset for offset in range(80) if offset not in gone]
