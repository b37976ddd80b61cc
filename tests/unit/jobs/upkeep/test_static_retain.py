"""Segments of static topics whose messages are all expired are dropped with their folders (SPEC STATIC-17)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deltamq.jobs.run.registry import Facts
from deltamq.jobs.tasks.items import in_this_process
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.jobs.upkeep.retain import retain, retain_in_tasks
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import RETENTION_MS_DEFAULT
from deltamq.mq.meta.group import decide_delete_group
from deltamq.mq.meta.static_topics import static_faults
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed, OffsetRecord, Start
from deltamq.mq.static.mappings import MappingRemoved
from deltamq.tables import failpoints
from deltamq.tables.log.batch import Batch
from deltamq.tables.paths import Space
from deltamq.tables.queue.records import rows_of_offset_records
from deltamq.tables.queue.refs import OFFSETS, retry_ref, system_ref
from tests.queue_tables import CLUSTER, QueueTables
from tests.rows import batch
from tests.static_tables import TOPIC, StaticTables

pytestmark = pytest.mark.promise("PIPE-15")

HOUR_MS = 3_600_000
#: A little more than messages are kept.
KEPT_MS = RETENTION_MS_DEFAULT + 60_000
FIRST = "orders@A"


class Bench(QueueTables):
    """A static topic, and the job in a warehouse of its own."""

    in_tasks = False
    orders: StaticTables

    def run(self, *, after_ms: int = KEPT_MS) -> Facts:
        """The job as it runs `after_ms` from now."""
        now = datetime.now(UTC) + timedelta(milliseconds=after_ms)
        return retain_in_tasks(in_this_process, self.conf, now) if self.in_tasks else retain(None, self.conf, now)

    def partitions(self, queue: int = 0) -> list[str]:
        return [segment.partition for segment in self.orders.queues[queue].segments]

    def folders(self) -> set[str]:
        return {ref.name for ref in self.warehouse.refs(Space.TOPICS)}


@pytest.fixture(params=["local", "tasks"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Queue 0 with two messages on A, then moved to B."""
    made = Bench(tmp_path / "warehouse")
    made.in_tasks = request.param == "tasks"
    made.orders = StaticTables(made.warehouse)
    made.orders.now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    made.orders.send(0, 2)
    made.orders.send(1, 1)
    made.orders.remap(["B"], "strict", [0])
    made.orders.send(0, 1)
    yield made
    failpoints.arm("")
    made.close()
    close_warehouses()


def test_static_17_a_segment_goes_when_its_messages_are_expired_and_the_leader_stays(bench: Bench) -> None:
    assert "segments_dropped" not in bench.run(after_ms=HOUR_MS)
    facts = bench.run()
    assert (facts["rows"], facts["segments_dropped"], facts["folders_deleted"]) == (4, 1, 1)
    assert bench.partitions(0) == ["orders#2@B"], "the leader stays, though all its messages are expired"
    assert bench.folders() == {"orders#1@B", "orders#2@B"}
    assert not static_faults(bench.orders.meta.meta, bench.orders.topic)
    assert bench.orders.send(0, 1) == [3], "logical offsets go on"
    assert "segments_dropped" not in bench.run(after_ms=HOUR_MS)


def test_static_17_an_empty_segment_goes_when_it_has_been_sealed_for_the_time_of_retention(bench: Bench) -> None:
    bench.orders.remap(["B"], "strict", [1])
    bench.orders.remap(["A"], "strict", [1])
    bench.orders.remap(["B"], "strict", [1])
    assert bench.run(after_ms=HOUR_MS)["rows"] == 0
    assert len(bench.partitions(1)) == 3
    bench.run()
    assert len(bench.partitions(1)) == 1
    assert bench.folders() == {*bench.partitions(0)}, "the leader of queue 1 has no messages, and so no table yet"


