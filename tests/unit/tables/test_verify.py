"""Verification names what is wrong and calls nothing wrong that is not; repairs mend what can be mended."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pytest

from mq.errors import Corrupt, Unavailable, Unprocessable
from tables.log import PartitionLog
from tables.paths import PartitionRef, Space
from tables.queue_refs import DELAY, dead_ref, retry_ref, revive_ref, system_ref
from tables.repair import Repair, RepairKind, find_repair, repair
from tables.settings import Flush, LogSettings
from tables.store import MemoryStore
from tables.verify import Finding, Gravity, damaged, inspect, verify
from tables.warehouse import Warehouse
from tests.faulty_store import FaultyStore, failing
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.set_clock import SetClock

LOG = f"{REF.folder}/_delta_log"
OTHER = PartitionRef(Space.RETRY, "group", "orders@broker-b")
OpenWarehouse = Callable[..., Warehouse]


def commit_key(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def checkpoint_key(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def flip(files: MemoryStore, key: str, at: int = 100) -> None:
    raw = bytearray(files.read(key).to_pybytes())
    raw[at] ^= 8
    files.replace(key, bytes(raw))


@pytest.fixture
def open_warehouse(files: MemoryStore, clock: SetClock) -> Iterator[OpenWarehouse]:
    opened: list[Warehouse] = []

    def open_one(store: object = None, **settings: object) -> Warehouse:
        settings = {"flush_interval_ms": 3_600_000, **settings}
        found = Warehouse.open("", store=store or files, settings=LogSettings(**settings), clock=clock)  # type: ignore[arg-type] # a test's own keywords
        opened.append(found)
        return found

    yield open_one
    for warehouse in opened:
        warehouse.close()


@pytest.fixture
def log(open_warehouse: OpenWarehouse) -> PartitionLog:
    """Eleven commits with a checkpoint of version 8, rolled up once; another partition beside it."""
    warehouse = open_warehouse(rollup_files=8, checkpoint_commits=9, log_keep_ms=1_000)
    warehouse.create(OTHER).append([batch(b"other")])
    log = warehouse.create(REF)
    for body in numbered_bodies("m", 10):
        log.append([batch(body)])
        log.maintain()
    assert (log.version, log.checkpoint_version, len(log.files)) == (11, 9, 3)
    return log


@pytest.fixture
def warehouse(open_warehouse: OpenWarehouse) -> Warehouse:
    """Who verifies: another process."""
    return open_warehouse()


def wrong(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.gravity is not Gravity.NOTE]


def test_a_sound_warehouse_has_only_notes(log: PartitionLog, warehouse: Warehouse) -> None:
    found = verify(warehouse)
    assert wrong(found) == []
    (note,) = found
    assert (note.ref, note.file) == (REF, REF.folder)
    assert note.problem.startswith("8 files of ")
    assert "0 for offsets from the end on" in note.problem


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


def test_f6_a_damaged_checkpoint_is_found_by_name(log: PartitionLog, warehouse: Warehouse, files: MemoryStore) -> None:
    flip(files, checkpoint_key(9), 300)
    (found,) = [f for f in verify(warehouse) if f.gravity is Gravity.DAMAGE]
    assert found.file == checkpoint_key(9)


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
    for version in range(10):
        files.delete(commit_key(version))
    assert commit_key(0) in {f.file for f in verify(warehouse) if f.gravity is Gravity.DAMAGE}


def test_a_log_that_does_not_add_up_is_damage_though_each_file_is_whole(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    """A commit of this very table and version, but from another branch of its history: a copy put back carelessly."""
    from tables.actions import DataFile, encode_append

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
    raw = encode_append(table_id=log.table_id, version=11, batch_id="b", file=stray, parts=(), flushed=True, now_ms=0)
    files.replace(commit_key(11), raw)
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


# Repairs.


def mend(warehouse: Warehouse, kind: RepairKind) -> Repair:
    found = find_repair(warehouse, REF)
    assert found is not None and found.kind is kind, found
    repair(warehouse, found)
    assert find_repair(warehouse, REF) is None
    return found


def test_nothing_to_mend_is_no_repair(log: PartitionLog, warehouse: Warehouse) -> None:
    assert find_repair(warehouse, REF) is None
    assert find_repair(warehouse, PartitionRef(Space.TOPICS, "no", "no@no")) is None


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


def test_a_torn_tail_of_async_appends_is_cut_and_says_what_is_lost(
    open_warehouse: OpenWarehouse, files: MemoryStore
) -> None:
    writer = open_warehouse().create(REF)
    writer.append([batch(b"a", b"b")])
    for body in (b"c", b"d", b"e"):
        writer.append([batch(body, body)], flush=Flush.ASYNC)
    files.replace(commit_key(3), b"")
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
    with pytest.raises(Corrupt):
        warehouse.open_partition(REF)
    assert not mend(warehouse, RepairKind.DROP_CHECKPOINT).loses
    assert all_bodies(warehouse.open_partition(REF)) == numbered_bodies("m", 10)
    assert wrong(verify(warehouse)) == []


def test_a_damaged_checkpoint_without_its_commits_cannot_be_mended_and_is_not_cut(
    log: PartitionLog, warehouse: Warehouse, files: MemoryStore
) -> None:
    flip(files, checkpoint_key(9), 300)
    files.delete(commit_key(4))
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
    warehouse = open_warehouse()
    found = find_repair(warehouse, REF)
    assert found is not None and found.loses
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
