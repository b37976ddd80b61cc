"""A log whose commits are gone is put together again from its data files, if these tell without a doubt (RELY-9)."""

from __future__ import annotations

import pytest

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.encode import footer_start
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.ops.repairs import RepairKind, find_repair, repair
from deltamq.tables.ops.verification import verify
from deltamq.tables.settings import Flush
from deltamq.tables.store.store import MemoryStore
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.unit.tables.ops.damage import OpenWarehouse, commit_key, flip, wrong


def refill(open_warehouse: OpenWarehouse) -> PartitionLog:
    """Repair without any loss, and return the log as a process opens it that comes after."""
    warehouse = open_warehouse()
    with pytest.raises(Corrupt):
        warehouse.open_partition(REF)
    found = find_repair(warehouse, REF)
    assert found is not None and (found.kind, found.loses) == (RepairKind.REFILL, False), found
    repair(warehouse, found)
    assert find_repair(warehouse, REF) is None and wrong(verify(warehouse)) == []
    return open_warehouse().open_partition(REF)


@pytest.mark.parametrize("gone", [[1], [4], [3, 4], [2, 6], list(range(1, 8))], ids=str)
def test_rely_09_commits_that_are_gone_are_found_again_in_the_data_files(
    open_warehouse: OpenWarehouse, files: MemoryStore, gone: list[int]
) -> None:
    writer = open_warehouse().create(REF)
    for seq, body in enumerate(numbered_bodies("m", 8)):
        writer.append([batch(body, body, producer="p", seq=seq)])
    for version in gone:
        files.delete(commit_key(version))
    log = refill(open_warehouse)
    assert all_bodies(log) == [body for body in numbered_bodies("m", 8) for _ in (1, 2)]
    again = log.append([batch(b"?", b"?", producer="p", seq=gone[0] - 1)])[0]
    assert again.duplicate and again.base_offset == 2 * gone[0] - 2, "the producers' requests are in the files, too"
    assert log.append([batch(b"next")])[0].base_offset == 16


def test_rely_09_the_newest_commit_is_found_again_while_its_damaged_file_is_there(
    open_warehouse: OpenWarehouse, files: MemoryStore
) -> None:
    writer = open_warehouse().create(REF)
    for body in numbered_bodies("m", 3):
        writer.append([batch(body)])
    flip(files, commit_key(3))
    assert all_bodies(refill(open_warehouse)) == numbered_bodies("m", 3)


def test_rely_09_a_roll_up_whose_commit_is_gone_costs_nothing(
    open_warehouse: OpenWarehouse, files: MemoryStore
) -> None:
    """Its file and those that it replaced hold the same rows; either will do."""
    writer = open_warehouse(rollup_files=4).create(REF)
    for body in numbered_bodies("m", 4):
        writer.append([batch(body)])
    small = [file.path for file in writer.files]
    assert writer.maintain() and writer.version == 5
    writer.append([batch(b"more")])
    files.delete(commit_key(5))
    for path in small[:2]:
        files.delete(f"{REF.folder}/{path}")
    for version in (1, 2):
        files.delete(commit_key(version))
    assert all_bodies(refill(open_warehouse)) == [*numbered_bodies("m", 4), b"more"]


def test_rely_09_fences_that_other_commits_tell_of_stay(open_warehouse: OpenWarehouse, files: MemoryStore) -> None:
    writer = open_warehouse().create(REF)
    writer.append([batch(b"a")])
    writer.fence("broker", 3)
    writer.append([batch(b"b")])
    writer.append([batch(b"c")])
    files.delete(commit_key(3))
    assert dict(refill(open_warehouse).fences) == {"broker": 3}


@pytest.mark.parametrize(
    ("steps", "gone", "bodies"),
    [
        ("ff", [1], []),
        ("ff", [2], []),
        ("af", [2], [b"m1"]),
        ("faf", [1, 3], [b"m2"]),
        ("aafa", [3], [b"m1", b"m2", b"m4"]),
        ("aaf", [2], [b"m1", b"m2"]),
        ("af", [1], [b"m1"]),
    ],
)
def test_rely_09_a_fence_that_is_gone_costs_no_message(
    open_warehouse: OpenWarehouse, files: MemoryStore, steps: str, gone: list[int], bodies: list[bytes]
) -> None:
    """A fence tells no end: a file that begins there may be of a commit before it that is gone, too."""
    writer = open_warehouse().create(REF)
    for number, step in enumerate(steps, start=1):
        if step == "a":
            writer.append([batch(b"m%d" % number)])
        else:
            writer.fence("broker", number)
    for version in gone:
        if version == len(steps):
            flip(files, commit_key(version))
        else:
            files.delete(commit_key(version))
    log = refill(open_warehouse)
    assert all_bodies(log) == bodies
    assert log.append([batch(b"next")])[0].base_offset == len(bodies)


