"""A disk that is full, broken or read-only, and a process that is out of file descriptors (fault F7).

Nothing that was acknowledged is lost, the caller sees an error of the right class, nothing is stored twice when it
repeats its request, and when the disk is well again the same process goes on without a restart.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from deltamq.mq.errors import DeltaMQError, StorageFull, Unavailable, Unknown
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import Flush, LogSettings
from deltamq.tables.store.file_pool import PoolingFiles
from deltamq.tables.store.local import LocalStore, OsFiles
from tests.faults.small_disk import SmallDisk, mounted
from tests.rows import REF, all_bodies, batch

SETTINGS: Final = LogSettings(rollup_files=4, checkpoint_commits=6, flush_interval_ms=3_600_000)
ERRORS: Final = {
    "ENOSPC": (errno.ENOSPC, StorageFull),
    "EDQUOT": (errno.EDQUOT, StorageFull),
    "EIO": (errno.EIO, Unavailable),
    "EMFILE": (errno.EMFILE, Unavailable),
    "EROFS": (errno.EROFS, Unavailable),
}
CALLS: Final = ["write_new", "sync_file", "sync_folder", "link", "rename", "unlink"]


class BrokenFiles(OsFiles):
    """The real file system, on which chosen calls fail; a failing write leaves half of the file."""

    def __init__(self) -> None:
        self.fails: Callable[[str], int | None] = lambda call: None

    def _maybe_fail(self, call: str, path: str) -> None:
        code = self.fails(call)
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    def write_new(self, path: str, data: pa.Buffer | bytes, *, sync: bool) -> None:
        try:
            self._maybe_fail("write_new", path)
        except OSError:
            super().write_new(path, bytes(data)[: len(data) // 2], sync=False)
            raise
        super().write_new(path, data, sync=False)
        if sync:
            self.sync_file(path)

    def sync_file(self, path: str) -> None:
        self._maybe_fail("sync_file", path)
        super().sync_file(path)

    def sync_folder(self, path: str) -> None:
        self._maybe_fail("sync_folder", path)
        super().sync_folder(path)

    def link(self, source: str, target: str) -> None:
        self._maybe_fail("link", target)
        super().link(source, target)

    def rename(self, source: str, target: str) -> None:
        self._maybe_fail("rename", target)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._maybe_fail("unlink", path)
        super().unlink(path)


class Broken:
    """A process on such a disk, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.files = BrokenFiles()
        self.folder = folder
        self.warehouse = Warehouse.open("", store=LocalStore(folder, self.files), settings=SETTINGS)
        self.log = self.warehouse.create(REF)
        self.acked: dict[bytes, int] = {}

    def send(self, body: bytes, *, flush: Flush = Flush.SYNC) -> None:
        """One request of one message; repeating it is the same call."""
        result = self.log.append([batch(body, producer=body.decode(), seq=1)], flush=flush)[0]
        assert self.acked.setdefault(body, result.base_offset) == result.base_offset
        with contextlib.suppress(DeltaMQError):
            self.log.maintain()

    def heal(self) -> None:
        self.files.fails = lambda call: None

    def check(self, sent: set[bytes]) -> None:
        """All that was acknowledged is there, once, for this process and for the next."""
        self.heal()
        other = Warehouse.open("", store=LocalStore(self.folder), settings=SETTINGS)
        for log in (self.log, other.open_partition(REF)):
            log.refresh()
            bodies = all_bodies(log)
            assert len(set(bodies)) == len(bodies)
            assert set(bodies) <= sent
            assert {body: bodies.index(body) for body in self.acked} == self.acked
            log.verify()
        other.close()


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Broken]:
    found = Broken(tmp_path)
    for i in range(3):
        found.send(f"before-{i}".encode())
    yield found
    found.heal()
    found.warehouse.close()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", ERRORS)
