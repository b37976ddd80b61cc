"""Repairs mend what can be mended, and lose nothing that was durable without saying so."""

from __future__ import annotations

import contextlib
import json

import pytest

from deltamq.mq.errors import Corrupt, Unavailable, Unprocessable
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.repairs import Repair, RepairKind, find_repair, repair
from deltamq.tables.ops.verification import verify
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import Flush
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.set_clock import SetClock
from tests.unit.tables.ops.damage import LOG, OpenWarehouse, checkpoint_key, commit_key, flip, own_checkpoint_key, wrong


def mend(warehouse: Warehouse, kind: RepairKind) -> Repair:
    found = find_repair(warehouse, REF)
    assert found is not None and found.kind is kind, found
    repair(warehouse, found)
    assert find_repair(warehouse, REF) is None
    return found


def test_nothing_to_mend_is_no_repair(log: PartitionLog, warehouse: Warehouse) -> None:
    assert find_repair(warehouse, REF) is None
    assert find_repair(warehouse, PartitionRef(Space.TOPICS, "no", "no@no")) is None


@pytest.mark.promise("DAMAGE-4")
def test_a_lost_newest_commit_is_put_back(log: PartitionLog, warehouse: Warehouse, files: MemoryStore) -> None:
    files.replace(f"{LOG}/.head", files.read(commit_key(11)))
    files.delete(commit_key(11))
    assert not mend(warehouse, RepairKind.PUT_BACK).loses
    assert wrong(verify(warehouse)) == []
    assert all_bodies(warehouse.open_partition(REF)) == numbered_bodies("m", 10)


