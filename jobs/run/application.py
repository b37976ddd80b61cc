"""The applications that run jobs in one warehouse, and how they see each other.

A running application announces itself by a file and gives signs of life. Applications with a recent sign
share the shards; a stopped one (SIGSTOP) keeps its shards and gets no more. A sign is compared with the previous
one, and its age is measured by the reader's own clock, never by another machine's. On a local disk the file is locked
as well, so that others see at once when its process has ended, however it ended.

    jobs/apps/<application>.lock       on a local disk: locked; its modification time is the sign of life
    jobs/apps/<application>.json       on an object store; a number in it is the sign of life
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from io import FileIO
from typing import Final, Protocol

import msgspec

from deltamq.mq.errors import DeltaMQError
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import FileMissing, Store

FOLDER: Final = "jobs/apps"
#: Files of applications that gave no sign for this time are removed from an object store.
_FORGOTTEN_MS: Final = 3_600_000


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a shard, and since when; enough for people to find it."""

    application: str
    host: str
    pid: int
    since_ms: int
    #: The engine that runs the job; the JVM of a Spark driver may outlive the process for a moment.
    engine: str = ""

    @classmethod
    def this(cls) -> Holder:
        """Return a holder for this process, with a new application id."""
        now_ms = time.time_ns() // 1_000_000
        return cls(application=uuid.uuid4().hex[:12], host=socket.gethostname(), pid=os.getpid(), since_ms=now_ms)

    def __str__(self) -> str:
        return f"{self.host} pid {self.pid}" if self.pid else self.host


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """A running application; `jobs` maps the jobs that it runs to their engines."""

    holder: Holder
    jobs: Mapping[str, str]
    beat: int = 0


_applications: Final = msgspec.json.Decoder(Application)


class _Files(Protocol):
    #: Interval of signs of life.
    beat_ms: int
    #: Interval at which an application that waits for shards looks for them.
    look_ms: int

    def beat(self) -> None: ...
    def withdraw(self) -> None: ...

    def others(self) -> Iterator[tuple[Application, int]]:
        """Yield the other applications, each with its last sign, a number that changes."""


class Applications:
    """This application among the others of its warehouse. For one thread."""

    def __init__(self, store: Store, me: Application, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.me = me
        self._clock = clock
        self._files: _Files = _LockFiles(store, me) if isinstance(store, LocalStore) else _BeatFiles(store, me)
        self._beat_at_ms = -self._files.beat_ms
        #: The last sign of each application, and when it was first seen.
        self._signs: dict[str, tuple[int, int]] = {}
        self._present: dict[str, Application] = {me.holder.application: me}

    def look(self) -> None:
        """Give a sign of life if it is due, and read the signs of the other applications."""
        now_ms = self._clock.boot_ms()
        if now_ms - self._beat_at_ms >= self._files.beat_ms:
            self._files.beat()
            self._beat_at_ms = now_ms
        present = {self.me.holder.application: self.me}
        for other, sign in self._files.others():
            name = other.holder.application
            if self._signs.get(name, (None, 0))[0] != sign:
                self._signs[name] = (sign, now_ms)
            present[name] = other
        self._signs = {name: seen for name, seen in self._signs.items() if name in present}
        self._present = present

    def taking_part(self, job: str) -> list[str]:
        """Return the ids of the applications that share the job's shards now, including this one."""
        silent_ms = 3 * self._files.beat_ms
        now_ms = self._clock.boot_ms()
        return [
            name
            for name, application in self._present.items()
            if job in application.jobs and (application is self.me or now_ms - self._signs[name][1] < silent_ms)
        ]

    def look_s(self, *, waiting: bool) -> float:
        """Return the seconds until the next look: fewer while this application waits for shards."""
        return (self._files.look_ms if waiting else self._files.beat_ms) / 1000

    def withdraw(self) -> None:
        """Take no more part in the sharing of shards."""
        self._files.withdraw()


class _LockFiles:
    beat_ms = 1_000
    look_ms = 250

    def __init__(self, store: LocalStore, me: Application) -> None:
        self._folder = store.folder_of_locks(FOLDER)
        self._path = self._folder / f"{me.holder.application}.lock"
        hidden = self._folder / f".{self._path.name}"
        self._file = FileIO(hidden, "w+")
        self._file.write(msgspec.json.encode(me))
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Others see the file from here on, and locked: an unlocked one belongs to a dead process.
        hidden.rename(self._path)

    def beat(self) -> None:
        os.utime(self._file.fileno())

    def withdraw(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._file.close()

    def others(self) -> Iterator[tuple[Application, int]]:
        for name in os.listdir(self._folder):
            if name.startswith(".") or name == self._path.name or not name.endswith(".lock"):
                continue
            with contextlib.suppress(FileNotFoundError, msgspec.DecodeError), FileIO(self._folder / name, "r") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield _applications.decode(file.read()), os.fstat(file.fileno()).st_mtime_ns
                else:
                    (self._folder / name).unlink()


class _BeatFiles:
    beat_ms = 10_000
    look_ms = 5_000

    def __init__(self, store: Store, me: Application) -> None:
        self._store = store
        self._me = me
        self._name = f"{me.holder.application}.json"
        self._beats = 0

    def beat(self) -> None:
        self._beats += 1
        announcement = msgspec.structs.replace(self._me, beat=self._beats)
        self._store.replace(f"{FOLDER}/{self._name}", msgspec.json.encode(announcement))

    def withdraw(self) -> None:
        with contextlib.suppress(DeltaMQError):
            self._store.delete(f"{FOLDER}/{self._name}")

    def others(self) -> Iterator[tuple[Application, int]]:
        now_ms = time.time_ns() // 1_000_000
        for entry in self._store.entries(FOLDER):
            if entry.name == self._name or not entry.name.endswith(".json"):
                continue
            if entry.modified_ms and now_ms - entry.modified_ms > _FORGOTTEN_MS:
                self._store.delete(f"{FOLDER}/{entry.name}")  # if its application only slept, it writes it again
                continue
            with contextlib.suppress(FileMissing, msgspec.DecodeError):
                other = _applications.decode(bytes(self._store.read(f"{FOLDER}/{entry.name}")))
                yield other, other.beat
