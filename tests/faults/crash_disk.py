"""A disk that remembers what is durable, and every state in which a power cut may leave it.

`CrashDisk` is a `FileSystem` in memory: the log runs on it, and the power may fail after each call. The model of what
survives is the weakest that POSIX allows, weaker than any file system of today:

- A file has the content of its last sync. Later writes may be there in whole, not at all (the file is empty, or has the
  earlier content of a recycled file), cut in half, or in full length but all zeros.
- A folder has the entries of its last sync. Of the changes since (create, link, rename, unlink, mkdir) any subset may
  have happened, whatever their order; one rename inside one folder happens as a whole or not, one between two folders
  may happen in each of them alone.
- Syncing a file says nothing about its name; syncing a folder says nothing about its files.
- A sync that fails drops the data and marks it as clean: a later one that succeeds proves nothing (as on Linux).

`outcomes` returns each state once, with all acknowledgements up to the last moment at which it could arise. Names of
temporary files, which are never read, do not make a new state.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa

from deltamq.tables.store.file_system import Failed, Publication
from deltamq.tables.store.local import TEMP_PREFIX, LocalStore
from deltamq.tables.store.publish import publish_in_steps
from deltamq.tables.store.store import FileMissing, ListedFile, sparse_buffer

__all__ = ["CrashDisk", "DiskStore", "Outcome", "outcomes"]

#: The contents of a disk: file content by path below the root.
Image: TypeAlias = dict[str, bytes]
#: One atomic change of a folder: names with their new files, None for a name that is removed.
Change: TypeAlias = tuple[tuple[str, int | None], ...]
#: Maximum number of subsets of changes that are tried. If there are more, this many are drawn at random, besides those
#: that differ by one from none and from all.
_SUBSETS_MAX: Final = 4_096
_FOLDER: Final = -1
_POOL: Final = ".pool-model"


class _Folder(msgspec.Struct):
    """A folder's durable entries and the changes since its last sync; changes that a failed sync dropped are lost."""

    durable: dict[str, int] = msgspec.field(default_factory=dict)
    pending: list[tuple[Change, bool]] = msgspec.field(default_factory=list)

    def now(self) -> dict[str, int]:
        return _applied(self.durable, [change for change, _ in self.pending])

    def sync(self) -> None:
        kept = [change for change, lost in self.pending if not lost]
        settled = {name for change in kept for name, _ in change}
        self.durable = _applied(self.durable, kept)
        self.pending = [
            (change, lost) for change, lost in self.pending if lost and not {name for name, _ in change} & settled
        ]

    def drop(self) -> None:
        self.pending = [(change, True) for change, _ in self.pending]

    def possible(self, drawn: random.Random) -> list[dict[str, int]]:
        """Return every list of entries that may be found after a power cut."""
        changes = [change for change, _ in self.pending]
        found = {}
        for subset in _subsets(len(changes), drawn):
            entries = _applied(self.durable, list(itertools.compress(changes, subset)))
            found[tuple(sorted((n, f) for n, f in entries.items() if not n.startswith(TEMP_PREFIX)))] = entries
        return list(found.values())


def _applied(entries: Mapping[str, int], changes: Sequence[Change]) -> dict[str, int]:
    found = dict(entries)
    for change in changes:
        for name, file in change:
            if file is None:
                found.pop(name, None)
            else:
                found[name] = file
    return found


def _subsets(count: int, drawn: random.Random) -> Iterator[tuple[bool, ...]]:
    if 2**count <= _SUBSETS_MAX:
        yield from itertools.product((False, True), repeat=count)
        return
    for some in (False, True):
        yield (some,) * count
        for at in range(count):
            yield tuple(some != (i == at) for i in range(count))
    for _ in range(_SUBSETS_MAX):
        yield tuple(drawn.random() < 0.5 for _ in range(count))


class _File(msgspec.Struct):
    """A file's durable content, what a running process sees, and whether a sync would still write it."""

    durable: bytes = b""
    visible: bytes = b""
    dirty: bool = False

    def possible(self) -> list[bytes]:
        new, old = self.visible, self.durable
        if new == old:
            return [old]
        half = len(new) // 2
        return list(dict.fromkeys([old, new, new[:half] + old[half : len(new)], bytes(len(new))]))


