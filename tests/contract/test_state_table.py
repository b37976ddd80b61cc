"""State tables read without Spark: tables that an independent Delta implementation wrote, and damage (SPEC RELY-4)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from deltamq.mq.errors import Corrupt
from deltamq.mq.queue.checkpoint import CheckpointKey, LaneKey
from deltamq.mq.queue.progress import CommitNote, Committed, OffsetRecord
from deltamq.mq.queue.revive_log import Ack
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.merge_plan import (
    MergePlan,
    PlannedRange,
    app_id,
    forget_plans,
    merged_to,
    put_plan,
    read_plan,
    watermark,
)
from deltamq.tables.queue.records import rows_of_offset_records, rows_of_records
from deltamq.tables.queue.recovery import Follower, recover
from deltamq.tables.queue.refs import OFFSETS, revive_ref, system_ref
from deltamq.tables.schema import TIME
from deltamq.tables.state.rows import rows_of_committed
from deltamq.tables.state.schema import CONSUMER_OFFSETS, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA
from deltamq.tables.state.signature import signature
from deltamq.tables.state.table import read_state, read_state_log, state_transactions, state_version
from deltamq.tables.state.upkeep import DATA_KEEP_MS, LOG_KEEP_MS, sweep_state
from deltamq.tables.store.local import LocalStore
from tests.contract.test_recovery import CHECKPOINT, LANE

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("when", TIME)])
FOLDER = "state/numbers"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    """One commit of the merge job, by another Delta writer than Spark."""

    def commit(*numbers: int, version: int | None = None, mode: str = "append") -> None:
        rows = pa.table({"n": list(numbers), "text": [str(n) for n in numbers]})
        done = [] if version is None else [Transaction("us", version)]
        signed = {"userMetadata": signature(state_version(LocalStore(tmp_path), FOLDER))}
        properties = CommitProperties(app_transactions=done, custom_metadata=signed)
        write_deltalake(str(tmp_path / FOLDER), rows, mode=mode, commit_properties=properties)

    return commit


def numbers(store: LocalStore, columns: list[str] | None = None) -> list[int]:
    state = read_state(store, FOLDER, SCHEMA, columns)
    assert state is not None
    return sorted(state.rows.column("n").to_pylist())


def test_there_may_be_no_table(store: LocalStore) -> None:
    assert read_state(store, FOLDER, SCHEMA) is None
    assert state_transactions(store, FOLDER) is None
    assert sweep_state(store, FOLDER, 0) == 0


def test_rows_and_transactions_are_of_one_version(store: LocalStore, write: Callable[..., None]) -> None:
    write(1, 2, version=5)
    write(3)
    state = read_state(store, FOLDER, SCHEMA)
    assert state is not None
    assert (state.version, dict(state.transactions), numbers(store)) == (1, {"us": 5}, [1, 2, 3])
    assert state.rows.schema == SCHEMA, "a column that the table lacks is null"
    assert state.rows.column("when").null_count == 3
    assert numbers(store, ["n"]) == [1, 2, 3]
    write(9, mode="overwrite", version=6)
    assert (numbers(store), state_transactions(store, FOLDER)) == ([9], {"us": 6})


def test_a_checkpoint_stands_for_the_commits_before_it(
    store: LocalStore, write: Callable[..., None], tmp_path: Path
) -> None:
    for number in range(5):
        write(number, version=number)
    DeltaTable(str(tmp_path / FOLDER)).create_checkpoint()
    write(5, version=9)
    for version in range(4):
        (tmp_path / FOLDER / "_delta_log" / f"{version:020d}.json").unlink()
    assert numbers(store) == [0, 1, 2, 3, 4, 5]
    assert state_transactions(store, FOLDER) == {"us": 9}
    log = read_state_log(store, FOLDER)
    assert log is not None
    assert (log.version, log.checkpoint_version) == (5, 4)


def test_names_in_the_log_are_escaped_names_of_files(
    store: LocalStore, write: Callable[..., None], tmp_path: Path
) -> None:
    write(1)
    (data,) = (tmp_path / FOLDER).glob("*.parquet")
    data.rename(data.with_name("a file.parquet"))
    commit = tmp_path / FOLDER / "_delta_log" / f"{0:020d}.json"
    commit.write_text(commit.read_text().replace(data.name, "a%20file.parquet"))
    assert numbers(store) == [1]


def damage_commit(folder: Path) -> None:
    (folder / "_delta_log" / f"{1:020d}.json").write_text("{")


def remove_commit(folder: Path) -> None:
    (folder / "_delta_log" / f"{1:020d}.json").unlink()


def remove_data(folder: Path) -> None:
    next(folder.glob("*.parquet")).unlink()


def damage_data(folder: Path) -> None:
    data = next(folder.glob("*.parquet"))
    data.write_bytes(data.read_bytes()[:-20])


def newer_protocol(folder: Path) -> None:
    """A commit of the merge job itself, of a release that is not known here."""
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
    actions = ({"commitInfo": {"userMetadata": signature(2)}}, {"protocol": protocol})
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (folder / "_delta_log" / f"{3:020d}.json").write_text(text)


@pytest.mark.parametrize("damage", [damage_commit, remove_data, damage_data, newer_protocol])
def test_damage_is_found(
    store: LocalStore, write: Callable[..., None], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    for number in range(3):
        write(number)
    damage(tmp_path / FOLDER)
    with pytest.raises(Corrupt, match="state/numbers"):
        read_state(store, FOLDER, SCHEMA)


def test_a_missing_commit_is_never_skipped(store: LocalStore, write: Callable[..., None], tmp_path: Path) -> None:
    for number in range(3):
        write(number)
    remove_commit(tmp_path / FOLDER)
    with pytest.raises(Corrupt, match=f"{1:020d}.json"):
        read_state(store, FOLDER, SCHEMA)


def test_a_sweep_removes_what_no_query_needs(store: LocalStore, write: Callable[..., None], tmp_path: Path) -> None:
    for number in range(4):
        write(number, mode="overwrite")
    DeltaTable(str(tmp_path / FOLDER)).create_checkpoint()
    write(9)
    newest_ms = max(entry.modified_ms for entry in store.entries(FOLDER))
    assert sweep_state(store, FOLDER, newest_ms) == 0
    assert sweep_state(store, FOLDER, newest_ms + DATA_KEEP_MS + 1) == 3
    assert sweep_state(store, FOLDER, newest_ms + LOG_KEEP_MS + 60_000) == 3
    assert numbers(store) == [3, 9]
    assert sorted(deltalake.DeltaTable(str(tmp_path / FOLDER)).to_pyarrow_table().column("n").to_pylist()) == [3, 9]


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_file_that_was_replaced_now_stays_for_queries_that_read_it_however_old_it_is(
    store: LocalStore, write: Callable[..., None], tmp_path: Path, is_checkpointed: bool
) -> None:
    write(1)
    (old,) = (tmp_path / FOLDER).glob("*.parquet")
    now_ms = old.stat().st_mtime_ns // 1_000_000
    os.utime(old, (now_ms / 1000 - 3600,) * 2)
    assert sweep_state(store, FOLDER, now_ms) == 0, "it is live"
    write(2, mode="overwrite")
    if is_checkpointed:
        DeltaTable(str(tmp_path / FOLDER)).create_checkpoint()
    assert sweep_state(store, FOLDER, now_ms) == 0
    assert sweep_state(store, FOLDER, now_ms + DATA_KEEP_MS - 1) == 0
    assert old.exists()
    assert sweep_state(store, FOLDER, now_ms + DATA_KEEP_MS + 60_000) == 1, "also by a process that started since"
    assert not old.exists()
    assert numbers(store) == [2]


def test_a_file_that_no_commit_names_goes_by_its_age(
    store: LocalStore, write: Callable[..., None], tmp_path: Path
) -> None:
    write(1)
    orphan = tmp_path / FOLDER / "part-orphan.parquet"
    orphan.write_bytes(b"killed")
    now_ms = orphan.stat().st_mtime_ns // 1_000_000
    assert sweep_state(store, FOLDER, now_ms + DATA_KEEP_MS) == 0
    assert sweep_state(store, FOLDER, now_ms + DATA_KEEP_MS + 1) == 1
    assert not orphan.exists()


LOG = PartitionRef(Space.SYS, "rmq_sys_OFFSETS_c", "rmq_sys_OFFSETS_c@a")


def test_a_plan_is_made_once(store: LocalStore) -> None:
    first = MergePlan(batch=3, logs={LOG: PlannedRange(5, 9)})
    assert read_plan(store, CONSUMER_OFFSETS, 3) is None
    assert put_plan(store, CONSUMER_OFFSETS, first) == first
    assert put_plan(store, CONSUMER_OFFSETS, MergePlan(batch=3, logs={LOG: PlannedRange(5, 99)})) == first
    assert (first.records, first.stops) == (4, {LOG: 9})


def test_plans_that_nobody_needs_are_removed(store: LocalStore) -> None:
    for batch in range(4):
        put_plan(store, CONSUMER_OFFSETS, MergePlan(batch=batch, logs={}))
    forget_plans(store, CONSUMER_OFFSETS, 102)
    left = [batch for batch in range(4) if read_plan(store, CONSUMER_OFFSETS, batch)]
    assert left == [2, 3]


def test_a_watermark_without_its_plan_is_damage(store: LocalStore) -> None:
    assert watermark(store, CONSUMER_OFFSETS, {}).stops == {}
    with pytest.raises(Corrupt, match="is missing"):
        watermark(store, CONSUMER_OFFSETS, {app_id(CONSUMER_OFFSETS): 7})
    key = f"jobs/merge/batches/consumer_offsets/{7:020d}.json"
    store.put(key, b"[]", durable=True)
    with pytest.raises(Corrupt, match="is not the plan of a batch"):
        watermark(store, CONSUMER_OFFSETS, {app_id(CONSUMER_OFFSETS): 7})


class Merged:
    """A warehouse whose logs are merged up to somewhere, by another Delta writer than ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = Warehouse.open(str(folder))
        self.revive, self.offsets = revive_ref("c", 2, "a"), system_ref(OFFSETS, "c", "a")

    def append(self, ref: PartitionRef, rows: pa.RecordBatch) -> None:
        self.warehouse.create(ref).append([Batch(rows, None)])

    def merge(self, table: str, rows: pa.Table, ref: PartitionRef, stop: int, batch: int = 0) -> None:
        put_plan(self.warehouse.store, table, MergePlan(batch=batch, logs={ref: PlannedRange(0, stop)}))
        done = CommitProperties(app_transactions=[Transaction(app_id(table), batch)])
        write_deltalake(str(self.folder / table), rows, mode="overwrite", commit_properties=done)


