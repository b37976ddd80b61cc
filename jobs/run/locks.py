"""Locks that give each shard of a job one owner at a time (SPEC RELY-3). Spark's commits on state tables are not
exclusive across processes, so the processes must exclude each other.

On a local disk it is a file lock of the operating system: a killed process cannot keep it, and a stopped one does not
lose it. On an object store it is a lease in a numbered file that exactly one process can create. The holder renews it;
if it cannot for the lease's length less a margin, it gives the lease up. The lease of a dead process expires.

    jobs/<job>/shards/<shard>.lock                       {"application": ..., "host": ..., "pid": ...}
    jobs/<job>/shards/<shard>/00000000000000000007.json  {"holder": ..., "token": ..., "until_ms": ...}
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import uuid
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final, Protocol

import msgspec

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.jvm_lock import may_commit
from deltamq.jobs.run.registry import WHOLE
from deltamq.mq.errors import Conflict, DeltaMQError, Fenced, Unknown
from deltamq.mq.names import decode_path, encode_path
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.config_sections import Engine
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import FileMissing, Store

LEASE_MS: Final = 60_000
#: Time between the moment a holder gives up its lease and the earliest takeover; clocks of two machines differ by less.
MARGIN_MS: Final = 20_000
assert MARGIN_MS < LEASE_MS / 2, "a holder must be able to renew before it must stop"
#: A process that checks a lock locks the file for microseconds, or longer on a busy machine. So a lock is
#: tried this many times, at this interval in seconds, before it counts as held.
_TRIES: Final = 20
_TRY_S: Final = 0.01
#: Seconds to wait for the JVM of a killed Python process, which takes a second or two to notice its end.
_DEAD_SPARK_S: Final = 15.0
#: The holder of a lock that was taken but not yet written to.
_UNKNOWN_HOLDER: Final = Holder(application="", host="a process that just took it", pid=0, since_ms=0)


class DriverBusy(Conflict):
    """Another process runs this job, or this shard of it, on this warehouse."""

    code = "driver_busy"


class _Lock(Protocol):
    def is_mine(self) -> bool: ...
    def release(self, *, forget: bool) -> None: ...


class ShardLock:
    """A shard that is held; call `check` before and after work that must be exclusive."""

    def __init__(self, lock: _Lock, job: str, shard: str) -> None:
        self._lock = lock
        self.job = job
        self.shard = shard

    def check(self) -> None:
        """Raise `Fenced` if another process may have taken the shard."""
        if not self._lock.is_mine():
            raise Fenced(f"the lock of job {_shown(self.job, self.shard)} may have passed to another driver")

    def release(self, *, forget: bool = False) -> None:
        """Release the shard; with `forget` it no longer exists, and its file is removed.

        Raises
        ------
        DeltaMQError
            The store does not confirm the release: the lease expires by itself.
        """
        self._lock.release(forget=forget)


def take_shard(store: Store, job: str, shard: str, holder: Holder, *, tries: int = _TRIES) -> ShardLock:
    """Take a shard of a job; raise `DriverBusy` if another process has it."""
    path = _path(job, shard)
    holder = msgspec.structs.replace(holder, since_ms=_wall_ms())
    if isinstance(store, LocalStore):
        return ShardLock(_FileLock.taken(store, f"{path}.lock", job, shard, holder, tries), job, shard)
    lease = _Lease(store, path, job, shard, holder)
    lease.take()
    return ShardLock(lease, job, shard)


@contextlib.contextmanager
def shard_lock(store: Store, job: str, shard: str = WHOLE[0], holder: Holder | None = None) -> Iterator[ShardLock]:
    """Hold a shard of a job; raise `DriverBusy` at once if another process has it."""
    lock = take_shard(store, job, shard, holder or Holder.this())
    try:
        yield lock
    finally:
        with contextlib.suppress(DeltaMQError):
            lock.release()


def holder_of(store: Store, job: str, shard: str) -> Holder | None:
    """Return the holder of a shard; None if there is none, which is certain only after taking it."""
    path = _path(job, shard)
    if isinstance(store, LocalStore):
        return _FileLock.holder(Path(store.uri(f"{path}.lock")))
    return _Lease.holder(store, path)


def known_shards(store: Store, job: str) -> list[str]:
    """Return the shards that were ever held, except those whose name was too long for a file name."""
    folder = f"jobs/{job}/shards"
    if isinstance(store, LocalStore):
        names = [file.removesuffix(".lock") for file in store.names(folder) if file.endswith(".lock")]
    else:
        names = store.folders(folder)
    return sorted(shard for name in names if (shard := decode_path(name)) is not None)


def _path(job: str, shard: str) -> str:
    return f"jobs/{job}/shards/{encode_path(shard)}"


def _shown(job: str, shard: str) -> str:
    return job if shard == WHOLE[0] else f"{job}, shard {shard},"


def _busy(job: str, shard: str, holder: Holder) -> DriverBusy:
    return DriverBusy(f"job {_shown(job, shard)} is running in another process ({holder})")


def _has_ended(store: LocalStore, application: str, patience_s: float) -> bool:
    """Wait until the Spark driver of a dead application has ended; False: it has not within `patience_s`."""
    until_s = time.monotonic() + patience_s
    while may_commit(store, application):
        if time.monotonic() >= until_s:
            return False
        time.sleep(_TRY_S)
    return True


class _FileLock:
    def __init__(self, file: FileIO, path: Path) -> None:
        self._file = file
        self._path = path

    @classmethod
    def taken(cls, store: LocalStore, key: str, job: str, shard: str, holder: Holder, tries: int) -> _FileLock:
        folder, _, name = key.rpartition("/")
        path = store.folder_of_locks(folder) / name
        for left in reversed(range(tries)):
            file = FileIO(path, "a+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held_by = _read_holder(file)
                file.close()
                if not left:
                    raise _busy(job, shard, held_by) from None
                time.sleep(_TRY_S)
                continue
            lock = cls(file, path)
            if lock.is_mine():
                dead = _read_holder(file)  # none, if the lock was released
                patience_s = _DEAD_SPARK_S if tries > 1 else 0.0
                if dead.engine == Engine.SPARK.value and not _has_ended(store, dead.application, patience_s):
                    file.close()
                    raise DriverBusy(f"job {_shown(job, shard)} may still commit in a dead process's Spark ({dead})")
                file.truncate(0)
                file.write(msgspec.json.encode(holder))
                return lock
            file.close()  # its holder removed the file meanwhile: the next try makes a new one
        raise _busy(job, shard, _UNKNOWN_HOLDER)

    @staticmethod
    def holder(path: Path) -> Holder | None:
        try:
            file = FileIO(path, "r")
        except FileNotFoundError:
            return None
        with file:
            try:
                # A shared lock, so that two processes that look at the same time do not take each other for the holder.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_holder(file)
        return None

    def is_mine(self) -> bool:
        if self._file.closed:
            return False
        try:
            linked, mine = os.stat(self._path), os.fstat(self._file.fileno())
        except OSError:
            return False
        return (linked.st_dev, linked.st_ino) == (mine.st_dev, mine.st_ino)

    def release(self, *, forget: bool) -> None:
        if self._file.closed:
            return
        if self.is_mine():
            self._file.truncate(0)
            if forget:
                self._path.unlink()
        self._file.close()


def _read_holder(file: FileIO) -> Holder:
    file.seek(0)
    try:
        return _holders.decode(file.read())
    except msgspec.DecodeError:
        return _UNKNOWN_HOLDER


class _Record(msgspec.Struct):
    holder: Holder
    #: Identifies one acquisition of the lease: the same application may take it again.
    token: str
    until_ms: int


#: Created at import: msgspec crashes when several threads meet a type for the first time.
_holders: Final = msgspec.json.Decoder(Holder)
_records: Final = msgspec.json.Decoder(_Record)


class _Lease:
    def __init__(self, store: Store, folder: str, job: str, shard: str, holder: Holder) -> None:
        self._store = store
        self._folder = folder
        self._job = job
        self._shard = shard
        self._holder = holder
        self._token = uuid.uuid4().hex
        self._epoch = 0
        self._sure_until_ms = 0
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew_until_ended, name=f"mq-lease-{job}-{shard}", daemon=True)

    def take(self) -> None:
        self._create()
        self._renewing.start()

    def release(self, *, forget: bool) -> None:
        """Release the lease. Its file stays even if the shard is forgotten: the numbers must not start again."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._renewing.join()
        if self.is_mine():
            self._sure_until_ms = 0
            self._write(0)

    def is_mine(self) -> bool:
        """By the boot clock, which is never set: no other process can have taken the lease yet."""
        return SYSTEM_CLOCK.boot_ms() < self._sure_until_ms

    @staticmethod
    def holder(store: Store, folder: str) -> Holder | None:
        newest = max(_epochs(store, folder), default=0)
        if not newest:
            return None
        try:
            record = _read(store, folder, newest)
        except FileMissing:
            return None  # another process is taking it over
        return None if _is_over(record) else record.holder

    def _create(self) -> None:
        epochs = _epochs(self._store, self._folder)
        newest = max(epochs, default=0)
        if newest:
            self._check_over(newest)
        self._epoch = newest + 1
        began_ms = SYSTEM_CLOCK.boot_ms()
        with contextlib.suppress(Unknown):  # the read below shows the outcome
            self._store.put_if_absent(self._key(self._epoch), self._record(_wall_ms() + LEASE_MS), durable=True)
        if _read(self._store, self._folder, self._epoch).token != self._token:
            raise DriverBusy(f"job {_shown(self._job, self._shard)} was just started in another process")
        if max(_epochs(self._store, self._folder)) > self._epoch:
            # This process slept before the put: its epoch had been used and removed, and another one has a later epoch.
            self._store.delete(self._key(self._epoch))
            raise DriverBusy(f"job {_shown(self._job, self._shard)} was started in another process meanwhile")
        self._sure_until_ms = began_ms + LEASE_MS - MARGIN_MS
        for epoch in epochs:
            self._store.delete(self._key(epoch))

    def _check_over(self, epoch: int) -> None:
        try:
            record = _read(self._store, self._folder, epoch)
        except FileMissing:
            return  # another process has removed it: creating the next file decides
        if not _is_over(record):
            raise _busy(self._job, self._shard, record.holder)

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(LEASE_MS / 4 / 1000):
            began_ms = SYSTEM_CLOCK.boot_ms()
            try:
                if not self.is_mine():
                    return
                self._write(_wall_ms() + LEASE_MS)
            except DeltaMQError:
                continue  # retried until the lease may be lost
            self._sure_until_ms = began_ms + LEASE_MS - MARGIN_MS

    def _write(self, until_ms: int) -> None:
        self._store.replace(self._key(self._epoch), self._record(until_ms))

    def _record(self, until_ms: int) -> bytes:
        return msgspec.json.encode(_Record(holder=self._holder, token=self._token, until_ms=until_ms))

    def _key(self, epoch: int) -> str:
        return f"{self._folder}/{epoch:020d}.json"


def _epochs(store: Store, folder: str) -> list[int]:
    return [int(name[:20]) for name in store.names(folder) if name.endswith(".json")]


def _read(store: Store, folder: str, epoch: int) -> _Record:
    return _records.decode(bytes(store.read(f"{folder}/{epoch:020d}.json")))


def _is_over(record: _Record) -> bool:
    return not record.until_ms or record.until_ms + MARGIN_MS <= _wall_ms()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