def test_static_17_a_segment_behind_one_that_stays_is_not_dropped(bench: Bench) -> None:
    bench.orders.remap(["A"], "strict", [0])
    middle = bench.partitions(0)[1]
    bench.orders.log(middle).delete_below(1)
    bench.run(after_ms=HOUR_MS)
    assert middle in bench.partitions(0) and len(bench.partitions(0)) == 3


def test_static_17_folders_that_a_kill_has_left_go_with_the_next_run(bench: Bench) -> None:
    failpoints.arm("segments.after_drop=raise")
    with pytest.raises(DeltaMQError, match="orders: FailpointHit"):
        bench.run()
    failpoints.arm("")
    assert FIRST not in bench.partitions(0) and FIRST in bench.folders()
    facts = bench.run()
    assert (facts["segments_dropped"], facts["folders_deleted"]) == (0, 1)
    assert FIRST not in bench.folders()


def test_static_17_a_segment_stays_while_groups_have_retried_messages_on_its_broker(bench: Bench) -> None:
    group = bench.group()
    topic = bench.orders.topic
    retries = bench.warehouse.create(retry_ref(group.name, group.epoch, topic.name, topic.generation, "A"))
    retries.append([batch(b"again")])
    bench.orders.log(FIRST).delete_below(2)
    bench.run(after_ms=HOUR_MS)
    assert FIRST in bench.partitions(0), "A leads no queue, and groups find the retried message by its segment alone"
    retries.delete_below(1)
    bench.run(after_ms=HOUR_MS)
    assert FIRST not in bench.partitions(0)


def test_static_27_a_segment_at_whose_end_a_group_stands_stays_until_it_commits_behind_it(bench: Bench) -> None:
    """Without the segment, the group would have committed nothing, and begin at the end of the next one."""
    group = bench.group(consume_from=Start.from_json("last", field="consume_from"))
    last, leader = bench.partitions(0)

    def commit(partition: str, offset: int) -> None:
        lane = LaneKey(bench.orders.topic.id, group.name, False, partition)
        log = bench.warehouse.create(system_ref(OFFSETS, CLUSTER, partition.rpartition("@")[2]))
        record = OffsetRecord(lane=lane, topic=TOPIC, committed=Committed(group.epoch, offset))
        log.append([Batch(rows_of_offset_records([record]))])

    commit(last, 2)
    facts = bench.run()
    assert facts["rows"] == 4 and "segments_dropped" not in facts
    assert bench.partitions(0) == [last, leader]
    commit(leader, 0)
    assert bench.run()["segments_dropped"] == 1
    assert bench.partitions(0) == [leader]


def test_static_27_a_group_that_is_deleted_holds_no_segment(bench: Bench) -> None:
    group = bench.group()
    lane = LaneKey(bench.orders.topic.id, group.name, False, FIRST)
    record = OffsetRecord(lane=lane, topic=TOPIC, committed=Committed(group.epoch, 1))
    log = bench.warehouse.create(system_ref(OFFSETS, CLUSTER, "A"))
    log.append([Batch(rows_of_offset_records([record]))])
    bench.run()
    assert FIRST in bench.partitions(0)
    bench.meta.submit_groups(lambda m: decide_delete_group(m.groups, group.name))
    bench.run()
    assert FIRST not in bench.partitions(0)


def test_static_17_a_topic_with_faults_in_its_mappings_loses_nothing(bench: Bench) -> None:
    lost = MappingRemoved(topic_id=bench.orders.topic.id, holder="B")
    before = bench.folders()
    bench.orders.meta.submit_any(lambda _: (lost,))
    assert "segments_dropped" not in bench.run()
    assert bench.folders() == before
    assert FIRST in bench.orders.topic.route.partitions


def test_static_17_folders_that_never_were_segments_are_left_alone(bench: Bench) -> None:
    other = bench.topic("plain")
    bench.send(other, "a")
    bench.orders.log("by-hand@A")
    bench.orders.log("orders#99@A")
    bench.run()
    assert {"plain@broker-a", "by-hand@A", "orders#99@A"} <= bench.folders()
    assert TOPIC in bench.orders.meta.state.topics