@pytest.fixture
def merged(tmp_path: Path) -> Merged:
    return Merged(tmp_path)


def checkpoint_rows(acked: int) -> pa.Table:
    key = CHECKPOINT.key
    row = {
        **{name: getattr(key, name) for name in ("group", "topic_id", "retry", "partition", "epoch", "start_offset")},
        "topic": "orders",
        "broker": "a",
        "pop_time": key.pop_time_ms * 1_000,
        "num": 3,
        "attempts": [1, 1, 1],
        "invisible_ms": 60_000,
        "revive_time": 61_000_000,
        "acked": acked,
        "replaced": 0,
        "done": 0,
        "in_flight": 3 - acked.bit_count(),
        "revive_queue": 2,
        "revive_offset": 0,
        "merged_at": 0,
    }
    return pa.Table.from_pylist([row], schema=POP_CHECKPOINTS_SCHEMA)


def offset_rows(committed: Committed, lane: LaneKey = LANE) -> pa.Table:
    from datetime import UTC, datetime

    return rows_of_committed({lane: ("orders", committed)}, datetime(2026, 1, 1, tzinfo=UTC))


def acks(key: CheckpointKey, *bits: int) -> pa.RecordBatch:
    return rows_of_records([Ack(key, one, 61_000) for one in bits])


