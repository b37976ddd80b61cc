"""The steps of a commit in Python and as one native call: the same files, the same errors, nothing left open."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from deltamq.tables.compiled import find_compiler
from deltamq.tables.failpoints import arm
from deltamq.tables.store.calls import blocking
from deltamq.tables.store.file_pool import PoolingFiles
from deltamq.tables.store.file_system import CommitStep, Failed, Publication
from deltamq.tables.store.local import HEAD, OsFiles
from deltamq.tables.store.native import (
    NativePool,
    NativePublication,
    OpenFile,
    create_natively,
    native_library,
    open_dead_natively,
)
from deltamq.tables.store.publish import publish_in_steps

Publish = Callable[[Publication, bool], Failed | None]

needs_native = pytest.mark.skipif(native_library() is None, reason="there was no C compiler")


def _in_steps(wanted: Publication, sync: bool) -> Failed | None:
    return publish_in_steps(OsFiles(), wanted, sync=sync)


def _publication(
    wanted: Publication, file: OpenFile | None = None, log: OpenFile | None = None, *, sync: bool = True
) -> NativePublication:
    library = native_library()
    assert library is not None
    return NativePublication(library, wanted, file, log, sync=sync)


def _natively(wanted: Publication, sync: bool) -> Failed | None:
    return _publication(wanted, sync=sync).here()


def _outcomes(pool: NativePool, count: int) -> dict[int, Failed | None]:
    """Wait for so many outcomes."""
    found: dict[int, Failed | None] = {}
    while len(found) < count:
        assert select.select([pool.fd], [], [], 20)[0], "a publication ends"
        found.update(pool.outcomes())
    assert not select.select([pool.fd], [], [], 0)[0], "nothing more is there"
    return found


def _aside(wanted: Publication, sync: bool) -> Failed | None:
    pool = NativePool(1)
    try:
        number = pool.begin(_publication(wanted, sync=sync))
        return _outcomes(pool, 1)[number]
    finally:
        pool.stop()


WAYS = pytest.mark.parametrize(
    "publish",
    [
        pytest.param(_in_steps, id="steps"),
        pytest.param(_natively, id="native", marks=needs_native),
        pytest.param(_aside, id="aside", marks=needs_native),
    ],
)
SYNC = pytest.mark.parametrize("sync", [True, False])


@pytest.fixture
def wanted(tmp_path: Path) -> Publication:
    (tmp_path / "table" / "log").mkdir(parents=True)
    table = str(tmp_path / "table")
    return Publication(
        file=f"{table}/data",
        file_data=pa.py_buffer(b"rows" * 5_000),
        temp=f"{table}/log/.tmp-1",
        log=b"the commit",
        name=f"{table}/log/1.json",
        head=f"{table}/log/{HEAD}",
    )


def _files(wanted: Publication) -> dict[str, bytes]:
    root = Path(wanted.file).parent
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _open_paths() -> set[str]:
    """Return what this process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return found


def _open_files(wanted: Publication) -> set[str]:
    """Return what this process has open in the table and beside it."""
    return {path for path in _open_paths() if path.startswith(os.path.dirname(os.path.dirname(wanted.file)))}


@WAYS
@SYNC
def test_a_commit_and_its_file_are_there_under_both_names(publish: Publish, wanted: Publication, sync: bool) -> None:
    assert publish(wanted, sync) is None
    assert _files(wanted) == {"data": b"rows" * 5_000, "log/1.json": wanted.log, f"log/{HEAD}": wanted.log}
    assert os.path.samefile(wanted.name, wanted.head)
    assert os.stat(wanted.file).st_mode & 0o027 == 0
    assert _open_files(wanted) == set()


def _no_folder(wanted: Publication) -> None:
    os.rmdir(os.path.dirname(wanted.name))
    os.rmdir(os.path.dirname(wanted.file))


def _no_log(wanted: Publication) -> None:
    os.rmdir(os.path.dirname(wanted.name))


def _file_taken(wanted: Publication) -> None:
    Path(wanted.file).write_bytes(b"of another")


def _name_taken(wanted: Publication) -> None:
    Path(wanted.name).write_bytes(b"of another")


def _head_taken(wanted: Publication) -> None:
    os.mkdir(wanted.head)


@WAYS
@SYNC
@pytest.mark.parametrize(
    ("spoil", "step", "error"),
    [
        (_no_folder, CommitStep.WRITE_FILE, FileNotFoundError),
        (_file_taken, CommitStep.WRITE_FILE, FileExistsError),
        (_no_log, CommitStep.WRITE_LOG, FileNotFoundError),
        (_name_taken, CommitStep.LINK, FileExistsError),
        (_head_taken, CommitStep.SETTLE, IsADirectoryError),
    ],
)
def test_a_step_that_fails_is_told_with_its_error_and_leaves_nothing_open(
    publish: Publish,
    wanted: Publication,
    sync: bool,
    spoil: Callable[[Publication], None],
    step: CommitStep,
    error: type[OSError],
) -> None:
    spoil(wanted)
    failed = publish(wanted, sync)
    assert failed is not None and failed.step is step
    assert type(failed.error) is error and failed.error.strerror
    assert _open_files(wanted) == set()
    if step is CommitStep.LINK:
        assert Path(wanted.name).read_bytes() == b"of another"


