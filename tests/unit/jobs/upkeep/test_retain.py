"""The job `retain` over real tables: what goes, what stays, what groups hold back (SPEC RETRY-6, POP-11, POP-12)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from msgspec.structs import replace

from deltamq.jobs.run.registry import Facts
from deltamq.jobs.tasks.items import in_this_process
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.jobs.upkeep.retain import retain, retain_in_tasks
from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import RETENTION_MS_DEFAULT
from deltamq.mq.meta.group import Group, decide_begin, decide_delete_group, decide_reset_offsets
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic, decide_put_topic
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.dead_letters import Deleted, SentBack
from deltamq.mq.queue.delay import Ended
from deltamq.mq.queue.progress import Committed, OffsetRecord, Start, StartKind
from deltamq.tables import failpoints
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.dead_marks import void_dead_marks_below
from deltamq.tables.queue.merge_plan import MergePlan, PlannedRange, app_id, put_plan
from deltamq.tables.queue.metadata import META_PARTITION
from deltamq.tables.queue.records import rows_of_dead_marks, rows_of_offset_records
from deltamq.tables.queue.refs import (
    DELAY,
    DELAY_MARKS,
    OFFSETS,
    dead_marks_ref,
    dead_ref,
    quarantine_marks_ref,
    retry_ref,
    revive_ref,
    system_ref,
)
from deltamq.tables.state.schema import POP_CHECKPOINTS
from tests.queue_tables import BROKER, CLUSTER, QueueTables
from tests.rows import batch

pytestmark = pytest.mark.promise("PIPE-15")


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
#: A little more than messages are kept, so that what was appended in a test is just too old.
KEPT_MS = RETENTION_MS_DEFAULT + 60_000


class Bench(QueueTables):
    """A service's tables, and the job in a warehouse of its own."""

    #: Whether the work is done as tasks of Spark would do it, each with an item of its own.
    in_tasks = False

    def run(self, *, after_ms: int = KEPT_MS, wait_for_groups: bool = False) -> Facts:
        """The job as it runs `after_ms` from now."""
        conf = replace(self.conf, retention=replace(self.conf.retention, wait_for_groups=wait_for_groups))
        now = datetime.now(UTC) + timedelta(milliseconds=after_ms)
        return retain_in_tasks(in_this_process, conf, now) if self.in_tasks else retain(None, conf, now)

    def kept(self, topic: Topic, **settings: int) -> Topic:
        """The topic with other settings."""
        made = self.meta.submit(
            lambda s: decide_put_topic(s, topic.name, TopicRequest(**settings), [BROKER], uuid.uuid4().hex, 0)
        )
        return made.topics[topic.name]

    def commit(self, group: Group, topic: Topic, offset: int, *, retry: str | None = None, partition: int = 0) -> None:
        """Store a group's progress."""
        name = retry or topic.route.partitions[partition]
        lane = LaneKey(topic.id, group.name, retry is not None, name)
        record = OffsetRecord(lane=lane, topic=topic.name, committed=Committed(group.epoch, offset))
        log = self.warehouse.create(system_ref(OFFSETS, CLUSTER, BROKER))
        log.append([Batch(rows_of_offset_records([record]))])

    def bounds(self, ref: PartitionRef) -> tuple[int, int]:
        """What a process that opens the partition now finds."""
        log = self.warehouse.open_partition(ref)
        log.refresh()
        return log.min_offset, log.end_offset

    def of(self, topic: Topic) -> tuple[int, int]:
        return self.bounds(self.log(topic).ref)

    def retry_ref(self, group: Group, topic: Topic) -> PartitionRef:
        return retry_ref(group.name, group.epoch, topic.name, topic.generation, BROKER)

    def put(self, ref: PartitionRef, *bodies: bytes) -> PartitionLog:
        """Append to any partition."""
        log = self.warehouse.create(ref)
        log.append([batch(*bodies)])
        return log