def test_meta_03_a_start_reads_the_tables_and_only_what_is_behind_their_watermark(merged: Merged) -> None:
    """What is below the watermark need not be there any more: here it never was what the tables say."""
    merged.append(merged.revive, acks(CHECKPOINT.key, 0b100, 0b010))
    merged.merge(POP_CHECKPOINTS, checkpoint_rows(0b001), merged.revive, 1)
    record = OffsetRecord(lane=LANE, topic="orders", committed=Committed(3, 9))
    merged.append(merged.offsets, rows_of_offset_records([record, record]))
    merged.merge(CONSUMER_OFFSETS, offset_rows(Committed(3, 7, ((12, 13),))), merged.offsets, 1)
    recovered = recover(merged.warehouse, "c", ["a"])
    assert recovered.committed == {LANE: Committed(3, 9, ((12, 13),))}
    (state,) = recovered.states[LANE]
    assert state.acked == 0b011
    assert state.checkpoint is not None
    assert (state.checkpoint.span, state.checkpoint.pop.invisible_ms) == (CHECKPOINT.span, 60_000)
    assert merged_to(merged.warehouse.store) == {merged.revive: 1, merged.offsets: 1}
    assert recover(merged.warehouse, "c", ["b"]) == recover(Warehouse.open(str(merged.folder / "empty")), "c", ["b"])


def test_kafka_13_texts_are_in_the_table_and_one_of_an_earlier_release_has_none(merged: Merged) -> None:
    noted = Committed(3, 7, note=CommitNote(2, "b"))
    merged.append(merged.offsets, rows_of_offset_records([OffsetRecord(lane=LANE, topic="orders", committed=noted)]))
    for batch, (rows, known) in enumerate(
        [
            (offset_rows(noted), noted),
            (offset_rows(Committed(3, 7, note=CommitNote(3, ""))), Committed(3, 7, note=CommitNote(3, ""))),
            (offset_rows(noted).drop_columns(["metadata", "metadata_number"]), Committed(3, 7)),
        ]
    ):
        shutil.rmtree(merged.folder / CONSUMER_OFFSETS, ignore_errors=True)
        merged.merge(CONSUMER_OFFSETS, rows, merged.offsets, 1, batch)
        assert recover(merged.warehouse, "c", ["a"]).committed == {LANE: known}


@pytest.mark.promise("STATE-3")
def test_meta_03_a_follower_that_was_behind_a_cut_goes_on_from_the_table(merged: Merged) -> None:
    merged.append(merged.revive, acks(CHECKPOINT.key, 0b001))
    follower = Follower(merged.warehouse, "c", ["a"])
    follower.refresh()
    merged.append(merged.revive, acks(CHECKPOINT.key, 0b010))
    merged.append(merged.revive, acks(CHECKPOINT.key, 0b100))
    merged.merge(POP_CHECKPOINTS, checkpoint_rows(0b011), merged.revive, 2)
    merged.warehouse.open_partition(merged.revive).delete_below(2)
    assert follower.refresh() == {CHECKPOINT.key}
    state = follower.states[CHECKPOINT.key]
    assert state.acked == 0b111
    assert state.checkpoint is not None
    assert follower.positions[merged.revive] == 3
