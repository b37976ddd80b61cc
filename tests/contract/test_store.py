"""The contract of `tables.store.Store`: memory, local disk (plain and recycling), and servers of object stores.

Everything above rests on these promises, so every store proves the same ones; a store without its server is skipped
with the reason, the others still prove the contract.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import deltalake
import msgspec
import pyarrow as pa
import pytest

from deltamq.mq.errors import StorageFull, Unavailable, Unknown
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse, open_store
from deltamq.tables.settings import LogSettings
from deltamq.tables.store import file_pool as recycle
from deltamq.tables.store.calls import blocking
from deltamq.tables.store.file_pool import PoolingFiles
from deltamq.tables.store.local import HEAD, LocalStore, OsFiles
from deltamq.tables.store.object import ObjectStore
from deltamq.tables.store.store import FileMissing, ListedFile, MemoryStore, Store, StoreUnsafe, probe, sparse_buffer
from tests.contract.stores import OBJECT_STORES, STORES, OpenAgain, opened_again
from tests.faulty_store import FaultyStore, failing
from tests.object_servers import ObjectServer
from tests.rows import REF, all_bodies, batch, numbered_bodies

# The first run builds the S3 server.
pytestmark = pytest.mark.timeout(600)

#: Small enough for roll-ups, checkpoints and clean-up within a test.
BUSY = LogSettings(rollup_files=4, checkpoint_commits=8, row_group_rows=16)


@pytest.fixture(params=STORES)
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenAgain]:
    """Opens the same files again and again, each time as another process would."""
    yield from opened_again(request, tmp_path)


@pytest.fixture
def store(open_again: OpenAgain) -> Store:
    return open_again()


# Files.


def test_a_file_that_was_put_is_read_back(store: Store) -> None:
    store.put("a/b/file", b"content", durable=True)
    assert store.read("a/b/file").to_pybytes() == b"content"
    assert store.exists("a/b/file")


def test_a_put_takes_arrow_buffers_and_empty_files(store: Store) -> None:
    store.put("a/buffer", pa.py_buffer(b"x" * 100_000), durable=False)
    store.put("a/empty", b"", durable=True)
    assert store.read("a/buffer").size == 100_000
    assert store.read("a/empty").size == 0


def test_a_missing_file_says_so(store: Store) -> None:
    assert not store.exists("nowhere/file")
    with pytest.raises(FileMissing):
        store.read("nowhere/file")
    with pytest.raises(FileMissing):
        store.read_parts("nowhere/file", 10, [(0, 10)])


def test_replace_writes_and_overwrites(store: Store) -> None:
    store.replace("a/file", b"one")
    store.replace("a/file", b"a longer two")
    assert store.read("a/file").to_pybytes() == b"a longer two"
    store.replace("a/file", b"3")
    assert store.read("a/file").to_pybytes() == b"3"


def test_parts_are_read_to_their_places_and_the_rest_does_not_matter(store: Store) -> None:
    store.put("a/file", bytes(range(100)), durable=True)
    found = store.read_parts("a/file", 100, [(10, 20), (90, 100)])
    assert found.size == 100
    assert found.to_pybytes()[10:20] == bytes(range(10, 20))
    assert found.to_pybytes()[90:] == bytes(range(90, 100))


def test_a_part_beyond_the_end_of_a_cut_file_is_no_error_of_the_store(store: Store) -> None:
    """The caller's checksum sees it; a store that answers with its own error must say that it is unavailable."""
    store.put("a/file", b"0123456789", durable=True)
    try:
        found = store.read_parts("a/file", 100, [(0, 100)])
    except Unavailable:
        return
    assert found.to_pybytes() == b"0123456789" + bytes(90)


def test_rely_4_a_cut_file_is_not_filled_up_from_memory(store: Store) -> None:
    """The buffer of an earlier read of the whole file is freed, and handed out again."""
    whole = bytes(range(256)) * 16
    store.put("a/file", whole, durable=True)
    for _ in range(20):
        store.read_parts("a/file", len(whole), [(0, len(whole))])
    store.replace("a/file", whole[:2000])
    try:
        found = store.read_parts("a/file", len(whole), [(0, len(whole))])
    except Unavailable:
        return
    assert found.to_pybytes() == whole[:2000] + bytes(len(whole) - 2000)


def test_a_deleted_file_is_gone_and_deleting_it_again_is_no_error(store: Store) -> None:
    store.put("a/file", b"content", durable=True)
    store.delete("a/file")
    store.delete("a/file")
    store.delete("nowhere/file")
    assert not store.exists("a/file")


