"""What nobody acknowledged comes again, once, whatever happens to the job or to the tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.jobs.queue.batch_bounds import BOUNDS, BatchBounds
from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import ACK_SETTLE_MS
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import Checkpoint
from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from deltamq.mq.queue.revive import LostReason
from deltamq.tables import failpoints
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.failpoints import FailpointHit
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import Space
from deltamq.tables.queue.refs import retry_ref, revive_ref
from tests.queue_engines import ENGINES, QueueJob, revive_job
from tests.queue_tables import BROKER, CLUSTER, QueueTables
from tests.rows import batch
from tests.set_clock import AheadClock

pytestmark = pytest.mark.promise("JOB-18")


#: A checkpoint popped at 0 for 10 s is looked at from here on.
DUE = 10_000 + ACK_SETTLE_MS


class Bench:
    """A service's tables with one topic and one group, and a job in a process of its own."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.engine = engine
        self.tables = QueueTables(folder)
        self.topic: Topic = self.tables.topic()
        self.group: Group = self.tables.group()
        self._warehouses: list[Warehouse] = []
        self.job = self.new_job()

    def new_job(self, *, clock: Clock = SYSTEM_CLOCK, bounds: BatchBounds = BOUNDS) -> QueueJob:
        """The job as it starts."""
        warehouse = Warehouse.open(self.tables.warehouse.uri, clock=clock)
        self._warehouses.append(warehouse)
        return revive_job(self.engine, warehouse, self.tables.conf, bounds)

    def run_broken(self, now_ms: int) -> None:
        """A run that a failpoint breaks off: the local engine's raises, a task's is told."""
        if self.engine == "local":
            with pytest.raises(FailpointHit):
                self.job.run(now_ms)
        else:
            assert "FailpointHit" in str(self.job.run(now_ms)["trouble"])

    def send(self, *bodies: str) -> list[int]:
        return self.tables.send(self.topic, *bodies)

    def pop(self, offsets: list[int], **options: object) -> Checkpoint:
        return self.tables.pop(self.group, self.topic, offsets, **options)

    def retried(self) -> list[str]:
        return [row["body"].decode() for row in self.tables.retried(self.group, self.topic)]

    def dead(self) -> list[str]:
        return [row["body"].decode() for row in self.tables.dead(self.group)]

    def close(self) -> None:
        for warehouse in self._warehouses:
            warehouse.close()
        self.tables.close()


@pytest.fixture(params=ENGINES)
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(tmp_path / "w", request.param)
    yield made
    made.close()
    failpoints.arm("")


def test_pop_11_what_is_not_acknowledged_comes_again_with_its_history(bench: Bench) -> None:
    offsets = bench.send("a", "b", "c")
    popped = bench.pop(offsets)
    bench.tables.ack(popped, offsets[1])
    assert bench.job.run(DUE - 200)["rows"] == 0
    assert bench.retried() == []
    facts = bench.job.run(DUE)
    assert (facts["rows"], facts["late_ms"], facts["behind_ms"]) == (2, ACK_SETTLE_MS, 0)
    again = bench.tables.retried(bench.group, bench.topic)
    assert [row["body"] for row in again] == [b"a", b"c"]
    first = bench.tables.delivered(bench.topic)[2]
    kept = ("message_id", "key", "tag", "headers", "body", "born_time")
    assert {name: again[1][name] for name in kept} == {name: first[name] for name in kept}
    assert again[1]["origin"] == {"topic": "orders", "partition": bench.topic.route.partitions[0], "offset": 2}
    assert [row["reconsume_times"] for row in again] == [1, 1]
    assert [(one.key, one.bits) for one in bench.tables.done()] == [(popped.key, 0b101)]


def test_pop_11_running_again_revives_nothing_twice(bench: Bench) -> None:
    bench.pop(bench.send("a", "b"))
    for now in (DUE, DUE, DUE + 1_000, DUE + 100_000):
        bench.job.run(now)
    assert bench.new_job().run(DUE + 100_000)["rows"] == 0
    assert bench.retried() == ["a", "b"]