@pytest.fixture(params=["local", "tasks"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(tmp_path / "warehouse")
    made.in_tasks = request.param == "tasks"
    yield made
    made.close()
    close_warehouses()


# Topics.


def test_retry_6_messages_go_after_three_days_and_the_minimum_offset_moves(bench: Bench) -> None:
    topic = bench.topic()
    bench.send(topic, "a", "b")
    bench.send(topic, "c")
    facts = bench.run(after_ms=RETENTION_MS_DEFAULT - 60_000)
    assert (facts["rows"], bench.of(topic)) == (0, (0, 3))
    facts = bench.run()
    assert (facts["files"], facts["rows"], bench.of(topic)) == (2, 3, (3, 3))
    assert int(facts["bytes"]) > 0
    bench.send(topic, "d")
    assert bench.of(topic) == (3, 4)


def test_retry_6_a_topic_keeps_its_messages_as_long_as_it_says(bench: Bench) -> None:
    short, long = bench.kept(bench.topic("short"), retention_ms=HOUR_MS), bench.topic("long")
    for topic in (short, long):
        bench.send(topic, "a")
    assert bench.run(after_ms=2 * HOUR_MS)["rows"] == 1
    assert (bench.of(short), bench.of(long)) == ((1, 1), (0, 1))
    bench.kept(long, retention_ms=HOUR_MS)
    assert bench.run(after_ms=2 * HOUR_MS)["rows"] == 1
    assert bench.of(long) == (1, 1)


def test_retry_6_a_consumer_below_the_minimum_offset_is_told_and_goes_on_there(bench: Bench) -> None:
    topic = bench.topic()
    bench.send(topic, "a", "b")
    bench.run()
    bench.send(topic, "c")
    log = bench.log(topic)
    answer = log.read(0, max_messages=10, max_bytes=1_000)
    assert (answer.status, answer.min_offset, answer.next_offset) == (FetchStatus.OFFSET_TOO_SMALL, 2, 2)
    assert log.read(answer.next_offset, max_messages=10, max_bytes=1_000).rows.num_rows == 1


def test_a_second_run_finds_nothing_to_do_and_commits_nothing(bench: Bench) -> None:
    topic = bench.topic()
    bench.send(topic, "a")
    bench.run()
    log = bench.log(topic)
    log.refresh()
    version = log.version
    facts = bench.run()
    log.refresh()
    assert (facts["rows"], facts["files"], log.version) == (0, 0, version)


def test_partitions_of_a_topic_that_is_over_are_kept_three_days_and_held_by_nobody(bench: Bench) -> None:
    topic, group = bench.kept(bench.topic(), retention_ms=100 * DAY_MS), bench.group()
    offsets = bench.send(topic, "a", "b")
    bench.pop(group, topic, offsets)
    over = PartitionRef(Space.TOPICS, topic.name, topic.route.partitions[0], topic.generation + 1)
    bench.put(over, b"left by another life")
    bench.run(wait_for_groups=True)
    assert (bench.of(topic), bench.bounds(over)) == ((0, 2), (1, 1))


# Groups.


@pytest.mark.promise("KEEP-3")
def test_pop_11_an_open_checkpoint_keeps_what_a_revive_needs(bench: Bench) -> None:
    topic, group = bench.topic(), bench.group()
    for body in "abcdef":
        bench.send(topic, body)
    checkpoint = bench.pop(group, topic, [2, 4])
    facts = bench.run()
    assert (bench.of(topic), facts["rows"], facts["held_by"]) == ((2, 6), 2, "billing")
    bench.ack(checkpoint, 2)
    assert bench.run()["rows"] == 2
    assert bench.of(topic) == (4, 6)
    bench.ack(checkpoint, 4)
    facts = bench.run()
    assert bench.of(topic) == (6, 6) and "held_by" not in facts


def test_pop_11_a_checkpoint_of_retried_messages_keeps_those(bench: Bench) -> None:
    topic, group = bench.topic(), bench.group()
    retry = bench.retry_ref(group, topic)
    for body in (b"a", b"b", b"c"):
        bench.put(retry, body)
    bench.send(topic, "x")
    bench.pop(group, topic, [1], retry=True)
    bench.run()
    assert (bench.bounds(retry), bench.of(topic)) == ((1, 3), (1, 1))


def test_pop_12_checkpoints_of_groups_that_are_over_or_were_reset_keep_nothing(bench: Bench) -> None:
    topic, gone, reset = bench.topic(), bench.group("gone"), bench.group("reset")
    offsets = bench.send(topic, "a")
    for group in (gone, reset):
        bench.pop(group, topic, offsets)
    assert (bench.run()["rows"], bench.of(topic)) == (0, (0, 1))
    bench.meta.submit_groups(lambda m: decide_delete_group(m.groups, "gone"))
    assert (bench.run()["rows"], bench.of(topic)) == (0, (0, 1))
    lane = LaneKey(topic.id, "reset", False, topic.route.partitions[0])
    bench.meta.submit_groups(lambda m: decide_reset_offsets(m.groups, "reset", topic.name, {lane: 1}))
    assert (bench.run()["rows"], bench.of(topic)) == (1, (1, 1))


@pytest.mark.promise("KEEP-5")
def test_retry_6_retention_does_not_wait_for_groups_unless_told_to(bench: Bench) -> None:
    topic, slow, quick = bench.topic(), bench.group("slow"), bench.group("quick")
    for body in "abcd":
        bench.send(topic, body)
    bench.commit(slow, topic, 1)
    bench.commit(quick, topic, 3)
    facts = bench.run(wait_for_groups=True)
    assert (bench.of(topic), facts["rows"], facts["held_by"]) == ((1, 4), 1, "quick,slow")
    bench.commit(slow, topic, 4)
    assert bench.run(wait_for_groups=True)["held_by"] == "quick"
    assert bench.of(topic) == (3, 4)
    facts = bench.run()
    assert bench.of(topic) == (4, 4) and "held_by" not in facts


def test_a_group_that_has_not_begun_in_a_partition_is_waited_for(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.group()
    bench.send(topic, "a", partition=0)
    bench.send(topic, "b", partition=1)
    bench.commit(group, topic, 1, partition=0)
    bench.run(wait_for_groups=True)
    assert [bench.bounds(bench.log(topic, at).ref) for at in (0, 1)] == [(1, 1), (0, 1)]


def test_a_group_that_begins_at_the_end_is_waited_for_in_what_was_added_after_it_began(bench: Bench) -> None:
    topic, late = bench.topic(), bench.group(consume_from=Start(StartKind.LAST))
    bench.meta.submit_groups(lambda m: decide_begin(m.groups, late.name, {topic.id: 1}))
    topic = bench.topic(partitions=2)
    bench.commit(late, topic, 0)
    bench.send(topic, "a", partition=1)
    bench.run(wait_for_groups=True)
    assert bench.bounds(bench.log(topic, 1).ref) == (0, 1)
    bench.run()
    assert bench.bounds(bench.log(topic, 1).ref) == (1, 1)


def test_retried_messages_have_a_time_of_their_own_and_wait_for_their_group_alone(bench: Bench) -> None:
    topic, group, other = bench.topic(), bench.group(), bench.group("other")
    retry = bench.retry_ref(group, topic)
    for body in (b"a", b"b"):
        bench.put(retry, body)
    bench.commit(other, topic, 0)
    bench.run(wait_for_groups=True)
    assert bench.bounds(retry) == (0, 2), "never popped"
    bench.commit(group, topic, 1, retry=retry.name)
    bench.run(wait_for_groups=True)
    assert bench.bounds(retry) == (1, 2)
    bench.run()
    assert bench.bounds(retry) == (2, 2)


def test_retried_messages_of_a_group_that_is_over_are_waited_for_by_nobody(bench: Bench) -> None:
    topic, group = bench.topic(), bench.group()
    retry = bench.retry_ref(group, topic)
    bench.put(retry, b"a")
    bench.meta.submit_groups(lambda m: decide_delete_group(m.groups, group.name))
    bench.run(wait_for_groups=True)
    assert bench.bounds(retry) == (1, 1)


def test_retry_6_the_facts_say_how_far_groups_are_behind(bench: Bench) -> None:
    topic, slow, done = bench.topic(partitions=2), bench.group("slow"), bench.group("done")
    for partition, bodies in enumerate(["abc", "de"]):
        bench.send(topic, *bodies, partition=partition)
        bench.commit(slow, topic, 1, partition=partition)
        bench.commit(done, topic, len(bodies), partition=partition)
    assert bench.run(after_ms=0)["lags"] == "slow:3"
    assert "lags" not in bench.run(), "what is removed is no longer ahead of anybody"


# Dead letters, delayed messages, the queue's own logs.


def test_retry_6_dead_letters_have_their_own_time(bench: Bench) -> None:
    group = bench.group()
    dead = dead_ref(group.name, group.epoch, BROKER)
    bench.put(dead, b"a")
    bench.run(after_ms=29 * DAY_MS)
    assert bench.bounds(dead) == (0, 1)
    bench.run(after_ms=31 * DAY_MS)
    assert bench.bounds(dead) == (1, 1)


def test_retry_08_marks_stay_as_long_as_the_dead_letters_that_they_are_about(bench: Bench) -> None:
    group = bench.group()
    dead, marks = (ref(group.name, group.epoch, BROKER) for ref in (dead_ref, dead_marks_ref))
    for body in (b"a", b"b", b"c"):
        bench.put(dead, body)
    for mark in (SentBack(((0, 1),), "origin", 1), Deleted(((0, 2),), 2), SentBack(((2, 3),), "origin", 3)):
        bench.warehouse.create(marks).append([Batch(rows_of_dead_marks([mark]))])
    for gone in (0, 1, 2):
        bench.warehouse.open_partition(dead).delete_below(gone)
        assert void_dead_marks_below(bench.warehouse, marks, dead) == gone
    bench.run(after_ms=29 * DAY_MS)
    assert (bench.bounds(dead), bench.bounds(marks)) == ((2, 3), (0, 3)), "they are not old enough"
    for _ in range(2):
        bench.run(after_ms=31 * DAY_MS)
    assert (bench.bounds(dead), bench.bounds(marks)) == ((3, 3), (3, 3))


def test_type_8_marks_of_a_quarantine_stay_as_long_as_the_messages_that_they_are_about(bench: Bench) -> None:
    topic = bench.topic()
    for body in ("a", "b"):
        bench.send(topic, body)
    log = bench.log(topic)
    marks = quarantine_marks_ref(log.ref)
    for mark in (Deleted(((0, 1),), 1), SentBack(((1, 2),), "origin", 2)):
        bench.warehouse.create(marks).append([Batch(rows_of_dead_marks([mark]))])
    bench.kept(topic, retention_ms=365 * DAY_MS)
    log.delete_below(1)
    bench.run(after_ms=29 * DAY_MS)
    assert bench.bounds(marks) == (0, 2), "they are not old enough"
    bench.run(after_ms=31 * DAY_MS)
    assert bench.bounds(marks) == (1, 2), "a message is still there"
    log.delete_below(2)
    bench.run(after_ms=31 * DAY_MS)
    assert bench.bounds(marks) == (2, 2)


@pytest.mark.promise("KEEP-6")
def test_retry_6_delayed_messages_stay_until_their_deliver_time_and_three_days(bench: Bench) -> None:
    topic, now_ms = bench.topic(), int(time.time() * 1_000)
    delay = system_ref(DELAY, CLUSTER, BROKER)
    bench.delay(topic, ("a", now_ms + 1_000), ("b", now_ms + DAY_MS))
    bench.delay(topic, ("c", now_ms + 1_000))
    bench.mark(Ended(delay.name, ((0, 3),)))
    bench.run()
    assert bench.bounds(delay) == (0, 3), "b was delivered two days ago"
    bench.run(after_ms=DAY_MS + KEPT_MS)
    assert bench.bounds(delay) == (3, 3)


@pytest.mark.promise("KEEP-6")
def test_retry_6_delayed_messages_stay_until_they_have_ended(bench: Bench) -> None:
    topic, now_ms = bench.topic(), int(time.time() * 1_000)
    delay = system_ref(DELAY, CLUSTER, BROKER)
    for body in "abcd":
        bench.delay(topic, (body, now_ms))
    bench.run()
    assert bench.bounds(delay) == (0, 4), "nobody has dealt with them"
    bench.mark(Ended(delay.name, ((0, 1), (2, 4))))
    bench.cancel(1)
    bench.run()
    assert bench.bounds(delay) == (1, 4), "cancelled is not ended"
    bench.mark(Ended(delay.name, ((1, 2),)))
    bench.run()
    assert bench.bounds(delay) == (4, 4)


def test_marks_stay_as_long_as_the_messages_that_they_are_about(bench: Bench) -> None:
    topic, now_ms = bench.topic(), int(time.time() * 1_000)
    delay, marks = (system_ref(kind, CLUSTER, BROKER) for kind in (DELAY, DELAY_MARKS))
    for body, at_ms in (("a", now_ms), ("b", now_ms + 10 * DAY_MS), ("c", now_ms)):
        bench.delay(topic, (body, at_ms))
    bench.mark(Ended(delay.name, ((0, 1),)))
    bench.mark(Ended(delay.name, ((2, 3),)))
    bench.run()
    bench.run()
    assert (bench.bounds(delay), bench.bounds(marks)) == ((1, 3), (1, 2))
    bench.mark(Ended(delay.name, ((1, 2),)))
    bench.run(after_ms=10 * DAY_MS + KEPT_MS)
    bench.run(after_ms=10 * DAY_MS + KEPT_MS)
    assert (bench.bounds(delay), bench.bounds(marks)) == ((3, 3), (3, 3))


def merged(bench: Bench, ref: PartitionRef, stop: int, batch_number: int) -> None:
    """As the merge job leaves it when `stop` records of a revive log are in its table."""
    put_plan(bench.warehouse.store, POP_CHECKPOINTS, MergePlan(batch=batch_number, logs={ref: PlannedRange(0, stop)}))
    table = bench.warehouse.store.uri(POP_CHECKPOINTS)
    properties = CommitProperties(app_transactions=[Transaction(app_id(POP_CHECKPOINTS), batch_number)])
    write_deltalake(table, pa.table({"n": [batch_number]}), mode="append", commit_properties=properties)


def test_records_stay_until_they_are_merged_and_a_while_longer(bench: Bench) -> None:
    revive = revive_ref(CLUSTER, 0, BROKER)
    for body in (b"a", b"b", b"c"):
        bench.put(revive, body)
    facts = bench.run()
    assert (bench.bounds(revive), facts["unmerged"]) == ((0, 3), 1)
    merged(bench, revive, 2, 0)
    assert "unmerged" not in bench.run(after_ms=HOUR_MS - 60_000)
    assert bench.bounds(revive) == (0, 3), "merged, and not old enough"
    assert bench.run(after_ms=HOUR_MS + 60_000)["unmerged"] == 1
    assert bench.bounds(revive) == (2, 3)
    merged(bench, revive, 3, 1)
    bench.run(after_ms=HOUR_MS + 60_000)
    assert bench.bounds(revive) == (3, 3)


def test_the_metadata_and_what_nobody_knows_are_kept_for_ever(bench: Bench) -> None:
    bench.topic()
    other = system_ref(OFFSETS, "another-cluster", BROKER)
    unknown = PartitionRef(Space.SYS, "rmq_sys_NEW_deltamq", "rmq_sys_NEW_deltamq@broker-a")
    for ref in (other, unknown):
        bench.put(ref, b"a")
    bench.run(after_ms=4_000 * DAY_MS)
    assert [bench.bounds(ref)[0] for ref in (META_PARTITION, other, unknown)] == [0, 0, 0]


# Faults.


def test_a_partition_that_fails_is_told_and_the_others_are_dealt_with(bench: Bench) -> None:
    sound, broken = bench.topic("sound"), bench.topic("broken")
    for topic in (sound, broken):
        bench.send(topic, "a")
    commit = sorted(Path(bench.log(broken).location, "_delta_log").glob("*.json"))[-1]
    commit.write_bytes(commit.read_bytes()[:-40])
    with pytest.raises(Corrupt, match=r"1 of 3 partitions failed: topics/broken/.*rows=1") as caught:
        bench.run()
    assert caught.value.code == "retain_failed"
    assert bench.of(sound) == (1, 1)


def test_without_knowing_what_is_in_flight_nothing_of_a_topic_goes(bench: Bench) -> None:
    topic, group = bench.topic(), bench.group()
    bench.send(topic, "a")
    dead = dead_ref(group.name, group.epoch, BROKER)
    bench.put(dead, b"a")
    bench.put(revive_ref(CLUSTER, 3, BROKER), b"no record")
    with pytest.raises(Corrupt, match="topics/orders/"):
        bench.run(after_ms=100 * DAY_MS)
    assert bench.of(topic) == (0, 1)
    assert bench.bounds(dead) == (1, 1)


@pytest.mark.parametrize("point", ["retain.before_commit", "retain.after_commit"])
def test_an_error_at_a_point_leaves_the_rest_to_the_next_run(bench: Bench, point: str) -> None:
    topics = [bench.topic(name) for name in ("one", "two")]
    for topic in topics:
        bench.send(topic, "a", "b")
    failpoints.arm(f"{point}=raise@1")
    try:
        with pytest.raises(Exception, match="1 of 3 partitions failed"):
            bench.run()
    finally:
        failpoints.arm("")
    bench.run()
    assert [bench.of(topic) for topic in topics] == [(2, 2), (2, 2)]


def test_files_that_were_removed_are_deleted_by_a_later_run(bench: Bench) -> None:
    bench.conf = replace(bench.conf, log=replace(bench.conf.log, file_keep_ms=1))
    topic = bench.topic()
    bench.send(topic, "a")
    folder = Path(bench.log(topic).location)
    bench.run()
    deadline = time.monotonic() + 30
    while list(folder.glob("*.parquet")):
        assert time.monotonic() < deadline, "the file is still there"
        bench.run()
    log = Warehouse.open(bench.warehouse.uri).open_partition(bench.log(topic).ref)
    assert (log.min_offset, log.end_offset) == (1, 1)
