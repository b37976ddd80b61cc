"""One driver at a time for each job of a warehouse (RELIABILITY R3): Spark's commits on state tables are not exclusive
across processes, so what must be exclusive is the process.

On a local disk it is a file lock of the operating system, which a killed driver cannot keep. On an object store it is a
lease in a numbered file that exactly one process can create; the holder renews it, and stops being the holder when it
could not do so for the lease's length less a margin. A lease of a dead driver ends by itself.

    jobs/<job>/driver/00000000000000000007.json     {"holder": ..., "until_ms": ...}
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from mq.errors import Conflict, DeltaMQError, Fenced, Unknown
from tables.local_store import LocalStore
from tables.store import FileMissing, Store

__all__ = ["DriverLock", "driver_lock"]

LEASE_MS: Final = 60_000
#: Between a holder's last belief in its lease and another's first: clocks of two machines differ by less.
MARGIN_MS: Final = 20_000
assert MARGIN_MS < LEASE_MS / 2, "a holder must be able to renew before it must stop"


class DriverBusy(Conflict):
    """Another driver runs this job on this warehouse now."""

    code = "driver_busy"


class DriverLock:
    """A lock that is held; `check` before what must be exclusive."""

    def __init__(self, held: Callable[[], bool], job: str) -> None:
        self._held = held
        self._job = job

    def check(self) -> None:
        """Raise `Fenced` when the lock may have passed to another driver."""
        if not self._held():
            raise Fenced(f"the lock of job {self._job} may have passed to another driver")


@contextlib.contextmanager
def driver_lock(store: Store, job: str) -> Iterator[DriverLock]:
    """Hold the lock of a job; raises `DriverBusy` at once when another process has it."""
    folder = f"jobs/{job}"
    if isinstance(store, LocalStore):
        with _file_lock(Path(store.uri(f"{folder}/driver.lock")), job):
            yield DriverLock(lambda: True, job)
        return
    lease = _Lease(store, f"{folder}/driver", job)
    with lease.held():
        yield DriverLock(lease.is_mine, job)


@contextlib.contextmanager
def _file_lock(path: Path, job: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise DriverBusy(f"job {job} is running in another process ({file.read().strip()})") from None
        file.truncate(0)
        file.write(_holder())
        file.flush()
        yield


class _Record(msgspec.Struct):
    holder: str
    until_ms: int


#: Made here: several threads that meet a type at once crash the interpreter.
_records: Final = msgspec.json.Decoder(_Record)


class _Lease:
    """A lease on an object store."""

    def __init__(self, store: Store, folder: str, job: str) -> None:
        self._store = store
        self._folder = folder
        self._job = job
        self._holder = f"{_holder()} {uuid.uuid4().hex}"
        self._epoch = 0
        self._sure_until_s = 0.0
        self._ended = threading.Event()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._take()
        renewing = threading.Thread(target=self._renew_until_ended, name=f"mq-lease-{self._job}", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._ended.set()
            renewing.join()
            if self.is_mine():
                self._write(0)

    def is_mine(self) -> bool:
        """Whether nobody else can have taken it yet, by the machine's own clock that is never set."""
        return time.monotonic() < self._sure_until_s

    def _take(self) -> None:
        epochs = self._epochs()
        newest = max(epochs, default=0)
        if newest:
            self._check_over(newest)
        self._epoch = newest + 1
        began_s = time.monotonic()
        record = msgspec.json.encode(_Record(holder=self._holder, until_ms=_wall_ms() + LEASE_MS))
        with contextlib.suppress(Unknown):  # no answer: what is stored decides
            self._store.put_if_absent(self._key(self._epoch), record, durable=True)
        if self._read(self._epoch).holder != self._holder:
            raise DriverBusy(f"job {self._job} was just started in another process")
        if max(self._epochs()) > self._epoch:
            # We slept before the put: the epoch that we took was over and removed, and somebody has a later one.
            self._store.delete(self._key(self._epoch))
            raise DriverBusy(f"job {self._job} was started in another process meanwhile")
        self._sure_until_s = began_s + (LEASE_MS - MARGIN_MS) / 1000
        for epoch in epochs:
            self._store.delete(self._key(epoch))

    def _epochs(self) -> list[int]:
        return [int(entry.name[:20]) for entry in self._store.entries(self._folder) if entry.name.endswith(".json")]

    def _check_over(self, epoch: int) -> None:
        try:
            record = self._read(epoch)
        except FileMissing:
            return  # its successor removed it meanwhile: creating ours decides
        if record.until_ms + MARGIN_MS > _wall_ms() and record.until_ms:
            raise DriverBusy(f"job {self._job} is running in another process ({record.holder})")

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(LEASE_MS / 4 / 1000):
            began_s = time.monotonic()
            try:
                if not self.is_mine():
                    return
                self._write(_wall_ms() + LEASE_MS)
            except DeltaMQError:
                continue  # tried again until the lease is no longer surely ours
            self._sure_until_s = began_s + (LEASE_MS - MARGIN_MS) / 1000

    def _write(self, until_ms: int) -> None:
        record = msgspec.json.encode(_Record(holder=self._holder, until_ms=until_ms))
        self._store.replace(self._key(self._epoch), record)

    def _read(self, epoch: int) -> _Record:
        return _records.decode(bytes(self._store.read(self._key(epoch))))

    def _key(self, epoch: int) -> str:
        return f"{self._folder}/{epoch:020d}.json"


def _holder() -> str:
    return f"{socket.gethostname()} pid {os.getpid()}"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