def test_pop_11_an_ack_before_its_checkpoint_and_records_twice_change_nothing(bench: Bench) -> None:
    offsets = bench.send("a", "b")
    popped = bench.tables.checkpoint(bench.group, bench.topic, offsets)
    bench.tables.ack(popped, offsets[0])
    bench.job.run(1)
    bench.tables.record(popped, popped)
    bench.tables.ack(popped, offsets[0])
    bench.job.run(DUE)
    assert bench.retried() == ["b"]


def test_pop_11_a_record_that_arrives_late_does_not_revive_what_was_acknowledged(bench: Bench) -> None:
    """Acks are folded into a checkpoint that is remembered beyond its revive time."""
    offsets = bench.send("a")
    popped = bench.pop(offsets)
    bench.tables.ack(popped, offsets[0])
    bench.job.run(DUE)
    bench.tables.record(popped)
    bench.job.run(DUE + 30_000)
    assert bench.retried() == []


def test_pop_11_a_retried_message_keeps_its_first_origin_and_counts_on(bench: Bench) -> None:
    bench.pop(bench.send("a"))
    bench.job.run(DUE)
    bench.pop([0], retry=True, at_ms=20_000, attempts=2)
    bench.job.run(20_000 + DUE)
    again = bench.tables.retried(bench.group, bench.topic)
    assert [row["reconsume_times"] for row in again] == [1, 2]
    assert again[0]["origin"] == again[1]["origin"]


def test_pop_11_the_attempt_limit_holds_for_consumers_that_only_time_out(bench: Bench) -> None:
    bench.group = bench.tables.group(max_attempts=2)
    bench.pop(bench.send("a", "b"), attempts=(1, 2))
    assert bench.job.run(DUE)["dead"] == 1
    assert (bench.retried(), bench.dead()) == (["a"], ["b"])
    (letter,) = bench.tables.dead(bench.group)
    assert dict(letter["headers"]) == {"h": "b", DEAD_REASON_HEADER: "max_attempts"}
    assert (letter["reconsume_times"], letter["origin"]["offset"]) == (2, 1)


def test_pop_11_a_condemned_message_goes_to_the_dead_letters_with_its_reason(bench: Bench) -> None:
    bench.pop(bench.send("a"), dead_reason="cannot be parsed")
    bench.job.run(DUE)
    assert (bench.retried(), bench.dead()) == ([], ["a"])
    assert dict(bench.tables.dead(bench.group)[0]["headers"])[DEAD_REASON_HEADER] == "cannot be parsed"


def test_pop_09_a_message_under_a_new_lease_is_not_revived_with_the_old(bench: Bench) -> None:
    offsets = bench.send("a", "b")
    popped = bench.pop(offsets)
    changed = popped.changed(0, now_ms=5_000, invisible_ms=60_000, revive_queue=0)
    bench.tables.record(changed)
    bench.job.run(DUE)
    assert bench.retried() == ["b"]
    bench.job.run(changed.revive_time_ms + ACK_SETTLE_MS)
    assert bench.retried() == ["b", "a"]


def test_pop_09_a_replacement_seen_before_what_it_replaces_is_remembered(bench: Bench) -> None:
    """The service may keep the old checkpoint in memory for seconds after the new one is stored."""
    popped = bench.tables.checkpoint(bench.group, bench.topic, bench.send("a"))
    changed = popped.changed(0, now_ms=1, invisible_ms=60_000, revive_queue=0)
    bench.tables.record(changed)
    for now in (100, 3_000, 6_000):
        bench.job.run(now)
    bench.tables.record(popped)
    bench.job.run(DUE)
    assert bench.retried() == []


def test_pop_12_earlier_lives_of_topic_and_group_are_skipped(bench: Bench) -> None:
    offsets = bench.send("a")
    other = bench.tables.group("other")
    bench.pop(offsets)
    bench.tables.pop(other, bench.topic, offsets, epoch=other.epoch - 1)
    bench.tables.delete_topic(bench.topic)
    old, bench.topic = bench.topic, bench.tables.topic()
    assert old.id != bench.topic.id
    bench.send("new")
    facts = bench.job.run(DUE)
    assert (facts["rows"], facts["skipped"]) == (0, 2)
    assert bench.retried() == []
    assert len(bench.tables.done()) == 2