def test_syncing_files_that_are_there_or_already_gone_is_no_error(store: Store) -> None:
    store.put("a/one", b"1", durable=False)
    store.put("a/two", b"2", durable=False)
    store.delete("a/two")
    store.sync(["a/one", "a/two"])
    assert store.read("a/one").to_pybytes() == b"1"


# Listings.


def test_entries_are_the_files_of_one_folder_by_name_with_their_sizes(store: Store) -> None:
    for name, size in (("b", 2), ("a", 1), ("c", 3)):
        store.put(f"folder/{name}", b"x" * size, durable=True)
    store.put("folder/below/deep", b"x", durable=True)
    store.put("folder2/other", b"x", durable=True)
    assert [(e.name, e.size) for e in store.entries("folder")] == [("a", 1), ("b", 2), ("c", 3)]
    assert store.names("folder") == ["a", "b", "c"]
    assert store.entries("folder/") == store.entries("folder")


def test_folders_are_the_names_of_one_level(store: Store) -> None:
    for key in ("t/b/x/file", "t/a/file", "t/file", "u/c/file"):
        store.put(key, b"x", durable=True)
    assert store.folders("t") == ["a", "b"]
    assert store.folders("t/b") == ["x"]
    assert "t" in store.folders("") and "t" not in store.names("")


def test_a_folder_that_is_not_there_is_empty(store: Store) -> None:
    assert list(store.entries("nowhere")) == store.names("nowhere") == []
    assert list(store.folders("nowhere")) == []


def test_a_tree_is_deleted_whole_and_nothing_else(store: Store) -> None:
    store.put("t/gone/a/file", b"x", durable=True)
    store.put("t/gone/file", b"x", durable=True)
    store.put("t/gone-not/file", b"x", durable=True)
    store.delete_tree("t/gone")
    store.delete_tree("t/never")
    assert store.folders("t") == ["gone-not"]
    store.put("t/gone/file", b"again", durable=True)
    assert store.read("t/gone/file").to_pybytes() == b"again"


def test_an_address_is_one_that_other_engines_open(store: Store) -> None:
    assert store.uri("t/a").endswith("/t/a")
    assert store.uri("t/a").startswith(store.uri("").rstrip("/"))


# The one that the design rests on.


def test_put_if_absent_stores_once_and_says_who_won(store: Store) -> None:
    assert store.put_if_absent("a/key", b"first", durable=True)
    assert not store.put_if_absent("a/key", b"second", durable=True)
    assert not store.put_if_absent("a/key", b"third", durable=False)
    assert store.read("a/key").to_pybytes() == b"first"


def test_put_if_absent_leaves_only_its_key_and_the_second_name_of_the_newest(store: Store) -> None:
    for i in range(3):
        assert store.put_if_absent(f"a/{i}", str(i).encode(), durable=True)
        assert not store.put_if_absent(f"a/{i}", b"late", durable=True)
    names = [entry.name for entry in store.entries("a")]
    assert [n for n in names if n != HEAD] == ["0", "1", "2"]
    if HEAD in names:
        assert store.read(f"a/{HEAD}").to_pybytes() == b"2"


def test_a_commit_is_put_with_its_file_once_and_says_who_won(store: Store) -> None:
    buffer = pa.py_buffer(b"second file")
    assert blocking(store.put_commit("a/_log/1", b"first", ("a/file1", b"first file"), durable=True))
    assert not blocking(store.put_commit("a/_log/1", b"second", ("a/file2", buffer), durable=True))
    assert blocking(store.put_commit("a/_log/2", b"third", ("a/file3", buffer), durable=False))
    assert not store.put_if_absent("a/_log/2", b"fourth", durable=True)
    assert [store.read(key).to_pybytes() for key in ("a/_log/1", "a/_log/2")] == [b"first", b"third"]
    assert [store.read(f"a/file{i}").to_pybytes() for i in (1, 3)] == [b"first file", b"second file"]
    assert [name for name in store.names("a/_log") if name != HEAD] == ["1", "2"]


def test_put_if_absent_wins_again_after_a_delete(store: Store) -> None:
    assert store.put_if_absent("a/key", b"first", durable=True)
    store.delete("a/key")
    assert store.put_if_absent("a/key", b"again", durable=True)
    assert store.read("a/key").to_pybytes() == b"again"