@needs_native
@SYNC
def test_dead_files_are_written_again_and_cut_to_their_new_length(
    tmp_path: Path, wanted: Publication, sync: bool
) -> None:
    dead: list[OpenFile] = []
    for name in ("old1", "old2"):
        (tmp_path / name).write_bytes(b"x" * 60_000)
        dead.append((str(tmp_path / name), os.open(tmp_path / name, os.O_WRONLY)))
    inodes = [os.fstat(fd).st_ino for _, fd in dead]
    assert _publication(wanted, *dead, sync=sync).here() is None
    assert [os.stat(path).st_ino for path in (wanted.file, wanted.name)] == inodes
    assert _files(wanted)["data"] == b"rows" * 5_000 and _files(wanted)["log/1.json"] == wanted.log
    assert sorted(os.listdir(tmp_path)) == ["table"]
    assert _open_files(wanted) == set()


@needs_native
def test_a_dead_file_that_was_removed_meanwhile_is_made_anew(tmp_path: Path, wanted: Publication) -> None:
    (tmp_path / "old").write_bytes(b"x")
    dead = str(tmp_path / "old"), os.open(tmp_path / "old", os.O_WRONLY)
    os.unlink(tmp_path / "old")
    assert _publication(wanted, dead).here() is None
    assert _files(wanted)["data"] == b"rows" * 5_000
    assert _open_files(wanted) == set()


@needs_native
def test_a_dead_file_that_is_not_open_yet_is_written_again_unless_another_has_it_open(
    tmp_path: Path, wanted: Publication
) -> None:
    (tmp_path / "free").write_bytes(b"x" * 60_000)
    (tmp_path / "read").write_bytes(b"old content")
    free, taken = str(tmp_path / "free"), str(tmp_path / "read")
    inode = os.stat(free).st_ino
    with open(taken, "rb") as reader:
        assert _publication(wanted, (free, -1), (taken, -1)).here() is None
        assert reader.read() == b"old content"
    assert os.stat(wanted.file).st_ino == inode
    assert _files(wanted)["data"] == b"rows" * 5_000 and _files(wanted)["log/1.json"] == wanted.log
    assert sorted(os.listdir(tmp_path)) == ["table"]
    assert _open_files(wanted) == set()


@needs_native
@pytest.mark.parametrize("is_open", [True, False])
def test_a_dead_file_for_the_log_is_removed_if_the_data_file_cannot_be_written(
    tmp_path: Path, wanted: Publication, is_open: bool
) -> None:
    """It was taken out of the pool, so nobody else would remove it: a full disk would become fuller with each retry."""
    _no_folder(wanted)
    dead: list[OpenFile] = []
    for name in ("old1", "old2"):
        (tmp_path / name).write_bytes(b"x")
        dead.append((str(tmp_path / name), os.open(tmp_path / name, os.O_WRONLY) if is_open else -1))
    failed = _publication(wanted, *dead).here()
    assert failed is not None and failed.step is CommitStep.WRITE_FILE
    assert type(failed.error) is FileNotFoundError
    assert os.listdir(tmp_path) == []
    assert _open_files(wanted) == set()


def test_a_commit_that_fails_again_and_again_does_not_fill_the_pools_folder(
    tmp_path: Path, wanted: Publication
) -> None:
    _no_folder(wanted)
    files = PoolingFiles(str(tmp_path))
    pool = next(path for path in tmp_path.iterdir() if path.name.startswith(".pool-"))
    for _ in range(20):
        files.refill()
        failed = blocking(files.publish(wanted, sync=True))
        assert failed is not None and failed.step is CommitStep.WRITE_FILE
        assert len(list(pool.iterdir())) <= len(["lock", "file", "log"])
    files.close()