@pytest.mark.promise("JOB-10")
def test_pop_12_what_retention_took_is_recorded_once(bench: Bench) -> None:
    offsets = bench.send("a", "b") + bench.send("c")
    bench.pop(offsets)
    bench.tables.log(bench.topic).delete_below(2)
    failpoints.arm("revive.after_lost=raise")
    bench.run_broken(DUE)
    failpoints.arm("")
    assert bench.new_job().run(DUE)["lost"] == 2
    assert bench.retried() == ["c"]
    (lost,) = bench.tables.lost()
    assert (lost.lane.group, lost.ranges, lost.reason) == ("billing", ((0, 2),), LostReason.RETENTION)


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        (point, hit)
        for point, hits in (("revive.after_append", 2), ("revive.after_done", 2), ("commit.after_link", 4))
        for hit in range(1, hits + 1)
    ],
)
def test_pop_11_each_is_revived_once_wherever_a_run_breaks_off(bench: Bench, point: str, hit: int) -> None:
    """The same job goes on, or another that knows nothing: both find what is stored at the destinations."""
    bench.group = bench.tables.group(max_attempts=2)
    bodies = [f"m{i}" for i in range(40)]
    offsets = bench.send(*bodies)
    bench.pop(offsets[:20], queue=1)
    bench.pop(offsets[20:], queue=2, attempts=2)
    failpoints.arm(f"{point}=raise@{hit}")
    # An error of an append is none of the run: what could not be stored waits.
    breaks = point != "commit.after_link"
    (bench.run_broken if breaks else bench.job.run)(DUE)
    failpoints.arm("")
    bench.tables.group(max_attempts=9)  # what is decided already is not decided anew
    (bench.job if hit == 1 else bench.new_job()).run(DUE + 60_000)
    assert sorted(bench.retried() + bench.dead()) == sorted(bodies)
    assert bench.new_job().run(DUE + 60_000)["rows"] == 0


@pytest.mark.promise("JOB-8")
def test_pop_11_one_corrupt_partition_delays_only_its_own(tmp_path: Path, bench: Bench) -> None:
    other = bench.tables.topic("other")
    bench.pop(bench.send("a"))
    bench.tables.pop(bench.group, other, bench.tables.send(other, "b"))
    (data,) = (tmp_path / "w" / bench.tables.log(bench.topic).ref.folder).glob("*.parquet")
    whole = data.read_bytes()
    data.write_bytes(whole[:-200] + b"\0" * 200)
    facts = bench.job.run(DUE)
    assert [row["body"] for row in bench.tables.retried(bench.group, other)] == [b"b"]
    assert (bench.retried(), facts["waiting"]) == ([], 1)
    assert "Corrupt" in str(facts["trouble"])
    data.write_bytes(whole)
    assert bench.job.run(DUE + 500)["behind_ms"] == 500
    bench.job.run(DUE + 10_000)
    assert bench.retried() == ["a"]


@pytest.mark.promise("JOB-8")
def test_pop_11_a_corrupt_destination_delays_only_its_own(tmp_path: Path, bench: Bench) -> None:
    other = bench.tables.group("other")
    offsets = bench.send("a")
    bench.pop(offsets)
    bench.tables.pop(other, bench.topic, offsets)
    ref = retry_ref(bench.group.name, bench.group.epoch, bench.topic.name, 0, BROKER)
    bench.tables.warehouse.create(ref)
    (commit,) = (tmp_path / "w" / ref.folder / "_delta_log").glob("*.json")
    whole = commit.read_bytes()
    commit.write_bytes(whole[:-20])
    facts = bench.job.run(DUE)
    assert [row["body"] for row in bench.tables.retried(other, bench.topic)] == [b"a"]
    assert facts["waiting"] == 1
    commit.write_bytes(whole)
    bench.job.run(DUE + 1_000)
    assert bench.retried() == ["a"]


