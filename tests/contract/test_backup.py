"""Backups of a warehouse that changes while they are made, and what is restored (SPEC RELY-12, RELY-13)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from deltamq.mq.errors import Conflict, Corrupt, NotFound, Unavailable
from deltamq.mq.meta.desired import Desired, TopicWanted
from deltamq.mq.queue.checkpoint import Checkpoint, Pop, Span
from deltamq.tables.backup.backup import back_up
from deltamq.tables.backup.files import Backup, BackupFolder
from deltamq.tables.backup.restore import restore
from deltamq.tables.failpoints import FailpointHit, arm
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.applied import Applied, read_applied, write_applied
from deltamq.tables.ops.verification import damaged, verify
from deltamq.tables.paths import Space
from deltamq.tables.queue.merge_plan import watermark
from deltamq.tables.queue.metadata import MetaLog, read_meta
from deltamq.tables.queue.records import rows_of_records
from deltamq.tables.queue.recovery import recover
from deltamq.tables.queue.refs import revive_ref
from deltamq.tables.state.schema import POP_CHECKPOINTS
from deltamq.tables.state.table import state_transactions
from deltamq.tables.store.store import MemoryStore, Store
from tests.faulty_store import FaultyStore
from tests.merged_checkpoints import MergedCheckpoints
from tests.object_servers import ObjectServer
from tests.queue_tables import BROKER, CLUSTER, QueueTables
from tests.rows import all_bodies


class World:
    """A warehouse, a folder of backups, and a clock that every look moves by a second."""

    def __init__(self) -> None:
        self.store = FaultyStore(MemoryStore())
        self.tables = QueueTables("", self.store)
        self.kept = MemoryStore()
        self.folder = BackupFolder(self.kept)
        self._now_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        self._now_ms += 1_000
        return self._now_ms

    def back_up(self) -> Backup:
        return back_up(self.store, self.kept, now_ms=self.now_ms)

    def restored(self, backup: Backup) -> MemoryStore:
        to = MemoryStore()
        restore(self.folder, backup, to)
        return to


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.tables.close()


@pytest.fixture
def failpoints() -> Iterator[Callable[[str], None]]:
    yield arm
    arm("")


def bodies(store: Store, name: str = "orders") -> list[bytes]:
    """Return what a restored topic has in its first partition."""
    warehouse = Warehouse.open("", store=store)
    try:
        topic = MetaLog(warehouse).meta.topics.topics[name]
        (ref,) = [ref for ref in warehouse.refs_of(Space.TOPICS, name) if ref.generation == topic.generation]
        return all_bodies(warehouse.open_partition(ref))
    finally:
        warehouse.close()


def keys(store: MemoryStore, folder: str = "files") -> set[str]:
    names = {f"{folder}/{name}" for name in store.names(folder)}
    return names.union(*(keys(store, f"{folder}/{name}") for name in store.folders(folder)))


def test_rely_12_a_backup_copies_only_data_files_that_no_earlier_one_has(world: World) -> None:
    topic = world.tables.topic()
    world.tables.send(topic, "a", "b")
    first = world.back_up()
    before = keys(world.kept)
    world.tables.send(topic, "c")
    second = world.back_up()
    assert (first.messages + 1, world.folder.names()) == (second.messages, [first.name, second.name])
    new = {key for key in keys(world.kept) - before if "/topics/" in key}
    assert len(new) == 1 and new < {f"files/{file.key}" for file in second.files}
    assert bodies(world.restored(first)) == [b"a", b"b"]
    assert bodies(world.restored(second)) == [b"a", b"b", b"c"]
    assert world.folder.newest().name == second.name
    assert world.folder.newest(until_ms=second.began_ms).name == first.name
    with pytest.raises(NotFound, match="no backup that had ended by then"):
        world.folder.newest(until_ms=first.began_ms)


def test_rely_13_what_is_restored_is_whole_and_goes_on(world: World) -> None:
    topic, group = world.tables.topic(), world.tables.group()
    offsets = world.tables.send(topic, *(str(n) for n in range(600)))
    world.tables.log(topic).delete_below(10)
    applied = Applied(desired=Desired(topics={"orders": TopicWanted(partitions=1)}), applied_ms=5, by="ada")
    write_applied(world.store, applied)
    to = world.restored(world.back_up())
    assert read_applied(to) == applied, "SPEC LOOK-19"
    warehouse = Warehouse.open("", store=to)
    assert damaged(verify(warehouse)) == []
    meta = MetaLog(warehouse)
    assert meta.warehouse_id == world.tables.meta.warehouse_id
    assert meta.meta.topics.topics == {"orders": topic} and meta.meta.groups.group("billing") == group
    log = warehouse.open_partition(world.tables.log(topic).ref)
    assert log.end_offset == offsets[-1] + 1
    log.refresh()
    assert world.tables.send(topic, "next") == [log.end_offset]
    warehouse.close()


def test_rely_12_records_that_are_merged_and_removed_while_a_backup_is_made_are_in_it(world: World) -> None:
    warehouse = world.tables.warehouse
    merged = MergedCheckpoints(warehouse, CLUSTER, [BROKER])
    log = warehouse.create(revive_ref(CLUSTER, 1, BROKER))
    opened = [checkpoint(number) for number in range(4)]
    log.append([Batch(rows_of_records(opened[:2]))])
    merged.run()

    def merge_and_remove(key: str) -> None:
        log.append([Batch(rows_of_records(opened[2:]))])
        merged.run()
        log.delete_below(4)

    # The state table is copied, the log is not yet.
    world.store.once("before", "names", merge_and_remove, key="jobs/merge/batches/pop_checkpoints")
    restored = Warehouse.open("", store=world.restored(world.back_up()))
    states = recover(restored, CLUSTER, [BROKER]).states
    found = {state.checkpoint.key for lane in states.values() for state in lane if state.checkpoint is not None}
    assert found == {each.key for each in opened}
    plan = watermark(restored.store, POP_CHECKPOINTS, state_transactions(restored.store, POP_CHECKPOINTS) or {})
    assert plan.batch == 1 and plan.stops[log.ref] == 4
    restored.close()


def checkpoint(number: int) -> Checkpoint:
    pop = Pop(
        topic="orders",
        topic_id="id",
        group="billing",
        epoch=1,
        partition=f"orders@{BROKER}",
        pop_time_ms=1_000 + number,
        invisible_ms=60_000,
        revive_queue=1,
    )
    return Checkpoint(pop=pop, span=Span(number, 1))


def test_rely_12_a_topic_that_is_made_while_its_backup_is_made_is_in_it_whole(world: World) -> None:
    world.tables.send(world.tables.topic(), "a")

    def make(key: str) -> None:
        world.tables.send(world.tables.topic("late"), "x", "y")

    world.store.once("before", "folders", make, key="topics")
    to = world.restored(world.back_up())
    assert bodies(to, "late") == [b"x", b"y"] and bodies(to) == [b"a"]


@pytest.mark.parametrize("before", ["topics", "dlq"], ids=["before it is copied", "after it is copied"])
def test_rely_12_a_topic_that_is_deleted_while_its_backup_is_made_is_not_in_it(world: World, before: str) -> None:
    world.tables.send(world.tables.topic(), "a")
    late = world.tables.topic("late")
    world.tables.send(late, "x")
    world.store.once("before", "folders", lambda key: world.tables.delete_topic(late), key=before)
    backup = world.back_up()
    meta = read_meta(world.restored(backup))
    assert meta is not None and list(meta.topics.topics) == ["orders"]
    assert backup.damaged == {} and not any("late" in file.key for file in backup.files)


def test_rely_12_a_layout_that_changes_during_each_copy_is_an_error_and_no_backup(world: World) -> None:
    made = 0

    def make(key: str) -> None:
        nonlocal made
        if key == "topics":
            made += 1
            world.tables.topic(f"topic-{made}")

    world.store.before["folders"] = make
    with pytest.raises(Unavailable, match="changed during each copy") as caught:
        world.back_up()
    assert caught.value.code == "layout_changes" and world.folder.names() == []


def test_rely_12_a_damaged_table_is_named_and_the_others_are_in_the_backup(world: World) -> None:
    world.tables.send(world.tables.topic(), "a")
    other = world.tables.topic("other")
    world.tables.send(other, "x")
    ref = world.tables.log(other).ref
    (name,) = [name for name in world.store.names(ref.folder) if name.endswith(".parquet")]
    world.store.replace(f"{ref.folder}/{name}", b"nothing like it")
    backup = world.back_up()
    assert list(backup.damaged) == [ref.folder] and name in backup.damaged[ref.folder]
    assert bodies(world.restored(backup)) == [b"a"]


def test_rely_12_a_table_whose_log_is_gone_is_named_as_damaged(world: World) -> None:
    other = world.tables.topic("other")
    world.tables.send(other, "x")
    folder = world.tables.log(other).ref.folder
    world.store.delete_tree(f"{folder}/_delta_log")
    backup = world.back_up()
    assert list(backup.damaged) == [folder] and "but no log" in backup.damaged[folder]


@pytest.mark.parametrize("killed", ["backup.before_description", "restore.before_logs", "restore.before_end"])
def test_rely_13_after_a_kill_nothing_half_made_is_used_and_the_next_run_goes_on(
    world: World, killed: str, failpoints: Callable[[str], None]
) -> None:
    world.tables.send(world.tables.topic(), "a")
    to = MemoryStore()
    failpoints(f"{killed}=raise@1")
    with pytest.raises(FailpointHit):
        restore(world.folder, world.back_up(), to)
    failpoints("")
    if killed.startswith("backup"):
        assert world.folder.names() == []
        backup = world.back_up()
    else:
        backup = world.folder.newest()
        with pytest.raises(Unavailable, match="a restore has not ended") as caught:
            Warehouse.open("", store=to)
        assert caught.value.code == "restore_unfinished"
        with pytest.raises(Conflict, match=f"holds a part of backup {backup.name}"):
            restore(world.folder, world.back_up(), to)
    restore(world.folder, backup, to)
    assert bodies(to) == [b"a"]


def test_rely_13_a_warehouse_is_restored_only_where_nothing_is(world: World) -> None:
    world.tables.send(world.tables.topic(), "a")
    backup = world.back_up()
    with pytest.raises(Conflict, match="is not empty") as caught:
        restore(world.folder, backup, world.store)
    assert (caught.value.code, caught.value.field) == ("warehouse_not_empty", "warehouse")
    assert bodies(world.restored(backup)) == [b"a"]


@pytest.mark.parametrize("kind", ["file", "archive"])
@pytest.mark.parametrize("how", ["altered", "cut", "gone"])
def test_rely_12_each_damage_of_a_backup_is_found_and_never_restored(world: World, kind: str, how: str) -> None:
    world.tables.send(world.tables.topic(), "a")
    backup = world.back_up()
    assert world.folder.faults(backup) == []
    key = backup.archive.key if kind == "archive" else f"files/{backup.files[-1].key}"
    data = bytearray(world.kept.read(key).to_pybytes())
    if how == "gone":
        world.kept.delete(key)
    else:
        data[len(data) // 2] ^= 1
        world.kept.replace(key, bytes(data[:-1] if how == "cut" else data))
    (fault,) = world.folder.faults(backup)
    assert {"altered": "checksum", "cut": "bytes, the backup says", "gone": "is missing"}[how] in fault
    to = MemoryStore()
    with pytest.raises((Corrupt, NotFound)):
        restore(world.folder, backup, to)
    with pytest.raises(Unavailable):
        Warehouse.open("", store=to)


def test_rely_12_removed_backups_leave_what_others_need(world: World) -> None:
    topic = world.tables.topic()
    world.tables.send(topic, "a")
    first = world.back_up()
    world.tables.send(topic, "b")
    world.tables.log(topic).delete_below(1)
    second = world.back_up()
    of_first = {file.key for file in first.files} - {file.key for file in second.files}
    assert of_first, "a file that only the first has"
    assert world.folder.remove([first.name], now_ms=world.now_ms()) > 0
    assert world.folder.names() == [second.name] and world.folder.faults(second) == []
    assert not any(f"files/{key}" in keys(world.kept) for key in of_first)
    assert bodies(world.restored(second)) == [b"b"]


def test_rely_12_files_that_another_run_removes_meanwhile_make_an_error_and_no_backup(world: World) -> None:
    world.tables.send(world.tables.topic(), "a")
    first = world.back_up()
    kept = FaultyStore(world.kept)

    def remove(key: str) -> None:
        for file in first.files:
            world.kept.delete(f"files/{file.key}")

    kept.once("after", "replace", remove, key=".zip")
    with pytest.raises(Conflict, match="were removed") as caught:
        back_up(world.store, kept, now_ms=world.now_ms)
    assert caught.value.code == "backup_files_removed" and world.folder.names() == [first.name]


def test_rely_12_backups_lie_in_an_object_store_and_are_restored_to_one(world: World, s3: ObjectServer) -> None:
    world.tables.send(world.tables.topic(), "a", "b")
    kept, to = (s3.store(uuid.uuid4().hex) for _ in range(2))
    restore(BackupFolder(kept), back_up(world.store, kept, now_ms=world.now_ms), to)
    assert bodies(to) == [b"a", b"b"]


def test_rely_12_a_folder_without_a_warehouse_is_an_error() -> None:
    with pytest.raises(NotFound, match="there is no warehouse"):
        back_up(MemoryStore(), MemoryStore(), now_ms=lambda: 0)