def test_rely_2_of_eight_writers_exactly_one_wins_each_race(open_again: OpenAgain) -> None:
    stores = [open_again() for _ in range(8)]
    start = threading.Barrier(len(stores))

    def race(writer: int) -> list[bool]:
        won = []
        for i in range(25):
            start.wait()
            won.append(stores[writer].put_if_absent(f"races/{i:04d}", f"writer {writer}".encode(), durable=True))
        return won

    with ThreadPoolExecutor(len(stores)) as pool:
        results = list(pool.map(race, range(len(stores))))
    for i in range(25):
        winners = [writer for writer, won in enumerate(results) if won[i]]
        assert len(winners) == 1, f"race {i}: {winners} won"
        assert stores[0].read(f"races/{i:04d}").to_pybytes() == f"writer {winners[0]}".encode()


def test_rely_3_the_probe_passes_and_leaves_no_file_of_its_own(store: Store) -> None:
    probe(store)
    assert [e.name for e in store.entries(".mq-probe") if e.name != HEAD] == []


class Overwriting(MemoryStore):
    """A store whose put-if-absent is a plain put, as some object stores' is."""

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        self.put(key, data, durable=durable)
        return True


class Forgetful(MemoryStore):
    """A store that says yes to the second and keeps the first."""

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        super().put_if_absent(key, data, durable=durable)
        return True


class Refusing(MemoryStore):
    """A store that says no to everybody."""

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        super().put_if_absent(key, data, durable=durable)
        return False


@pytest.mark.parametrize("broken", [Overwriting, Forgetful, Refusing])
def test_rely_3_a_warehouse_without_put_if_absent_is_refused(broken: type[MemoryStore]) -> None:
    with pytest.raises(StoreUnsafe):
        Warehouse.open("", store=broken())


class WithoutLinks(OsFiles):
    """A mounted bucket or a volume of Unity Catalog: files can be written, but not linked."""

    def link(self, source: str, target: str) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), source)


@pytest.mark.promise("PIPE-21")
def test_rely_3_a_folder_without_hard_links_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StoreUnsafe, match=r"without hard links .*s3://, gs://, abfss://"):
        Warehouse.open(str(tmp_path), store=LocalStore(tmp_path, WithoutLinks()))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_preparing_and_closing_harm_nothing(store: Store) -> None:
    store.put("a/file", b"x", durable=True)
    store.delete("a/file")
    store.prepare()
    store.put("a/other", b"y", durable=True)
    assert store.read("a/other").to_pybytes() == b"y"


def test_sparse_buffers_hold_their_parts() -> None:
    found = sparse_buffer(10, [(2, 5), (8, 12)], [b"ab", b"cdef"]).to_pybytes()
    assert (found[2:5], found[8:]) == (b"ab\0", b"cd")


# A whole log on each store.


def _append_many(log: PartitionLog, prefix: str, count: int) -> list[int]:
    offsets = []
    for body in numbered_bodies(prefix, count):
        offsets.append(log.append([batch(body)])[0].base_offset)
        log.maintain()
    return offsets


def test_model_3_a_log_is_appended_rolled_up_checkpointed_and_reopened(open_again: OpenAgain) -> None:
    warehouse = Warehouse.open("", store=open_again(), settings=BUSY)
    log = warehouse.create(REF)
    assert _append_many(log, "a", 40) == list(range(40))
    assert log.checkpoint_version > 0
    assert len(log.files) < 40
    assert all_bodies(log, step=7) == numbered_bodies("a", 40)
    warehouse.close()

    again = Warehouse.open("", store=open_again(), settings=BUSY)
    reopened = again.open_partition(REF)
    assert reopened.end_offset == 40
    assert reopened.append([batch(b"more", b"and more")])[0].base_offset == 40
    assert all_bodies(reopened) == [*numbered_bodies("a", 40), b"more", b"and more"]
    reopened.verify()
    again.close()


@pytest.mark.promise("LOG-2")
def test_rely_2_two_processes_race_on_one_partition_without_loss_or_repeat(open_again: OpenAgain) -> None:
    warehouses = [Warehouse.open("", store=open_again(), settings=BUSY) for _ in range(2)]
    logs = [w.create(REF) for w in warehouses]
    with ThreadPoolExecutor(2) as pool:
        offsets = list(pool.map(_append_many, logs, ["a", "b"], [25, 25]))
    assert sorted(offsets[0] + offsets[1]) == list(range(50))
    for log in logs:
        log.refresh()
        bodies = all_bodies(log)
        assert [bodies[o] for o in offsets[0]] == numbered_bodies("a", 25)
        assert [bodies[o] for o in offsets[1]] == numbered_bodies("b", 25)
        assert offsets[0] == sorted(offsets[0]), "one writer's appends keep their order"
    for warehouse in warehouses:
        warehouse.close()