def test_f7_a_call_that_fails_loses_nothing_and_heals_without_a_restart(broken: Broken, call: str, error: str) -> None:
    code, expected = ERRORS[error]
    broken.files.fails = lambda called: code if called == call else None
    refused: DeltaMQError | None = None
    for _ in range(2):
        try:
            broken.send(b"during")
        except DeltaMQError as found:
            refused = found
    if call != "unlink":  # which only upkeep needs
        assert isinstance(refused, (expected, Unknown)), refused
    broken.heal()
    broken.send(b"during")
    broken.send(b"after")
    broken.check({b"before-0", b"before-1", b"before-2", b"during", b"after"})


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_f7_a_full_disk_is_not_littered(broken: Broken, error: str) -> None:
    """Repeats while it is full must not fill it further."""
    code, _ = ERRORS[error]
    table = broken.folder / REF.folder
    before = sorted(table.rglob("*"))
    broken.files.fails = lambda call: code if call == "write_new" else None
    for _ in range(5):
        with pytest.raises(DeltaMQError):
            broken.send(b"during")
    assert sorted(table.rglob("*")) == before
    broken.files.fails = lambda call: code if call == "link" else None
    for _ in range(5):
        with pytest.raises(DeltaMQError):
            broken.send(b"during")
    assert not list((table / "_delta_log").glob(".tmp-*"))


def test_f7_a_disk_that_fails_at_random_loses_nothing(broken: Broken) -> None:
    _stumble(broken, requests=120, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(10))
def test_f7_two_thousand_requests_on_a_failing_disk(broken: Broken, seed: int) -> None:
    _stumble(broken, requests=2_000, seed=seed)


def _stumble(broken: Broken, *, requests: int, seed: int) -> None:
    """One call in eight fails, durable or not, in appends and upkeep; each request is repeated until it is told."""
    drawn = random.Random(seed)
    codes = [code for code, _ in ERRORS.values()]
    sent = set(broken.acked)
    refused = 0
    for i in range(requests):
        body = f"{i}".encode()
        sent.add(body)
        flush = drawn.choice([Flush.SYNC, Flush.SYNC, Flush.ASYNC])
        broken.files.fails = lambda call: drawn.choice(codes) if drawn.random() < 1 / 8 else None
        while body not in broken.acked:
            try:
                broken.send(body, flush=flush)
            except DeltaMQError:
                refused += 1
    broken.check(sent)
    print(f"{requests} requests, {refused} refusals on the way")


# The real things.


def test_f7_a_process_without_file_descriptors_goes_on_when_it_has_some(broken: Broken) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = os.open("/dev/null", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (held, hard))
    try:
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        with pytest.raises((Unavailable, Unknown)):
            broken.send(b"during")
        for descriptor in taken:
            os.close(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(held)
    broken.send(b"during")
    broken.check({b"before-0", b"before-1", b"before-2", b"during"})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A real file system of two megabytes."""
    with mounted(tmp_path, mib=2) as disk:
        yield disk


@pytest.mark.parametrize("recycle", [False, True], ids=["fresh", "recycled"])
def test_f7_a_disk_that_is_really_full_goes_on_when_there_is_room(small_disk: SmallDisk, recycle: bool) -> None:
    folder = small_disk.folder
    store = LocalStore(folder, PoolingFiles(str(folder)) if recycle else None)
    warehouse = Warehouse.open("", store=store, settings=SETTINGS)
    log = warehouse.create(REF)
    acked: list[bytes] = []
    body = os.urandom(50_000)
    with pytest.raises(StorageFull):
        for i in range(1_000):
            log.append([batch(b"%d " % i + body)])
            acked.append(b"%d " % i + body)
    assert len(acked) > 10
    assert all_bodies(log, step=3) == acked, "readers go on"
    small_disk.remount("size=8m")
    _append_and_compare(folder, log, acked)
    warehouse.close()


def test_f7_a_disk_that_is_really_read_only_goes_on_when_it_is_not(small_disk: SmallDisk) -> None:
    warehouse = Warehouse.open(str(small_disk.folder), settings=SETTINGS)
    log = warehouse.create(REF)
    log.append([batch(b"before")])
    small_disk.remount("ro")
    try:
        with pytest.raises(Unavailable):
            log.append([batch(b"during")])
        assert all_bodies(log) == [b"before"]
    finally:
        small_disk.remount("rw")
    _append_and_compare(small_disk.folder, log, [b"before"])
    warehouse.close()


def _append_and_compare(folder: Path, log: PartitionLog, acked: list[bytes]) -> None:
    assert log.append([batch(b"after")])[0].base_offset == len(acked)
    other = Warehouse.open("", store=LocalStore(folder))
    assert all_bodies(other.open_partition(REF)) == [*acked, b"after"]
    other.close()