def test_rely_09_what_no_file_holds_is_not_invented(open_warehouse: OpenWarehouse, files: MemoryStore) -> None:
    writer = open_warehouse().create(REF)
    for body in numbered_bodies("m", 4):
        writer.append([batch(body)])
    files.delete(commit_key(2))
    flip(files, f"{REF.folder}/{writer.files[1].path}")
    found = find_repair(open_warehouse(), REF)
    assert found is not None and found.kind is RepairKind.CUT


def test_rely_09_two_files_that_differ_are_no_proof(open_warehouse: OpenWarehouse, files: MemoryStore) -> None:
    """A writer that lost the race left a file of the same offsets: nobody can tell which of them was committed."""
    writer, rival = open_warehouse().create(REF), open_warehouse().open_partition(REF)
    writer.append([batch(b"a")])
    rival.append([batch(b"b")])
    lost = rival.files[-1].path
    content = files.read(f"{REF.folder}/{lost}")
    for name in (commit_key(2), f"{REF.folder}/{lost}"):
        files.delete(name)
    writer = open_warehouse().open_partition(REF)
    writer.append([batch(b"c")])
    writer.append([batch(b"d")])
    files.replace(f"{REF.folder}/{lost}", content)
    files.delete(commit_key(2))
    found = find_repair(open_warehouse(), REF)
    assert found is not None and found.kind is RepairKind.CUT


def test_rely_09_a_file_that_ends_in_another_files_footer_is_no_proof(
    open_warehouse: OpenWarehouse, files: MemoryStore
) -> None:
    """A recycled file that was not synced: its pages are the new ones, and the footer with its requests is the old."""
    writer = open_warehouse().create(REF)
    writer.append([batch(b"body", producer="p", seq=1)])
    for seq in range(2, 100):  # checksums in the pages' heads take four bytes or five
        writer.append([batch(b"body", producer="p", seq=seq)])
        dead, torn = (files.read(f"{REF.folder}/{file.path}").to_pybytes() for file in writer.files[-2:])
        if len(dead) == len(torn):
            break
    assert len(dead) == len(torn)
    at = footer_start(memoryview(dead))
    files.replace(f"{REF.folder}/{writer.files[-1].path}", torn[:at] + dead[at:])
    flip(files, commit_key(seq))
    found = find_repair(open_warehouse(), REF)
    assert found is not None and found.kind is RepairKind.CUT


def test_rely_09_a_torn_tail_that_nobody_synced_is_cut_and_not_made_a_part_of_the_log(
    open_warehouse: OpenWarehouse, files: MemoryStore
) -> None:
    """A power cut took the commit 2, and left the commit 3 without its data."""
    writer = open_warehouse().create(REF)
    writer.append([batch(b"durable")])
    writer.fence("broker", 1)
    writer.append([batch(b"torn")], flush=Flush.ASYNC)
    files.delete(commit_key(2))
    (torn,) = [file.path for file in writer.files if file.start == 1]
    flip(files, f"{REF.folder}/{torn}")
    warehouse = open_warehouse()
    found = find_repair(warehouse, REF)
    assert found is not None and (found.kind, found.version, found.lost_from) == (RepairKind.CUT, 1, 1)
    repair(warehouse, found)
    assert find_repair(warehouse, REF) is None
    assert all_bodies(open_warehouse().open_partition(REF)) == [b"durable"]


def test_rely_09_a_torn_tail_is_cut_also_where_the_commit_of_its_data_is_whole(
    open_warehouse: OpenWarehouse, files: MemoryStore
) -> None:
    """A power cut took the data of the commit 2, and the commit 3, whose data is whole."""
    writer = open_warehouse().create(REF)
    writer.append([batch(b"durable")])
    writer.append([batch(b"torn")], flush=Flush.ASYNC)
    writer.append([batch(b"whole")], flush=Flush.ASYNC)
    files.replace(commit_key(3), b"")
    (torn,) = [file.path for file in writer.files if file.start == 1]
    flip(files, f"{REF.folder}/{torn}")
    versions = []
    while (found := find_repair(warehouse := open_warehouse(), REF)) is not None:
        assert found.kind is RepairKind.CUT and found.lost_from is not None and found.lost_from >= 1
        versions.append(found.version)
        repair(warehouse, found)
    assert versions == [2, 1]
    assert all_bodies(open_warehouse().open_partition(REF)) == [b"durable"]


def test_rely_09_damage_in_synced_data_does_not_keep_a_log_from_being_put_together(
    open_warehouse: OpenWarehouse, files: MemoryStore
) -> None:
    writer = open_warehouse().create(REF)
    for body in numbered_bodies("m", 3):
        writer.append([batch(body)])
    files.delete(commit_key(2))
    flip(files, f"{REF.folder}/{writer.files[2].path}")
    found = find_repair(open_warehouse(), REF)
    assert found is not None and found.kind is RepairKind.REFILL, "a cut would lose what commits before it hold"