@needs_native
def test_many_publications_are_under_way_at_once_and_each_has_its_outcome(tmp_path: Path, wanted: Publication) -> None:
    pool = NativePool(3)
    numbers = {}
    for at in range(200):
        one = replace(wanted, file=f"{wanted.file}{at}", temp=f"{wanted.temp}{at}", name=f"{wanted.name}{at // 2}")
        numbers[pool.begin(_publication(one, sync=False))] = at
    found = _outcomes(pool, 200)
    pool.stop()
    assert set(found) == set(numbers)
    for pair in range(100):
        lost = [failed for number, failed in found.items() if numbers[number] // 2 == pair and failed is not None]
        assert [failed.step for failed in lost] == [CommitStep.LINK], "one of two has the name"
    assert _open_files(wanted) == set()


@needs_native
def test_a_pool_that_stops_makes_what_was_begun(wanted: Publication) -> None:
    pool = NativePool(1)
    for at in range(20):
        pool.begin(_publication(replace(wanted, file=f"{wanted.file}{at}", name=f"{wanted.name}{at}"), sync=False))
    pool.stop()
    assert len(list(Path(wanted.name).parent.glob("1.json*"))) == 20


@needs_native
def test_files_are_made_in_one_call_up_to_the_one_that_fails(tmp_path: Path) -> None:
    library = native_library()
    assert library is not None
    paths = [str(tmp_path / name) for name in ("1", "zwei-ü", "3", "4")]
    Path(paths[2]).write_bytes(b"of another")
    opened, made, failed = create_natively(library, paths, 1)
    assert (len(opened), made) == (1, 2)
    assert isinstance(failed, FileExistsError) and failed.filename == paths[2]
    assert os.write(opened[0], b"x") == 1
    os.close(opened[0])
    assert [os.stat(path).st_size for path in paths[:3]] == [1, 0, 10] and not os.path.exists(paths[3])
    for path in paths[:3]:
        os.unlink(path)
    opened, made, failed = create_natively(library, paths, 4)
    assert (len(opened), made, failed) == (4, 4, None)
    for fd in opened:
        os.close(fd)


@needs_native
def test_dead_files_are_opened_in_one_call_and_deleted_where_another_has_them_open(tmp_path: Path) -> None:
    library = native_library()
    assert library is not None
    paths = [str(tmp_path / name) for name in ("free", "read", "gone")]
    for path in paths[:2]:
        Path(path).write_bytes(b"old content")
    with open(paths[1], "rb") as reader:
        opened = open_dead_natively(library, paths)
        assert reader.read() == b"old content"
    assert opened[0] >= 0 and opened[1:] == [-1, -1]
    assert os.write(opened[0], b"x") == 1
    os.close(opened[0])
    assert os.listdir(tmp_path) == ["free"]


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_native), False])
def test_the_pool_makes_as_many_files_as_were_taken_and_opens_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    if not native:
        monkeypatch.setattr("deltamq.tables.store.file_pool.native_library", lambda: None)
    (tmp_path / "table").mkdir()
    files = PoolingFiles(str(tmp_path))
    pool = next(path for path in tmp_path.iterdir() if path.name.startswith(".pool-"))

    def made() -> int:
        return len(list(pool.iterdir())) - len(["lock"])

    def inodes(folder: Path) -> set[int]:
        return {path.stat().st_ino for path in folder.iterdir()}

    for name in range(200):
        files.write_new(f"{tmp_path}/table/{name}", b"x", sync=False)
    files.refill()
    assert made() == 200
    assert len([path for path in _open_paths() if path.startswith(str(pool))]) == 128 + len(["lock"])
    ahead = inodes(pool)
    for name in range(200, 400):
        files.write_new(f"{tmp_path}/table/{name}", b"y", sync=False)
    assert made() == 0
    assert len(inodes(tmp_path / "table") & ahead) == 200
    files.close()
    assert not pool.exists()


def test_the_pool_keeps_few_large_files_and_none_that_is_larger(tmp_path: Path) -> None:
    files = PoolingFiles(str(tmp_path), large_max=2)
    pool = next(path for path in tmp_path.iterdir() if path.name.startswith(".pool-"))

    def kept_of(sizes: list[int]) -> list[int]:
        before = {path.name for path in pool.iterdir()}
        for number, size in enumerate(sizes):
            (tmp_path / str(number)).write_bytes(b"x" * size)
            files.unlink(str(tmp_path / str(number)))
            assert not (tmp_path / str(number)).exists()
        return sorted(path.stat().st_size for path in pool.iterdir() if path.name not in before)

    large, larger = 256 * 1024, 256 * 1024 + 1
    assert kept_of([large] * 4 + [larger, 100]) == [100, large, large]
    files.write_new(f"{tmp_path}/new", b"a", sync=False)
    assert (tmp_path / "new").read_bytes() == b"a"
    assert kept_of([large] * 3) == [large], "the one that was written to made room"
    files.close()


def test_the_pool_takes_the_native_way_where_there_is_one(
    tmp_path: Path, wanted: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = []
    monkeypatch.setattr(NativePublication, "here", lambda _: ways.append("native"))
    monkeypatch.setattr("deltamq.tables.store.local.publish_in_steps", lambda *_, **__: ways.append("steps"))
    files = PoolingFiles(str(tmp_path))
    assert blocking(files.publish(wanted, sync=True)) is None
    assert ways == (["steps"] if native_library() is None else ["native"])
    arm("commit.after_link=raise")
    try:
        assert blocking(files.publish(wanted, sync=True)) is None
    finally:
        arm("")
    assert ways[1:] == ["steps"], "only the steps in Python pass the failpoints"
    files.close()


def test_the_compiled_steps_are_used_where_there_is_a_compiler() -> None:
    assert (native_library() is not None) == (find_compiler() is not None), "run make setup"
