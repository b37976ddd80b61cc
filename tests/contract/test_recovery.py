"""What a start finds in the tables (SPEC META-3), against the folds of the core."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.mq.queue.checkpoint import Checkpoint, LaneKey, Pop, Replaced, Span
from deltamq.mq.queue.progress import Committed, OffsetRecord
from deltamq.mq.queue.revive_log import Ack, Done
from deltamq.tables.delta.reader import RowCache
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.bounds import LogBounds
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.open_checkpoints import OpenCheckpoints
from deltamq.tables.queue.records import rows_of_offset_records, rows_of_records
from deltamq.tables.queue.recovery import Follower, recover
from deltamq.tables.queue.refs import OFFSETS, revive_ref, system_ref
from deltamq.tables.schema import INGEST_SCHEMA
from deltamq.tables.state.schema import POP_CHECKPOINTS
from tests.merged_checkpoints import MergedCheckpoints

AB = ("a", "b")
LANE = LaneKey("id-1", "billing", False, "orders@a")
POP = Pop(
    topic="orders",
    topic_id="id-1",
    group="billing",
    epoch=3,
    partition="orders@a",
    pop_time_ms=1_000,
    invisible_ms=60_000,
    revive_queue=2,
)
CHECKPOINT = Checkpoint(pop=POP, span=Span(7, 3))
CHANGED = CHECKPOINT.changed(1, now_ms=2_000, invisible_ms=10_000, revive_queue=5)


def append(warehouse: Warehouse, ref: PartitionRef, rows: pa.RecordBatch) -> None:
    warehouse.create(ref).append([Batch(rows, None)])


def commit(offset: int, epoch: int = 3) -> pa.RecordBatch:
    return rows_of_offset_records([OffsetRecord(lane=LANE, topic="orders", committed=Committed(epoch, offset))])


def test_logs_that_nobody_has_written_to_are_empty(warehouses: Callable[[], Warehouse]) -> None:
    warehouse = warehouses()
    recovered = recover(warehouse, "c", AB)
    assert (recovered.committed, recovered.states) == ({}, {})
    assert Follower(warehouse, "c", AB).refresh() == set()
    assert not warehouse.open_logs, "and looking does not make them"


def test_meta_03_progress_and_checkpoints_come_from_all_logs_of_all_brokers(
    warehouses: Callable[..., Warehouse],
) -> None:
    writer = warehouses()
    append(writer, revive_ref("c", 2, "a"), rows_of_records([Ack(CHECKPOINT.key, 0b001, 61_000)] * 3))
    append(writer, revive_ref("c", 5, "b"), rows_of_records([CHANGED, Done(CHANGED.key, 1, 12_000), CHECKPOINT]))
    append(writer, revive_ref("other", 2, "a"), rows_of_records([Ack(CHECKPOINT.key, 0b100, 61_000)]))
    append(writer, system_ref(OFFSETS, "c", "a"), commit(9))
    append(writer, system_ref(OFFSETS, "c", "b"), commit(4))
    recovered = recover(warehouses(LogBounds(page_messages=2)), "c", AB)
    assert recovered.committed == {LANE: Committed(3, 9)}
    assert set(recovered.states) == {LANE}
    old, new = sorted(recovered.states[LANE], key=lambda one: one.revive_time_ms, reverse=True)
    assert (old.acked, old.replaced, old.done, old.open) == (0b001, 0b010, 0, 0b100)
    assert (new.done, new.open) == (1, 0)
    assert new.checkpoint is not None and new.checkpoint.replaces == Replaced(CHECKPOINT.key, 0b10)
    assert [one.checkpoint.revive_offset for one in (old, new) if one.checkpoint] == [2, 0]


def test_an_acknowledgement_without_its_checkpoint_is_no_state_of_a_lane(warehouses: Callable[[], Warehouse]) -> None:
    warehouse = warehouses()
    append(warehouse, revive_ref("c", 0, "a"), rows_of_records([Ack(CHECKPOINT.key, 0b001, 61_000)]))
    assert recover(warehouse, "c", AB).states == {}


def test_a_follower_folds_only_what_is_new_and_says_what_changed(warehouses: Callable[[], Warehouse]) -> None:
    writer, follower = warehouses(), Follower(warehouses(), "c", AB)
    assert follower.refresh() == set()
    append(writer, revive_ref("c", 2, "a"), rows_of_records([CHECKPOINT]))
    assert follower.refresh() == {CHECKPOINT.key}
    assert follower.refresh() == set()
    append(writer, revive_ref("c", 5, "a"), rows_of_records([CHANGED]))
    assert follower.refresh() == {CHECKPOINT.key, CHANGED.key}
    assert follower.states[CHECKPOINT.key].open == 0b101
    positions = {ref: offset for ref, offset in follower.positions.items() if offset}
    assert positions == {revive_ref("c", 2, "a"): 1, revive_ref("c", 5, "a"): 1}
    assert len(follower.positions) == 16
    follower.forget([CHECKPOINT.key, CHECKPOINT.key])
    assert set(follower.states) == {CHANGED.key}
    assert follower.refresh() == set()


@pytest.mark.parametrize("start", [recover, lambda *where: Follower(*where).refresh()], ids=["recover", "follow"])
def test_what_is_no_record_is_found(start: Callable[..., object], warehouses: Callable[[], Warehouse]) -> None:
    warehouse = warehouses()
    ref = revive_ref("c", 1, "b")
    append(warehouse, ref, rows_of_records([CHECKPOINT]))
    fields = [INGEST_SCHEMA.field(name) for name in ("tag", "body")]
    append(warehouse, ref, pa.RecordBatch.from_pydict({"tag": ["ck"], "body": [b"{"]}, schema=pa.schema(fields)))
    with pytest.raises(Corrupt, match="offset 1"):
        start(warehouse, "c", AB)


def test_what_a_follower_could_not_fold_it_reads_again(warehouses: Callable[..., Warehouse]) -> None:
    warehouse = warehouses(LogBounds(page_messages=1))
    follower = Follower(warehouse, "c", AB)
    ref = revive_ref("c", 1, "b")
    append(warehouse, ref, rows_of_records([CHECKPOINT]))
    fields = [INGEST_SCHEMA.field(name) for name in ("tag", "body")]
    append(warehouse, ref, pa.RecordBatch.from_pydict({"tag": ["?"], "body": [b"{}"]}, schema=pa.schema(fields)))
    for _ in range(2):
        with pytest.raises(Corrupt, match="unknown kind"):
            follower.refresh()
    assert follower.positions[ref] == 1
    assert set(follower.states) == {CHECKPOINT.key}


@pytest.mark.parametrize("removed", [False, True], ids=["the logs have all", "retention was there"])
def test_table_06_a_start_without_the_state_table_that_was_there_reads_what_the_logs_have_and_says_so(
    removed: bool, warehouses: Callable[..., Warehouse], caplog: pytest.LogCaptureFixture
) -> None:
    warehouse = warehouses()
    ref = revive_ref("c", 2, "a")
    append(warehouse, ref, rows_of_records([CHECKPOINT, Ack(CHECKPOINT.key, 0b001, 61_000)]))
    MergedCheckpoints(warehouse, "c", AB).run()
    append(warehouse, ref, rows_of_records([CHANGED]))
    table = OpenCheckpoints(warehouse.store, RowCache(1_000_000))
    assert table.look().version == 0
    assert "state_table_gone" not in caplog.text
    if removed:
        warehouse.open_partition(ref).delete_below(2)
    warehouse.store.delete_tree(POP_CHECKPOINTS)
    again = warehouses()
    recovered, follower = recover(again, "c", AB), Follower(again, "c", AB)
    assert CHANGED.key in follower.refresh()
    known = {key for key, state in follower.states.items() if state.checkpoint is not None}
    assert known == ({CHANGED.key} if removed else {CHECKPOINT.key, CHANGED.key})
    assert len(recovered.states[LANE]) == len(known)
    assert (
        "event=state_table_gone table=state/pop_checkpoints loss='records that the logs do not have any more'"
        in caplog.text
    )
    with pytest.raises(Unavailable, match="is gone: the job merge makes it again"):
        table.look()
