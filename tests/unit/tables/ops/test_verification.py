"""Verification names what is wrong and calls nothing wrong that is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltamq.mq.errors import Unavailable
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.repairs import RepairKind, find_repair, repair
from deltamq.tables.ops.verification import Finding, Gravity, damaged, inspect, verify
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.refs import DELAY, dead_ref, retry_ref, revive_ref, system_ref
from deltamq.tables.settings import Flush
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore, failing
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.set_clock import SetClock
from tests.unit.tables.ops.damage import (
    LOG,
    OTHER,
    OpenWarehouse,
    checkpoint_key,
    commit_key,
    flip,
    own_checkpoint_key,
    wrong,
)


def test_a_sound_warehouse_has_only_notes(log: PartitionLog, warehouse: Warehouse) -> None:
    found = verify(warehouse)
    assert wrong(found) == []
    (note,) = found
    assert (note.ref, note.file) == (REF, REF.folder)
    assert note.problem.startswith("8 files of ")
    assert "0 at or after the end offset" in note.problem


def test_an_empty_warehouse_has_nothing_wrong(open_warehouse: OpenWarehouse) -> None:
    assert verify(open_warehouse(MemoryStore())) == []


def test_progress_reaches_its_end(log: PartitionLog, warehouse: Warehouse) -> None:
    told: list[tuple[int, int]] = []
    verify(warehouse, None, lambda ref, done, total: told.append((done, total)))
    assert len(told) == 4
    assert told == sorted(told) and told[-1][0] == told[-1][1]
    assert len({total for _, total in told}) == 1


def test_a_partition_that_is_not_there_has_no_findings(warehouse: Warehouse) -> None:
    assert verify(warehouse, [REF]) == []


@pytest.mark.parametrize("look", [verify, inspect])
def test_f6_a_partition_that_lost_its_log_is_damaged(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore, look: Callable[[Warehouse], list[Finding]]
) -> None:
    files.delete_tree(f"{REF.folder}/_delta_log")
    (found,) = look(warehouse)
    assert (found.ref, found.file, found.gravity) == (REF, f"{REF.folder}/_delta_log", Gravity.DAMAGE)
    assert "restore" in found.remedy


@pytest.mark.parametrize("at", [0, 4, 60, 200, -1, -8])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_f6_a_flipped_bit_in_a_data_file_is_found_by_name(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore, at: int, which: int
) -> None:
    file = log.files[which]
    flip(files, f"{REF.folder}/{file.path}", at)
    (found,) = wrong(verify(warehouse))
    assert (found.ref, found.file) == (REF, f"{REF.folder}/{file.path}")
    assert found.gravity is Gravity.DAMAGE
    assert f"offsets {file.start} to {file.end - 1}" in found.remedy
    assert damaged([found]) == [REF]


@pytest.mark.parametrize(
    "change", [lambda raw: raw[:-1], lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: raw + b"x"]
)
@pytest.mark.parametrize("look", [verify, inspect])
def test_f6_another_size_is_found_without_reading(
    log: PartitionLog,
    warehouse: Warehouse,
    files: MemoryStore,
    change: Callable[[bytes], bytes],
    look: Callable[[Warehouse], list[Finding]],
) -> None:
    key = f"{REF.folder}/{log.files[0].path}"
    files.replace(key, change(files.read(key).to_pybytes()))
    (found,) = wrong(look(warehouse))
    assert found.file == key and "bytes, the log says" in found.problem


def test_f6_a_missing_data_file_is_found(log: PartitionLog, warehouse: Warehouse, files: MemoryStore) -> None:
    key = f"{REF.folder}/{log.files[1].path}"
    files.delete(key)
    (found,) = wrong(inspect(warehouse))
    assert found.file == key and "missing" in found.problem


def test_f6_two_files_that_changed_places_are_both_found(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    one, two = (f"{REF.folder}/{f.path}" for f in log.files[1:])
    first = files.read(one)
    files.replace(one, files.read(two))
    files.replace(two, first)
    assert {f.file for f in wrong(verify(warehouse))} == {one, two}


@pytest.mark.promise("DAMAGE-3")
@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("damage", ["flip", "empty", "cut", "delete"])
def test_f6_a_damaged_commit_is_found_by_name(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore, version: int, damage: str
) -> None:
    key = commit_key(version)
    raw = files.read(key).to_pybytes()
    if damage == "flip":
        flip(files, key)
    elif damage == "delete":
        files.replace(f"{LOG}/.head", files.read(commit_key(11)))
        files.delete(key)
    else:
        files.replace(key, b"" if damage == "empty" else raw[:-20])
    found = [f for f in verify(warehouse) if f.gravity is Gravity.DAMAGE]
    assert [f.file for f in found] == [key]


def test_f6_a_damaged_commit_that_a_checkpoint_covers_is_a_blemish(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    flip(files, commit_key(3))
    (found,) = wrong(verify(warehouse))
    assert (found.file, found.gravity) == (commit_key(3), Gravity.BLEMISH)


@pytest.mark.promise("DAMAGE-3")
def test_f6_a_damaged_checkpoint_is_found_by_name(log: PartitionLog, warehouse: Warehouse, files: MemoryStore) -> None:
    flip(files, checkpoint_key(9), 300)
    found = wrong(verify(warehouse))
    assert {(f.file, f.gravity) for f in found} == {
        (checkpoint_key(9), Gravity.BLEMISH),
        (f"{LOG}/_last_checkpoint", Gravity.BLEMISH),
    }, "we start from our own copy"
    flip(files, own_checkpoint_key(9), 300)
    found = [f for f in verify(warehouse) if f.gravity is Gravity.DAMAGE]
    assert [f.file for f in found] == [own_checkpoint_key(9), checkpoint_key(9)]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":"x"}', b'{"version":7,"size":3}', None])
def test_f6_a_wrong_hint_is_a_blemish(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore, content: bytes | None
) -> None:
    key = f"{LOG}/_last_checkpoint"
    if content is None:
        files.delete(key)
    else:
        files.replace(key, content)
    (found,) = wrong(verify(warehouse))
    assert (found.file, found.gravity) == (key, Gravity.BLEMISH)


def test_f6_a_damaged_second_name_is_a_blemish(log: PartitionLog, warehouse: Warehouse, files: MemoryStore) -> None:
    files.replace(f"{LOG}/.head", b"garbage")
    (found,) = wrong(verify(warehouse))
    assert (found.file, found.gravity) == (f"{LOG}/.head", Gravity.BLEMISH)


def test_f6_a_log_that_lost_everything_but_a_checkpoint_and_commits_behind_is_damage(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    files.delete(checkpoint_key(9))
    files.delete(own_checkpoint_key(9))
    for version in range(10):
        files.delete(commit_key(version))
    assert commit_key(0) in {f.file for f in verify(warehouse) if f.gravity is Gravity.DAMAGE}


def test_a_log_that_does_not_add_up_is_damage_though_each_file_is_whole(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    """A commit of this very table and version, but from another branch of its history: a copy put back carelessly."""
    from deltamq.tables.delta.actions import DataFile, encode_append

    file = log.files[-1]
    stray = DataFile(
        path=file.path,
        size=file.size,
        start=99,
        count=1,
        modified_ms=0,
        append_min_us=0,
        append_max_us=0,
        stats='{"numRecords":1,"minValues":{"offset":99},"maxValues":{"offset":99}}',
        crc=file.crc,
    )
    stored = encode_append(
        table_id=log.table_id, version=11, batch_id="b", file=stray, parts=(), flushed=True, now_ms=0
    )
    files.replace(commit_key(11), stored.data)
    found = [f for f in verify(warehouse) if f.gravity is Gravity.DAMAGE]
    assert len(found) == 1 and "starts at 99" in found[0].problem


def test_other_partitions_are_checked_though_one_is_damaged(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    files.replace(commit_key(11), b"")
    other = next(e.name for e in files.entries(OTHER.folder))
    flip(files, f"{OTHER.folder}/{other}")
    assert damaged(verify(warehouse)) == [REF, OTHER]


SPACES = [
    PartitionRef(Space.TOPICS, "orders", "orders#1@broker-a", 2),
    retry_ref("billing", 3, "orders", 1, "broker-a"),
    dead_ref("billing", 3, "broker-a"),
    revive_ref("deltamq", 7, "broker-a"),
    system_ref(DELAY, "deltamq", "broker-a"),
]


@pytest.mark.parametrize("ref", SPACES, ids=lambda ref: ref.space.value)
@pytest.mark.parametrize("look", [verify, inspect])
def test_every_space_is_checked(
    open_warehouse: OpenWarehouse, files: MemoryStore, ref: PartitionRef, look: Callable[[Warehouse], list[Finding]]
) -> None:
    warehouse = open_warehouse()
    for one in SPACES:
        warehouse.create(one).append([batch(b"a")])
    assert look(warehouse) == []
    files.delete(f"{ref.folder}/{warehouse.open_partition(ref).files[0].path}")
    assert [(f.ref, f.gravity) for f in look(warehouse)] == [(ref, Gravity.DAMAGE)]


def test_a_partition_that_retention_went_through_is_sound(
    open_warehouse: OpenWarehouse, files: MemoryStore, clock: SetClock
) -> None:
    warehouse = open_warehouse(file_keep_ms=1_000, rollup_files=3, checkpoint_commits=4)
    log = warehouse.create(REF)
    for body in numbered_bodies("m", 9):
        log.append([batch(body)])
        log.delete_below(log.end_offset - 3)
        log.maintain()
        (note,) = [*verify(warehouse), None][:1]
        assert note is None or note.gravity is Gravity.NOTE
    log.delete_below(log.end_offset)
    clock.advance_ms(1_000)
    log.maintain()
    assert verify(warehouse) == []
    assert find_repair(warehouse, REF) is None
    flip(files, commit_key(log.version))
    assert [f.gravity for f in verify(warehouse)] == [Gravity.DAMAGE]


def test_what_was_removed_does_not_come_back_with_a_cut(open_warehouse: OpenWarehouse) -> None:
    """A removal is durable, so a torn tail always lies behind it."""
    warehouse = open_warehouse()
    log = warehouse.create(REF)
    for body in numbered_bodies("m", 4):
        log.append([batch(body)], flush=Flush.ASYNC)
    log.delete_below(2)
    log.append([batch(b"torn")], flush=Flush.ASYNC)
    warehouse.store.replace(commit_key(6), b"")
    warehouse.store.delete(f"{REF.folder}/{log.files[-1].path}")
    mender = open_warehouse()
    found = find_repair(mender, REF)
    assert found is not None and (found.kind, found.version, found.lost_from) == (RepairKind.CUT, 5, 4)
    repair(mender, found)
    mended = open_warehouse().open_partition(REF)
    assert (mended.min_offset, mended.end_offset) == (2, 4)
    assert all_bodies(mended) == numbered_bodies("m", 4)[2:]


def test_a_store_that_is_out_is_no_finding(
    log: PartitionLog, open_warehouse: OpenWarehouse, store: FaultyStore
) -> None:
    warehouse = open_warehouse(store)
    store.before["read"] = failing(Unavailable("out"))
    with pytest.raises(Unavailable):
        verify(warehouse)


def test_a_partition_that_is_written_meanwhile_is_not_called_damaged(
    log: PartitionLog, open_warehouse: OpenWarehouse, store: FaultyStore, clock: SetClock
) -> None:
    """Between any two looks another process appends, rolls up, cleans up and removes what it replaced."""
    warehouse = open_warehouse(store)

    def meanwhile(_: str) -> None:
        for _ in range(3):
            log.append([batch(b"more")])
            log.maintain()
        clock.advance_ms(700_000)
        log.maintain()

    for name in ("entries", "read_parts", "exists"):
        store.before[name] = meanwhile
    assert wrong(verify(warehouse, [REF])) == []