def test_send_5_a_repeated_request_finds_the_first_from_another_process(open_again: OpenAgain) -> None:
    one = Warehouse.open("", store=open_again())
    first = one.create(REF).append([batch(b"x", b"y", producer="p", seq=1)])[0]
    two = Warehouse.open("", store=open_again())
    again = two.open_partition(REF).append([batch(b"x", b"y", producer="p", seq=1)])[0]
    assert (again.base_offset, again.count, again.duplicate) == (first.base_offset, 2, True)
    one.close()
    two.close()


# What is special about object stores.


@pytest.fixture(params=OBJECT_STORES)
def server(request: pytest.FixtureRequest) -> ObjectServer:
    server: ObjectServer = request.getfixturevalue(request.param)
    return server


def test_a_delta_reader_reads_the_partition_from_an_object_store(server: ObjectServer) -> None:
    warehouse = Warehouse.open("", store=server.store(uuid.uuid4().hex), settings=BUSY)
    log = warehouse.create(REF)
    _append_many(log, "a", 20)
    table = deltalake.DeltaTable(log.location, storage_options=server.reader_options())
    rows = table.to_pyarrow_table(columns=["offset", "body"]).sort_by("offset")
    assert rows.column("body").to_pylist() == numbered_bodies("a", 20)
    warehouse.close()


def test_rely_5_a_server_that_is_gone_leaves_the_outcome_unknown() -> None:
    from obstore.store import S3Store

    remote = S3Store(
        "warehouse",
        endpoint="http://127.0.0.1:9",
        access_key_id="x",
        secret_access_key="y",
        region="us-east-1",
        client_options={"allow_http": True, "timeout": "1s"},
        retry_config={"max_retries": 0},
    )
    gone = ObjectStore("s3://warehouse", remote)
    with pytest.raises(Unknown):
        gone.put_if_absent("a/key", b"x", durable=True)
    calls: Sequence[Callable[[], object]] = [
        lambda: gone.put("a/key", b"x", durable=True),
        lambda: gone.replace("a/key", b"x"),
        lambda: gone.read("a/key"),
        lambda: gone.read_parts("a/key", 10, [(0, 10)]),
        lambda: gone.exists("a/key"),
        lambda: gone.entries("a"),
        lambda: gone.folders("a"),
        lambda: gone.delete("a/key"),
        lambda: gone.delete_tree("a"),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            call()


def test_entries_know_when_a_file_was_stored(server: ObjectServer) -> None:
    store = server.store(uuid.uuid4().hex)
    store.put("a/file", b"x", durable=True)
    (entry,) = store.entries("a")
    assert entry == msgspec.structs.replace(ListedFile("file", 1, 0), modified_ms=entry.modified_ms)
    assert entry.modified_ms > 1_600_000_000_000


# What is special about local disk.


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_file_that_is_open_elsewhere_is_never_overwritten_by_recycling(tmp_path: Path, is_prepared: bool) -> None:
    store = LocalStore(tmp_path, PoolingFiles(str(tmp_path)))
    store.put("a/old", b"old content", durable=True)
    with (tmp_path / "a" / "old").open("rb") as reader:
        store.delete("a/old")
        if is_prepared:
            store.prepare()
        for i in range(3):
            store.put(f"a/new{i}", b"new content", durable=True)
        assert reader.read() == b"old content"
    store.close()


def test_a_file_with_a_second_name_is_never_overwritten_by_recycling(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, PoolingFiles(str(tmp_path)))
    assert store.put_if_absent("a/0", b"the newest commit", durable=True)
    store.delete("a/0")
    for i in range(3):
        store.put(f"a/new{i}", b"something else", durable=True)
    assert store.read(f"a/{HEAD}").to_pybytes() == b"the newest commit"
    store.close()


def test_recycled_files_are_cut_to_their_new_length(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, PoolingFiles(str(tmp_path)))
    store.put("a/long", b"x" * 5_000, durable=True)
    inode = (tmp_path / "a" / "long").stat().st_ino
    store.delete("a/long")
    store.put("a/short", b"short", durable=True)
    assert (tmp_path / "a" / "short").stat().st_ino == inode
    assert store.read("a/short").to_pybytes() == b"short"
    store.close()


def test_a_file_that_is_opened_while_it_is_recycled_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup may look at a dead file in the very moment of its lease; the kernel's usual word for that kills."""
    opened: list[str] = []

    def looked_at(fd: int, command: int, argument: int) -> int:
        result = fcntl.fcntl(fd, command, argument)
        if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_WRLCK):
            path = os.readlink(f"/proc/self/fd/{fd}")
            with pytest.raises(BlockingIOError):  # the lease is there, and its owner is being told
                os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            opened.append(path)
        return result

    store = LocalStore(tmp_path, PoolingFiles(str(tmp_path)))
    store.put("a/old", b"old content", durable=True)
    store.delete("a/old")
    monkeypatch.setattr(recycle, "fcntl", SimpleNamespace(**{**vars(fcntl), "fcntl": looked_at}))
    store.put("a/new", b"new content", durable=True)
    assert len(opened) == 1 and store.read("a/new").to_pybytes() == b"new content"
    store.close()