@pytest.mark.promise("JOB-9")
def test_pop_11_a_broker_whose_acks_cannot_be_read_is_held(tmp_path: Path, bench: Bench) -> None:
    """To deliver what was acknowledged would be worse than to deliver late."""
    far = bench.tables.topic("far", brokers=("broker-b",))
    bench.tables.pop(bench.group, far, bench.tables.send(far, "b"))
    offsets = bench.send("a")
    popped = bench.pop(offsets, queue=1)
    bench.tables.ack(popped, offsets[0])
    newest = max((tmp_path / "w" / revive_ref(CLUSTER, 1, BROKER).folder).glob("*.parquet"))
    newest.rename(tmp_path / "away")
    facts = bench.job.run(DUE)
    assert "broker-a is held" in str(facts["trouble"])
    assert [row["body"] for row in bench.tables.retried(bench.group, far, "broker-b")] == [b"b"]
    assert bench.retried() == []
    assert bench.job.run(DUE + 700)["behind_ms"] == 700
    (tmp_path / "away").rename(newest)
    assert bench.new_job().run(DUE + 700)["rows"] == 0


@pytest.mark.parametrize("bench", ["local"], indirect=True)
def test_pop_11_finished_checkpoints_leave_the_memory(bench: Bench) -> None:
    for at in range(20):
        popped = bench.pop(bench.send("a"), at_ms=at)
        if at % 2:
            bench.tables.ack(popped, popped.span.start_offset)
    assert bench.job.run(1_000)["checkpoints"] == 20
    assert bench.job.run(DUE + 100)["rows"] == 10
    assert bench.job.run(DUE + 200)["checkpoints"] == 20
    assert bench.job.run(DUE + 70_000)["checkpoints"] == 0


def test_pop_11_a_storm_passes_in_pieces(bench: Bench) -> None:
    """Batches of few messages, read in pieces of few bytes."""
    few = BatchBounds(messages=100, queue_messages=50, checkpoints=7, outbox_bytes=4_000)
    bodies = [f"m{i}" for i in range(400)]
    offsets = bench.send(*bodies)
    for at in range(0, 400, 20):
        bench.pop(offsets[at : at + 20 : 2], at_ms=at, queue=at % 8)
        bench.pop(offsets[at + 1 : at + 20 : 2], at_ms=at + 1, queue=at % 8)
    assert bench.new_job(bounds=few).run(DUE + 1_100)["rows"] == 400
    assert sorted(bench.retried()) == sorted(bodies)
    assert bench.tables.warehouse.refs(Space.RETRY)


def test_a_damaged_record_is_told(bench: Bench) -> None:
    log = bench.tables.warehouse.create(revive_ref(CLUSTER, 0, BROKER))
    bench.tables.send(bench.topic, "a")
    log.append([batch(b"{")])
    assert "record" in str(bench.job.run(1)["trouble"])
    with pytest.raises(Corrupt):
        bench.tables.done()


@pytest.mark.promise("JOB-22", "JOB-7")
def test_pop_11_a_job_that_was_down_for_days_finds_what_it_had_stored(bench: Bench) -> None:
    """Longer than a partition remembers its producers: its rows tell."""
    clock = AheadClock(-3 * 24 * 3_600_000)
    days_ms = clock.wall_us() // 1_000 - DUE - 100
    offsets = bench.send("a", "b", "c")
    bench.pop(offsets[:2], at_ms=days_ms)
    bench.pop(offsets[2:], at_ms=days_ms + 1_000)
    failpoints.arm("revive.after_append=raise")
    bench.job = bench.new_job(clock=clock)
    bench.run_broken(days_ms + DUE + 100)
    failpoints.arm("")
    assert bench.retried() == ["a", "b"]
    assert bench.new_job().run(time.time_ns() // 1_000_000)["rows"] == 1
    assert bench.retried() == ["a", "b", "c"]