class Moment(msgspec.Struct, frozen=True):
    """The disk right after the call named by `label`; `acked` is the number of acknowledgements until then."""

    label: str
    acked: int
    folders: dict[str, _Folder]
    files: dict[int, _File]


class CrashDisk:
    """The file system of one machine. Paths are absolute, below `root`."""

    def __init__(self, root: Path, *, recycle: bool = False) -> None:
        self.root = str(root)
        self._folders: dict[str, _Folder] = {self.root: _Folder()}
        self._files: dict[int, _File] = {}
        self._pool: list[str] = []
        self._recycle = recycle
        self.moments: list[Moment] = []
        self.acked: list[object] = []
        #: Called before each call with its name and path; an exception of it becomes that of the call.
        self.before: Callable[[str, str], None] = lambda name, path: None

    def ack(self, what: object) -> None:
        """Note an acknowledgement: a client was told that `what` is stored."""
        self.acked.append(what)
        self._note(f"ack {what}")

    def forget_moments(self) -> None:
        """Drop the moments noted so far."""
        self.moments.clear()

    def _note(self, label: str) -> None:
        folders = {name: _Folder(dict(f.durable), list(f.pending)) for name, f in self._folders.items()}
        files = {number: _File(f.durable, f.visible, f.dirty) for number, f in self._files.items()}
        self.moments.append(Moment(label.replace(self.root, ""), len(self.acked), folders, files))

    # Reads of a running process.

    def content(self, path: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""
        folder, name = os.path.split(path)
        number = self._folders[folder].now().get(name) if folder in self._folders else None
        return None if number is None or number == _FOLDER else self._files[number].visible

    def entries(self, path: str) -> dict[str, int | None]:
        """Return the entries of a folder: size by name of a file, None for a folder."""
        if path not in self._folders:
            return {}
        found = self._folders[path].now()
        return {n: None if f == _FOLDER else len(self._files[f].visible) for n, f in found.items()}

    # `tables.store.file_system.FileSystem`.

    def write_new(self, path: str, data: pa.Buffer | bytes, *, sync: bool) -> None:
        self.before("write_new", path)
        number = self._reused(path)
        if number is None:
            number = len(self._files)
            self._files[number] = _File()
            self._add(path, number, f"create {path}")
        self._files[number].visible = bytes(data)
        self._files[number].dirty = True
        self._note(f"write {path}")
        if sync:
            self.sync_file(path)

    def sync_file(self, path: str) -> None:
        file = self._files[self._number(path)]
        try:
            self.before("sync_file", path)
        except OSError:
            file.dirty = False
            raise
        if file.dirty:
            file.durable, file.dirty = file.visible, False
        self._note(f"sync {path}")

    def sync_folder(self, path: str) -> None:
        if path not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        try:
            self.before("sync_folder", path)
        except OSError:
            self._folders[path].drop()
            raise
        self._folders[path].sync()
        self._note(f"sync folder {path}")

    def link(self, source: str, target: str) -> None:
        self.before("link", target)
        self._add(target, self._number(source), f"link {target}")

    def rename(self, source: str, target: str) -> None:
        self.before("rename", target)
        number = self._number(source)
        (from_folder, from_name), (to_folder, to_name) = os.path.split(source), os.path.split(target)
        if from_folder == to_folder:
            self._change(to_folder, ((from_name, None), (to_name, number)), f"rename {source} to {target}")
        else:
            self._change(to_folder, ((to_name, number),), f"rename to {target}")
            self._change(from_folder, ((from_name, None),), f"rename from {source}")

    def unlink(self, path: str) -> None:
        self.before("unlink", path)
        number = self._number(path)
        names = sum(list(f.now().values()).count(number) for f in self._folders.values())
        if self._recycle and names == 1:
            self._pool.append(self._bury(path, number))
            return
        folder, name = os.path.split(path)
        self._change(folder, ((name, None),), f"unlink {path}")

    def make_folder(self, path: str) -> None:
        self.before("make_folder", path)
        if path in self._folders:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._folders[path] = _Folder()
        self._add(path, _FOLDER, f"mkdir {path}")

    async def publish(self, wanted: Publication, *, sync: bool) -> Failed | None:
        return publish_in_steps(self, wanted, sync=sync)

    def refill(self) -> None:
        """Do nothing: no files are made in advance."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    # The pool of dead files, with the calls of `tables.store.file_pool` in the same order.

    def _bury(self, path: str, number: int) -> str:
        pool = f"{self.root}/{_POOL}"
        if pool not in self._folders:
            self.make_folder(pool)
        dead = f"{pool}/{number}"
        self.rename(path, dead)
        return dead

    def _reused(self, path: str) -> int | None:
        if not self._pool:
            return None
        dead = self._pool.pop(0)
        number = self._number(dead)
        self.rename(dead, path)
        return number

    def _number(self, path: str) -> int:
        folder, name = os.path.split(path)
        number = self._folders[folder].now().get(name) if folder in self._folders else None
        if number is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return number

    def _add(self, path: str, number: int, label: str) -> None:
        folder, name = os.path.split(path)
        if folder in self._folders and name in self._folders[folder].now():
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._change(folder, ((name, number),), label)

    def _change(self, folder: str, change: Change, label: str) -> None:
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
        self._folders[folder].pending.append((change, False))
        self._note(label)


class DiskStore(LocalStore):
    """The real local store, writing to and reading from a `CrashDisk`."""

    def __init__(self, disk: CrashDisk) -> None:
        super().__init__(disk.root, disk)
        self._disk = disk

    def read(self, key: str) -> pa.Buffer:
        content = self._disk.content(self.uri(key))
        if content is None:
            raise FileMissing(key)
        return pa.py_buffer(content)

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        content = self.read(key).to_pybytes()
        return sparse_buffer(size, ranges, [content[start:stop] for start, stop in ranges])

    def exists(self, key: str) -> bool:
        return self._disk.content(self.uri(key)) is not None

    def entries(self, folder: str) -> list[ListedFile]:
        found = self._disk.entries(self.uri(folder.rstrip("/")))
        return sorted((ListedFile(n, size, 0) for n, size in found.items() if size is not None), key=lambda e: e.name)

    def names(self, folder: str) -> list[str]:
        return [entry.name for entry in self.entries(folder)]

    def folders(self, folder: str) -> list[str]:
        return sorted(n for n, size in self._disk.entries(self.uri(folder.rstrip("/"))).items() if size is None)


class Outcome(msgspec.Struct):
    """One state of the disk after a power cut: its files, and the number of acknowledgements that it must keep."""

    image: Image
    acked: int
    label: str


def outcomes(disk: CrashDisk, *, seed: int = 0) -> list[Outcome]:
    """Return every state in which a power cut at any noted moment may leave the disk."""
    found: dict[tuple[tuple[str, int], ...], Outcome] = {}
    contents: dict[bytes, int] = {}
    drawn = random.Random(seed)
    for moment in disk.moments:
        for image in _images(moment, disk.root, drawn):
            key = tuple(
                sorted(
                    (path, contents.setdefault(content, len(contents)))
                    for path, content in image.items()
                    if TEMP_PREFIX not in path
                )
            )
            # Later moments have more acknowledgements: the last one at which a state can arise demands the most.
            found[key] = Outcome(image, moment.acked, moment.label)
    return list(found.values())


def _images(moment: Moment, root: str, drawn: random.Random) -> Iterator[Image]:
    names = [name for name in moment.folders if not name.endswith(f"/{_POOL}")]
    for chosen in itertools.product(*(moment.folders[name].possible(drawn) for name in names)):
        entries = dict(zip(names, chosen, strict=True))
        files = _reachable(entries, root)
        numbers = sorted(set(files.values()))
        for contents in itertools.product(*(moment.files[number].possible() for number in numbers)):
            content_of = dict(zip(numbers, contents, strict=True))
            yield {path: content_of[number] for path, number in files.items()}


def _reachable(entries: Mapping[str, dict[str, int]], root: str) -> dict[str, int]:
    """Return files by their path below the root, without the pool, which is not read after a start."""
    found = {}
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        for name, number in entries[folder].items():
            path = f"{folder}/{name}"
            if number != _FOLDER:
                found[path[len(root) + 1 :]] = number
            elif name != _POOL:
                waiting.append(path)
    return found