def test_files_made_ready_are_written_next_and_closing_lets_go_of_them(tmp_path: Path) -> None:
    def descriptors() -> int:
        # connections that other tests have left idle are closed at any time
        return sum("/socket:" not in os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir())

    before = descriptors()
    store = LocalStore(tmp_path, PoolingFiles(str(tmp_path)))
    for i in range(300):
        store.put(f"a/old{i}", b"old content", durable=False)
    inodes = {path.stat().st_ino for path in (tmp_path / "a").iterdir()}
    for i in range(300):
        store.delete(f"a/old{i}")
    store.prepare()
    assert 1 < descriptors() - before <= 130
    for i in range(200):
        store.put(f"a/new{i}", b"new", durable=False)
    assert {path.stat().st_ino for path in (tmp_path / "a").iterdir()} < inodes
    assert all(store.read(f"a/new{i}").to_pybytes() == b"new" for i in range(200))
    store.prepare()
    store.close()
    assert descriptors() == before


def test_pools_of_dead_processes_are_removed_and_those_of_live_ones_kept(tmp_path: Path) -> None:
    live = PoolingFiles(str(tmp_path))
    (tmp_path / ".pool-of-a-dead-process").mkdir()
    (tmp_path / ".pool-of-a-dead-process" / "1").write_bytes(b"x")
    other = PoolingFiles(str(tmp_path))
    assert len([p for p in tmp_path.iterdir() if p.name.startswith(".pool-")]) == 2
    other.close()
    live.close()
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_pool_is_removed_if_it_is_old_and_nobody_holds_its_lock(tmp_path: Path) -> None:
    """A process that starts now makes the folder, then the lock, and takes it: all three may be about to happen."""
    names = (".newpool-killed", ".newpool-young", ".newpool-held", ".newpool-unlocked")
    for name in names:
        (tmp_path / name).mkdir()
        if name != ".newpool-unlocked":
            (tmp_path / name / "lock").touch()
        age_s = 60 if name == ".newpool-young" else 2 * 3600
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    with open(tmp_path / ".newpool-held" / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        files = PoolingFiles(str(tmp_path))
        files.close()
        assert {path.name for path in tmp_path.iterdir()} == set(names) - {".newpool-killed"}
    PoolingFiles(str(tmp_path)).close()
    assert {path.name for path in tmp_path.iterdir()} == {".newpool-young", ".newpool-unlocked"}


def test_a_folder_that_leads_out_of_the_warehouse_is_refused(tmp_path: Path) -> None:
    from deltamq.mq.errors import Corrupt

    root, outside = tmp_path / "wh", tmp_path / "wh-evil"
    root.mkdir()
    outside.mkdir()
    store = LocalStore(root)
    store.put("topics/a", b"x", durable=True)
    (root / "topics" / "link").symlink_to(outside)
    with pytest.raises(Corrupt, match="symbolic link"):
        store.put("topics/link/file", b"x", durable=True)


def test_a_warehouse_folder_is_made_with_all_its_parents(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "a" / "b" / "c"), create=True)
    store.put("x/file", b"1", durable=True)
    assert (tmp_path / "a" / "b" / "c" / "x" / "file").read_bytes() == b"1"
    store.close()


def test_rely_3_a_full_disk_does_not_keep_a_warehouse_from_being_read() -> None:
    files = MemoryStore()
    with closing(Warehouse.open("", store=files)) as filled:
        filled.create(REF).append([batch(b"here")])
    full = FaultyStore(files)
    full.before["put_if_absent"] = failing(StorageFull("no space left"))
    with closing(Warehouse.open("", store=full)) as warehouse:
        log = warehouse.open_partition(REF)
        assert all_bodies(log) == [b"here"]
        with pytest.raises(StorageFull):
            log.append([batch(b"no")])


def test_many_files_are_read_at_once_and_one_that_is_not_there_is_none(store: Store) -> None:
    for number in range(5):
        store.put(f"a/{number}", f"file {number}".encode(), durable=True)
    keys = ["a/3", "a/none", *(f"a/{number}" for number in range(5))]
    found = [None if data is None else data.to_pybytes() for data in store.read_each(keys)]
    assert found == [b"file 3", None, *(f"file {number}".encode() for number in range(5))]
    assert list(store.read_each([])) == []