def test_a_lost_newest_commit_is_put_back_by_opening(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    files.replace(f"{LOG}/.head", files.read(commit_key(11)))
    files.delete(commit_key(11))
    opened = warehouse.open_partition(REF)
    assert opened.append([batch(b"next")])[0].base_offset == 10
    assert all_bodies(opened) == [*numbered_bodies("m", 10), b"next"]


def test_a_second_name_without_its_data_is_not_put_back_by_opening(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    """A copy that was taken while the log was written: names were copied later than data."""
    files.replace(f"{LOG}/.head", files.read(commit_key(11)))
    files.delete(commit_key(11))
    files.delete(f"{REF.folder}/{log.files[-1].path}")
    with pytest.raises(Corrupt, match=r"00011\.json"):
        warehouse.open_partition(REF)


def test_a_second_name_far_ahead_is_cut(log: PartitionLog, warehouse: Warehouse, files: MemoryStore) -> None:
    files.replace(f"{LOG}/.head", files.read(commit_key(11)))
    files.delete(commit_key(10))
    files.delete(commit_key(11))
    with pytest.raises(Corrupt):
        warehouse.open_partition(REF)
    found = mend(warehouse, RepairKind.CUT)
    assert (found.version, found.lost_from) == (9, 8)


@pytest.mark.promise("FLUSH-5")
def test_a_torn_tail_of_async_appends_is_cut_and_says_what_is_lost(
    open_warehouse: OpenWarehouse, files: MemoryStore
) -> None:
    writer = open_warehouse().create(REF)
    writer.append([batch(b"a", b"b")])
    for body in (b"c", b"d", b"e"):
        writer.append([batch(body, body)], flush=Flush.ASYNC)
    files.replace(commit_key(3), b"")
    files.replace(f"{REF.folder}/{writer.files[2].path}", b"")
    files.replace(f"{LOG}/.head", files.read(commit_key(4)))
    warehouse = open_warehouse()
    with pytest.raises(Corrupt):
        warehouse.open_partition(REF)
    found = mend(warehouse, RepairKind.CUT)
    assert (found.version, found.lost_from, found.lost_to) == (2, 4, 8)
    assert "none was said to be durable" in found.text
    opened = warehouse.open_partition(REF)
    assert all_bodies(opened) == [b"a", b"b", b"c", b"c"]
    assert opened.append([batch(b"new")])[0].base_offset == 4
    assert wrong(verify(warehouse)) == []


def test_a_torn_data_file_of_an_async_append_is_cut(open_warehouse: OpenWarehouse, files: MemoryStore) -> None:
    writer = open_warehouse().create(REF)
    writer.append([batch(b"a")])
    writer.append([batch(b"b")], flush=Flush.ASYNC)
    writer.append([batch(b"c")], flush=Flush.ASYNC)
    files.replace(f"{REF.folder}/{writer.files[1].path}", b"")
    warehouse = open_warehouse()
    found = mend(warehouse, RepairKind.CUT)
    assert (found.version, found.lost_from, found.lost_to) == (1, 1, 3)
    assert all_bodies(warehouse.open_partition(REF)) == [b"a"]


def test_what_a_cut_takes_out_is_kept_beside_the_table(
    open_warehouse: OpenWarehouse, files: MemoryStore, clock: SetClock
) -> None:
    writer = open_warehouse().create(REF)
    for body in (b"a", b"b", b"c"):
        writer.append([batch(body)], flush=Flush.ASYNC)
    kept = files.read(commit_key(3)).to_pybytes()
    files.replace(commit_key(2), b"")
    files.delete(f"{REF.folder}/{writer.files[1].path}")
    warehouse = open_warehouse()
    found = find_repair(warehouse, REF)
    assert found is not None
    moved = repair(warehouse, found)
    (folder,) = [f for f in files.folders(REF.folder) if f.startswith("_cut-")]
    assert files.read(f"{REF.folder}/{folder}/{3:020d}.json").to_pybytes() == kept
    assert {e.name for e in files.entries(f"{REF.folder}/{folder}")} >= {writer.files[2].path}
    assert len(moved) == len(files.entries(f"{REF.folder}/{folder}"))


def test_a_cut_says_so_when_durable_messages_are_behind_it(open_warehouse: OpenWarehouse, files: MemoryStore) -> None:
    """No torn tail of a power cut: a damaged disk. It is found, and it is not played down."""
    writer = open_warehouse().create(REF)
    for body in (b"a", b"b", b"c"):
        writer.append([batch(body)])
    flip(files, commit_key(2))
    flip(files, f"{REF.folder}/{writer.files[1].path}")
    found = find_repair(open_warehouse(), REF)
    assert found is not None and found.loses
    assert "acknowledged as durable" in found.text


def test_a_damaged_data_file_of_a_durable_append_is_never_cut(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    flip(files, f"{REF.folder}/{log.files[-1].path}")
    assert find_repair(warehouse, REF) is None


def test_a_damaged_checkpoint_is_dropped_when_the_commits_are_there(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    flip(files, checkpoint_key(9), 300)
    flip(files, own_checkpoint_key(9), 300)
    with pytest.raises(Corrupt):
        warehouse.open_partition(REF)
    assert not mend(warehouse, RepairKind.DROP_CHECKPOINT).loses
    assert all_bodies(warehouse.open_partition(REF)) == numbered_bodies("m", 10)
    assert wrong(verify(warehouse)) == []


def test_a_damaged_checkpoint_without_its_commits_cannot_be_mended_and_is_not_cut(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    flip(files, checkpoint_key(9), 300)
    flip(files, own_checkpoint_key(9), 300)
    for version in range(5):
        files.delete(commit_key(version))
    assert find_repair(warehouse, REF) is None


@pytest.mark.parametrize("content", [b"", b'{"version":7}'])
def test_a_wrong_hint_is_written_again(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore, content: bytes
) -> None:
    key = f"{LOG}/_last_checkpoint"
    right = json.loads(files.read(key).to_pybytes())
    files.replace(key, content)
    mend(warehouse, RepairKind.WRITE_HINT)
    assert json.loads(files.read(key).to_pybytes()) == right
    assert wrong(verify(warehouse)) == []


def test_a_repair_of_something_that_changed_is_refused(open_warehouse: OpenWarehouse, files: MemoryStore) -> None:
    writer = open_warehouse().create(REF)
    writer.append([batch(b"a")], flush=Flush.ASYNC)
    whole = files.read(commit_key(1))
    files.replace(commit_key(1), b"")
    data = f"{REF.folder}/{writer.files[0].path}"
    rows = files.read(data)
    files.delete(data)
    warehouse = open_warehouse()
    found = find_repair(warehouse, REF)
    assert found is not None and found.loses
    files.replace(data, rows)
    files.replace(commit_key(1), whole)
    with pytest.raises(Unprocessable):
        repair(warehouse, found)


@pytest.mark.parametrize("stop", range(12))
def test_a_cut_that_is_killed_is_finished_by_the_next(
    open_warehouse: OpenWarehouse, files: MemoryStore, stop: int
) -> None:
    writer = open_warehouse().create(REF)
    for body in (b"a", b"b", b"c", b"d"):
        writer.append([batch(body)], flush=Flush.ASYNC)
    files.replace(commit_key(2), b"")
    files.delete(f"{REF.folder}/{writer.files[1].path}")
    files.replace(f"{LOG}/.head", files.read(commit_key(4)))
    store = FaultyStore(files)
    warehouse = open_warehouse(store)
    found = find_repair(warehouse, REF)
    assert found is not None
    left = [stop]

    def die(_: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Unavailable("killed")

    store.before |= {"delete": die, "put": die}
    with contextlib.suppress(Unavailable):
        repair(warehouse, found)
    store.before.clear()
    while (again := find_repair(warehouse, REF)) is not None:
        repair(warehouse, again)
    opened = warehouse.open_partition(REF)
    assert all_bodies(opened)[:1] == [b"a"]
    assert opened.append([batch(b"x")])[0].base_offset == len(all_bodies(opened)) - 1
