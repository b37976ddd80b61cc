"""What is in memory only, what is stored when, and what a restart or a crash makes of both (SPEC POP-12 to POP-14)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from deltamq.api.ports import Ports
from deltamq.mq.errors import StorageFull, Unknown
from deltamq.mq.queue.revive import LostRecord
from deltamq.tables.delta.actions import commit_name
from deltamq.tables.queue.records import lost_records_of
from deltamq.tables.queue.refs import LOST, REVIVE_LOG, revive_refs, system_ref
from tests.api.exclusive import Member, exclusive_group
from tests.api.queue_calls import Consumer, Queue, queue_in
from tests.api.running import until
from tests.faulty_store import faulty_disk

MINUTE = 60_000

pytestmark = pytest.mark.static_too


def _records(queue: Queue) -> list[str]:
    """Kinds of the records in the revive log."""
    refs = [ref for broker in queue.config.service.brokers for ref in revive_refs("deltamq", broker)]
    return sorted(row["tag"] for ref in refs for row in queue.rows(ref))


def _popped(queue: Queue, count: int, **ask: object) -> tuple[Consumer, list[str]]:
    queue.send(*map(str, range(count)))
    billing = queue.consumer("billing")
    return billing, billing.pop(count, **ask).handles


# When a checkpoint is stored -------------------------------------------------------------------------------------


def test_pop_13_what_is_acknowledged_in_time_is_never_stored(queue: Queue) -> None:
    billing, handles = _popped(queue, 100)
    queue.advance(5_000)
    assert billing.ack(handles) == {}
    queue.advance(2 * MINUTE)
    assert _records(queue) == []


def test_pop_13_a_checkpoint_that_stays_is_stored_with_its_acks(queue: Queue) -> None:
    billing, handles = _popped(queue, 3)
    billing.ack(handles[:1])
    queue.advance(9_000)
    assert _records(queue) == [] and queue.api.service.lanes.checkpoints_in_memory == 1
    queue.advance(1_200)
    assert _records(queue) == ["ck"] and queue.api.service.lanes.checkpoints_in_memory == 0
    billing.ack(handles[1:2])
    assert _records(queue) == ["ack", "ck"], "later acks go to the log"
    (state,) = queue.states(billing.lanes()[0])
    assert (state.acked, state.open) == (0b011, 0b100)


def test_pop_13_a_checkpoint_is_stored_before_it_falls_due(queue: Queue) -> None:
    _popped(queue, 1, invisible_ms=10_000)
    queue.advance(6_900)
    assert _records(queue) == []
    queue.advance(200)
    assert _records(queue) == ["ck"]


def test_pop_13_one_that_is_due_soon_goes_straight_to_the_log(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse", invisible_ms_min=100) as queue:
        queue.topic()
        billing, handles = _popped(queue, 2, invisible_ms=4_400)
        assert _records(queue) == ["ck"]
        assert billing.ack(handles) == {} and _records(queue) == ["bAck", "ck"]
        queue.advance(10_000)
        queue.revive()
        assert queue.retries("billing") == []


@pytest.mark.parametrize("limits", [(2, 2), (10, 2)])
def test_pop_13_beyond_the_limits_of_memory_checkpoints_are_stored(tmp_path: Path, limits: tuple[int, int]) -> None:
    all_of_them, of_one = limits
    settings = {"buffer_checkpoints_max": all_of_them, "partition_checkpoints_max": of_one}
    with queue_in(tmp_path / "warehouse", **settings) as queue:
        queue.topic()
        queue.send(*map(str, range(200)))
        billing = queue.consumer("billing")
        found = [billing.pop() for _ in range(5)]
        assert _records(queue) == ["ck"] * 3 and queue.api.service.lanes.checkpoints_in_memory == 2
        for one in found:
            assert billing.ack(one.handles) == {}
        assert billing.in_flight() == 0
        queue.settle()
        stored = queue.committed(billing.lanes()[0])
        assert stored is not None and stored.offset == 160


def test_pop_13_switched_off_every_record_is_stored(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse", memory_match=False) as queue:
        queue.topic()
        billing, handles = _popped(queue, 40)
        assert _records(queue) == ["ck", "ck"]
        billing.ack(handles[:1])
        billing.ack(handles[1:])
        assert _records(queue) == ["ack", "bAck", "bAck", "ck", "ck"]


def test_pop_02_a_pop_does_not_wait_until_the_one_before_is_stored(tmp_path: Path) -> None:
    store, gate = faulty_disk(tmp_path / "warehouse"), threading.Event()

    def slow(key: str) -> None:
        if REVIVE_LOG in key:
            assert gate.wait(60)

    ports = Ports(store=store)
    with queue_in(tmp_path / "warehouse", ports, memory_match=False) as queue, ThreadPoolExecutor(2) as clients:
        queue.topic()
        queue.send("a", "b")
        billing, lanes = queue.consumer("billing"), queue.api.service.lanes
        store.before["put_if_absent"] = slow
        pops = [clients.submit(billing.pop, 1) for _ in range(2)]
        try:
            until(lambda: lanes.in_flight_everywhere() == 2)
            assert not any(pop.done() for pop in pops), "nobody has what is not stored"
        finally:
            gate.set()
        assert sorted(pop.result().bodies[0] for pop in pops) == ["a", "b"]


def test_pop_06_checkpoints_take_the_queues_in_turn(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse", memory_match=False) as queue:
        queue.topic()
        billing = queue.consumer("billing")
        refs = revive_refs("deltamq", "broker-a")

        def used() -> bool:
            queue.send("a")
            assert billing.pop(1).bodies == ["a"]
            return all(map(queue.rows, refs))

        until(used)


# Restart and crash ------------------------------------------------------------------------------------------------


def test_pop_13_a_stop_stores_everything_and_nothing_is_delivered_again(queue: Queue) -> None:
    billing, handles = _popped(queue, 40)
    billing.ack(handles[:39])
    queue.restart()
    billing = queue.consumer("billing")
    assert billing.pop().bodies == []
    assert billing.in_flight() == 1
    assert billing.ack(handles[32:39]) == {}, "acknowledging twice is harmless"
    expired = dict.fromkeys(handles[:32], "handle_expired")
    assert billing.ack(handles[:32]) == expired, "nothing was stored of what was done before the stop"
    assert billing.ack(handles[39:]) == {}
    queue.advance(2 * MINUTE)
    queue.revive()
    assert queue.retries("billing") == []


def test_meta_03_what_was_stored_before_a_restart_expires_after_it(queue: Queue) -> None:
    billing, handles = _popped(queue, 3)
    billing.ack(handles[:1])
    queue.restart()
    queue.advance(2 * MINUTE)
    queue.revive()
    again = queue.consumer("billing").pop_again(2)
    assert sorted(again.bodies) == ["1", "2"] and again.attempts == [2, 2]


def test_pop_14_a_crash_delivers_again_what_only_memory_knew(queue: Queue) -> None:
    billing, handles = _popped(queue, 40)
    billing.ack(handles[:20])
    queue.crash()
    billing = queue.consumer("billing")
    again = billing.pop(100)
    assert again.bodies == [str(i) for i in range(40)] and again.attempts == [1] * 40
    refused = billing.ack(handles[20:])
    assert refused == dict.fromkeys(handles[20:], "handle_expired"), "a crash forgot them"
    assert billing.ack(again.handles) == {}


def test_pop_14_a_crash_repeats_nothing_that_was_stored(queue: Queue) -> None:
    queue.send(*map(str, range(60)))
    billing = queue.consumer("billing")
    first, second, third = (billing.pop(20) for _ in range(3))
    billing.ack(first.handles)
    queue.advance(11_000)
    assert billing.ack(second.handles[:5]) == {}
    queue.crash()
    billing = queue.consumer("billing")
    assert billing.pop(100).bodies == [], "all three checkpoints are stored or done"
    assert billing.ack(third.handles) == {}
    queue.advance(2 * MINUTE)
    queue.revive()
    assert sorted(int(m["body"]) for m in billing.pop_again(15).messages) == list(range(25, 40))


def test_pop_14_what_is_stored_above_a_hole_is_passed_over_after_a_crash(tmp_path: Path) -> None:
    settings = {"buffer_checkpoints_max": 1, "partition_checkpoints_max": 1}
    with queue_in(tmp_path / "warehouse", **settings) as queue:
        queue.topic()
        queue.send(*map(str, range(30)))
        billing = queue.consumer("billing")
        billing.pop(10)
        stored = billing.pop(10)
        queue.crash()
        billing = queue.consumer("billing")
        assert billing.pop(100).bodies == [str(i) for i in range(10)]
        assert billing.pop(100).bodies == [str(i) for i in range(20, 30)]
        assert billing.ack(stored.handles) == {}


def test_pop_08_a_renewed_handle_may_be_acknowledged_twice_too(queue: Queue) -> None:
    billing, (old,) = _popped(queue, 1)
    new = billing.invisible(old, 10 * MINUTE).json["handle"]
    assert billing.ack([new]) == {}
    assert billing.ack([new]) == {}


def test_pop_09_a_changed_handle_survives_a_crash(queue: Queue) -> None:
    billing, (old, other) = _popped(queue, 2)
    new = billing.invisible(old, 10 * MINUTE).json["handle"]
    queue.advance(11_000)
    queue.crash()
    billing = queue.consumer("billing")
    assert billing.pop().bodies == []
    assert billing.ack([old]) == {old: "handle_expired"}
    assert billing.ack([new, other]) == {}


@pytest.mark.promise("HOST-3")
@pytest.mark.parametrize("order", [False, True, "key"])
@pytest.mark.parametrize("popped_first", [False, True])
def test_pop_08_an_ack_is_told_the_truth_after_a_crash_that_set_the_clock_back(
    queue: Queue, order: bool | str, popped_first: bool
) -> None:
    """So it is for a process that takes the broker over with a clock that is behind."""
    billing = queue.group("billing", order=order)
    queue.send("a", "b")
    old = billing.pop(1).handles
    queue.clock.set_wall_us(queue.clock.wall_us() - 5_000_000)
    queue.crash()
    billing = queue.consumer("billing")
    if popped_first:
        assert billing.pop(1).bodies == ([] if order is True else ["b"] if order == "key" else ["a"])
    refused = billing.ack(old)
    assert refused == ({} if order else dict.fromkeys(old, "handle_expired"))
    if not popped_first:
        assert billing.pop(1).bodies == (["b"] if order else ["a"])


def test_a_crash_again_and_again_loses_nothing(queue: Queue) -> None:
    queue.send(*map(str, range(100)))
    seen: set[str] = set()
    for _ in range(5):
        billing = queue.consumer("billing")
        found = billing.pop(20)
        seen |= set(found.bodies[:10])
        billing.ack(found.handles[:10])
        queue.advance(11_000)
        queue.crash()
    queue.advance(2 * MINUTE)
    queue.revive()
    billing = queue.consumer("billing")
    left = {str(i) for i in range(100)} - seen
    assert set(billing.pop_again(len(left)).bodies) == left


# What the disk refuses -------------------------------------------------------------------------------------------


class _Disk:
    """Appends to the revive log that fail, as often as a test says: the disk is full, or nobody knows."""

    def __init__(self, folder: Path) -> None:
        self.failures = 0
        #: Whether what nobody knows of was stored.
        self.stores = False
        self._unread = 0
        self.store = faulty_disk(folder)

    def be_full(self, failures: int) -> None:
        self.failures = failures
        self.store.before["put"] = self._full

    def be_silent(self, failures: int) -> None:
        self.failures = failures
        self.store.before["read"] = self._unreadable
        (self.store.after if self.stores else self.store.before)["put_if_absent"] = self._silent

    def _fails(self, key: str) -> bool:
        fails = REVIVE_LOG in key and not key.endswith(commit_name(0)) and self.failures > 0
        self.failures -= fails
        return fails

    def _full(self, key: str) -> None:
        if self._fails(key):
            raise StorageFull

    def _silent(self, key: str) -> None:
        if self._fails(key):
            # Nor is what lies there told, however often it is looked for.
            self._unread = 3
            raise Unknown("the disk has not answered")

    def _unreadable(self, key: str) -> None:
        if REVIVE_LOG in key and self._unread:
            self._unread -= 1
            raise Unknown("the disk has not answered")


@pytest.fixture
def disk(tmp_path: Path) -> _Disk:
    return _Disk(tmp_path / "on-disk")


@pytest.fixture
def on_disk(tmp_path: Path, disk: _Disk) -> Iterator[Queue]:
    """A queue on that disk."""
    with queue_in(tmp_path / "on-disk", Ports(store=disk.store)) as found:
        found.topic()
        yield found


def test_an_ack_that_cannot_be_stored_is_an_error_and_may_be_repeated(on_disk: Queue, disk: _Disk) -> None:
    billing, handles = _popped(on_disk, 2)
    on_disk.advance(11_000)
    disk.be_full(1)
    refused = billing.call("ack", handles=handles)
    assert (refused.status, refused.json["code"]) == (507, "storage_full")
    assert billing.in_flight() == 2
    assert billing.ack(handles) == {} and billing.in_flight() == 0


def test_a_change_that_cannot_be_stored_leaves_the_old_handle_alive(on_disk: Queue, disk: _Disk) -> None:
    billing, (handle,) = _popped(on_disk, 1)
    disk.be_full(1)
    assert billing.invisible(handle, MINUTE).status == 507
    assert billing.ack([handle]) == {}


def test_a_checkpoint_that_cannot_be_stored_is_tried_again(on_disk: Queue, disk: _Disk) -> None:
    queue = on_disk
    billing, _ = _popped(queue, 1)
    disk.be_full(3)
    queue.advance(10_100)
    assert _records(queue) == [] and queue.api.service.lanes.checkpoints_in_memory == 1
    while disk.failures:
        queue.advance(200)
    queue.advance(200)
    assert _records(queue) == ["ck"]
    queue.advance(MINUTE)
    queue.revive()
    assert billing.pop_again(1).bodies == ["0"]


@pytest.mark.parametrize("after", [False, True])
def test_an_append_of_unknown_outcome_is_repeated_and_counts_once(on_disk: Queue, disk: _Disk, after: bool) -> None:
    queue, disk.stores = on_disk, after
    billing, handles = _popped(queue, 2)
    disk.be_silent(2)
    queue.advance(11_000)
    assert disk.failures == 0
    disk.be_silent(2)
    assert billing.ack(handles[:1]) == {}
    assert disk.failures == 0
    queue.advance(2 * MINUTE)
    queue.revive()
    assert billing.pop_again(1).bodies == ["1"]
    assert len(queue.retries("billing")) == 1


# Retention ---------------------------------------------------------------------------------------------------------


def test_pop_12_what_retention_took_before_the_group_had_it_is_recorded(queue: Queue) -> None:
    queue.send("a", "b")
    queue.send("c")
    log = queue.api.service.topics.find("orders").partitions[0].open()
    log.delete_below(2)
    billing = queue.consumer("late")
    assert billing.pop().bodies == ["c"], "a new group begins behind it and has lost nothing"
    assert queue.rows(system_ref(LOST, "deltamq", "broker-a")) == []
    early = queue.consumer("early")
    queue.send("d", "e")
    assert early.pop(1).bodies == ["c"]
    queue.send("f")
    log.delete_below(5)
    assert early.pop().bodies == ["f"]
    (lost,) = _lost(queue)
    assert (lost.lane.group, lost.ranges, lost.reason.value) == ("early", ((3, 5),), "retention")


@pytest.mark.promise("JOB-11")
def test_pop_12_what_a_commit_passes_over_is_recorded_once(queue: Queue) -> None:
    queue.send("a")
    queue.send("b", "c", "d")
    (partition,) = [one.name for one in queue.api.service.topics.find("orders").partitions]
    path = "/v1/groups/{}/topics/orders/offsets"
    log = queue.api.service.topics.find("orders").partitions[0].open()

    def commit(group: str, offset: int) -> None:
        reply = queue.api.call("PUT", path.format(group), {"offsets": {partition: offset}})
        assert reply.status == 200, reply

    commit("early", 1)
    log.delete_below(4)
    commit("late", 4)
    assert queue.rows(system_ref(LOST, "deltamq", "broker-a")) == [], "a new group has lost nothing"
    commit("early", 2)
    with ThreadPoolExecutor(4) as several:
        list(several.map(partial(commit, "early"), [4] * 8))
    found = [(one.lane.group, one.ranges, one.reason.value) for one in _lost(queue)]
    assert found == [("early", ((1, 2),), "retention"), ("early", ((2, 4),), "retention")]
    queue.restart()
    commit("early", 4)
    assert len(_lost(queue)) == 2


def test_pop_12_what_was_popped_is_not_lost_by_a_commit_that_passes_it(queue: Queue) -> None:
    queue.send("a", "b")
    billing = queue.consumer("billing")
    found = billing.pop()
    assert found.bodies == ["a", "b"]
    queue.api.service.topics.find("orders").partitions[0].open().delete_below(2)
    reply = queue.api.call("PUT", f"{billing.path}/topics/orders/offsets", {"offsets": {"orders@broker-a": 2}})
    assert reply.status == 200, reply
    assert queue.rows(system_ref(LOST, "deltamq", "broker-a")) == [], "the group has them"


@pytest.mark.promise("JOB-11")
@pytest.mark.parametrize("tried", [False, True])
def test_pop_12_what_retention_took_from_an_exclusive_group_is_recorded(queue: Queue, tried: bool) -> None:
    (partition,) = [one.name for one in queue.api.service.topics.find("orders").partitions]
    exclusive_group(queue.api, "x")
    member = Member(queue.api, "x", "orders", "c1")
    assert member.allocated() == [partition]
    member.take(partition)
    queue.send("a", "b", "c")
    if tried:
        assert member.commit(partition, 0, attempts={partition: 4}).status == 200
    queue.api.service.topics.find("orders").partitions[0].open().delete_below(3)
    queue.send("d")
    assert member.fetch(partition, "&offset=0").json["status"] == "offset_too_small"
    assert member.commit(partition, 4).status == 200
    (lost,) = _lost(queue)
    assert (lost.lane.group, lost.ranges, lost.reason.value) == ("x", ((0, 3),), "retention")


def test_order_08_a_group_that_is_shared_now_pops_what_was_tried_in_place(queue: Queue) -> None:
    (partition,) = [one.name for one in queue.api.service.topics.find("orders").partitions]
    exclusive_group(queue.api, "x")
    member = Member(queue.api, "x", "orders", "c1")
    member.allocated()
    member.take(partition)
    queue.send("a", "b", "c")
    assert member.commit(partition, 1, attempts={partition: 4}).status == 200
    member.release(partition)
    assert queue.api.call("PUT", "/v1/groups/x", {"consume_strategy": "shared"}).status == 200
    assert queue.consumer("x").pop().bodies == ["b", "c"]


def _lost(queue: Queue) -> list[LostRecord]:
    rows = queue.rows(system_ref(LOST, "deltamq", "broker-a"))
    return lost_records_of(pa.Table.from_pylist(rows))
