"""Tables on a local disk, durable against power loss.

A commit is written in steps (`tables.store.publish`); a kill may follow each of them. `.head` stays as a second name of
the newest commit: if the commit's own file is deleted or damaged, opening the table detects it, and repair has the
content.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from deltamq.mq.errors import READ_ONLY, Corrupt, DeltaMQError, StorageFull, Unavailable
from deltamq.tables.failpoints import failpoint
from deltamq.tables.store.calls import on_a_thread
from deltamq.tables.store.disk_sync import sync_whole
from deltamq.tables.store.file_system import CommitStep, Failed, FileSystem, Publication
from deltamq.tables.store.publish import publish_in_steps
from deltamq.tables.store.store import FileMissing, ListedFile, NewFile, NotDurable, StoreUnsafe, read_in_turn
from deltamq.tables.store.trash import Trash

#: Second name of a folder's newest put-if-absent file.
HEAD: Final = ".head"
TEMP_PREFIX: Final = ".tmp-"
T = TypeVar("T")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
#: Errors of file systems that do not have hard links.
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


class OsFiles:
    """The real file system."""

    def write_new(self, path: str, data: pa.Buffer | bytes, *, sync: bool) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            self.write_all(fd, data)
            if sync:
                sync_whole(fd)
        finally:
            os.close(fd)

    def write_all(self, fd: int, data: pa.Buffer | bytes) -> None:
        """Write all of `data`, in as many calls as the kernel needs."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def sync_file(self, path: str) -> None:
        self._sync(path, os.O_RDONLY)

    def sync_folder(self, path: str) -> None:
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def _sync(self, path: str, flags: int) -> None:
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            sync_whole(fd)
        finally:
            os.close(fd)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path, 0o750)

    async def publish(self, wanted: Publication, *, sync: bool) -> Failed | None:
        """Write a data file and the commit that names it; return what failed, None if nothing did."""
        return await on_a_thread(partial(publish_in_steps, self, wanted, sync=sync))

    def refill(self) -> None:
        """Do nothing: no files are made in advance."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class LocalStore:
    """A store of files below a local folder, which `make_root` has made: a write never makes it anew."""

    cheap_look = True

    def __init__(self, root: str | Path, files: FileSystem | None = None, trash: Trash | None = None) -> None:
        self._root = os.path.abspath(root)
        self._files = files or OsFiles()
        self._known_folders: set[str] = set()
        self._trash = trash or Trash(self._root)
        self._temp_name, self._temps = uuid.uuid4().hex, itertools.count()

    def uri(self, key: str) -> str:
        return os.path.join(self._root, key) if key else self._root

    def _new_temp(self, folder: str) -> str:
        # Not a new random name each time: asking for random bytes releases the interpreter's lock.
        return f"{folder}/{TEMP_PREFIX}{self._temp_name}-{os.getpid()}-{next(self._temps)}"

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def put(self, key: str, data: pa.Buffer | bytes, *, durable: bool) -> None:
        path = self._path(key)
        folder = os.path.dirname(path)
        with _as_ours(key):
            self._make_folder(folder)
            self._write_whole(path, data, sync=durable)
            if durable:
                failpoint("commit.after_data_fsync")
                self._files.sync_folder(folder)

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        path = self._path(key)
        folder = os.path.dirname(path)
        temp = self._new_temp(folder)
        with _as_ours(key):
            self._make_folder(folder)
            failpoint("commit.before_log_tmp")
            self._write_whole(temp, data, sync=durable)
            failpoint("commit.after_log_fsync")
            if not self._link(temp, path):
                return False
        failpoint("commit.after_link")
        # From here on the file exists for all processes: an error no longer means "not stored".
        try:
            self._files.rename(temp, f"{folder}/{HEAD}")
            if durable:
                self._files.sync_folder(folder)
        except OSError as error:
            self._put_again(key, data, durable=durable, cause=error)
        failpoint("commit.after_dir_fsync")
        return True

    async def put_ahead(self, key: str, data: pa.Buffer | bytes) -> bool:
        return False

    async def put_commit(self, key: str, data: bytes, file: NewFile | None, *, durable: bool) -> bool:
        if file is None:
            return self.put_if_absent(key, data, durable=durable)
        path, file_path = self._path(key), self._path(file[0])
        folder = os.path.dirname(path)
        temp = self._new_temp(folder)
        with _as_ours(key):
            self._make_folder(os.path.dirname(file_path))
            self._make_folder(folder)
            wanted = Publication(file_path, file[1], temp, data, path, f"{folder}/{HEAD}")
            failed = await self._files.publish(wanted, sync=durable)
            if failed is not None and failed.step < CommitStep.SETTLE:
                return self._unpublished(wanted, failed)
        if failed is not None:
            self._put_again(key, data, durable=durable, cause=failed.error)
        failpoint("commit.after_dir_fsync")
        return True

    def _unpublished(self, wanted: Publication, failed: Failed) -> bool:
        """Remove what a failed publication left; return False if the name is taken, and raise its error otherwise."""
        if failed.step is CommitStep.LINK:
            return self._not_linked(wanted.temp, failed.error)
        self._drop(wanted.temp)
        self._drop(wanted.file)
        raise failed.error

    def _link(self, temp: str, path: str) -> bool:
        """Link `temp` to its name; if the name is taken, remove `temp` and return False."""
        try:
            self._files.link(temp, path)
        except OSError as error:
            return self._not_linked(temp, error)
        return True

    def _not_linked(self, temp: str, error: OSError) -> bool:
        """Remove a temp file that could not be linked; return False if the name is taken, and raise otherwise."""
        if isinstance(error, FileExistsError):
            self._files.unlink(temp)
            return False
        self._drop(temp)
        if error.errno in _NO_LINKS:
            raise StoreUnsafe(
                f"{self._root} is on a file system without hard links ({error.strerror}), such as a volume of "
                "Unity Catalog or a mounted bucket: nothing can be committed there. Use a local disk, or the "
                "object store itself: s3://, gs://, abfss://"
            ) from error
        raise error

    def _put_again(self, key: str, data: bytes, *, durable: bool, cause: OSError) -> None:
        """Write a file again after a failed sync.

        Syncing again would prove nothing: the kernel marks pages that it could not write as clean.
        """
        if not durable:
            return
        try:
            self.replace(key, data)
        except DeltaMQError as error:
            raise NotDurable(f"{key} is stored, but its folder could not be synced: {cause}") from error

    def replace(self, key: str, data: pa.Buffer | bytes) -> None:
        path = self._path(key)
        folder = os.path.dirname(path)
        temp = self._new_temp(folder)
        with _as_ours(key):
            self._make_folder(folder)
            self._write_whole(temp, data, sync=True)
            try:
                self._files.rename(temp, path)
            except OSError:
                self._drop(temp)
                raise
            self._files.sync_folder(folder)

    def _write_whole(self, path: str, data: pa.Buffer | bytes, *, sync: bool) -> None:
        """Write a file under a name that no reader knows yet; remove it if writing fails."""
        try:
            self._files.write_new(path, data, sync=sync)
        except OSError:
            self._drop(path)
            raise

    def _drop(self, path: str) -> None:
        """Remove a file that has no reader, if possible: on a full disk no leftovers should stay."""
        with contextlib.suppress(OSError):
            self._files.unlink(path)

    def read(self, key: str) -> pa.Buffer:
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                return pa.py_buffer(file.readall())
        except FileNotFoundError as error:
            raise FileMissing(key) from error
        except OSError as error:
            raise Unavailable(f"cannot read {key}: {error.strerror}", code="storage_error") from error

    def read_each(self, keys: Sequence[str]) -> Sequence[pa.Buffer | None]:
        return read_in_turn(self, keys)

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        # Read, not mapped: a mapped file that another process truncates would kill this process.
        space = np.empty(size, dtype=np.uint8)
        view = memoryview(space.data)
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                for start, stop in ranges:
                    _fill(file.fileno(), view[start:stop], start)
        except FileNotFoundError as error:
            raise FileMissing(key) from error
        except OSError as error:
            raise Unavailable(f"cannot read {key}: {error.strerror}", code="storage_error") from error
        return pa.py_buffer(space)

    def exists(self, key: str) -> bool:
        try:
            os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise Unavailable(f"cannot look at {key}: {error.strerror}", code="storage_error") from error
        return True

    def stamp(self, folder: str) -> int | None:
        try:
            return os.stat(self._path(folder)).st_mtime_ns
        except OSError:
            return None

    def sync(self, keys: list[str]) -> None:
        paths = [self._path(key) for key in keys]
        for path in paths:
            # A file that retention has removed in the meantime needs no sync.
            with _as_ours(path), contextlib.suppress(FileNotFoundError):
                self._files.sync_file(path)
        for folder in dict.fromkeys(os.path.dirname(path) for path in paths):
            with _as_ours(folder):
                self._files.sync_folder(folder)

    def entries(self, folder: str) -> list[ListedFile]:
        return sorted(self._listed(folder, _files_of), key=lambda e: e.name)

    def names(self, folder: str) -> list[str]:
        return sorted(self._listed(folder, _names_of))

    def folders(self, folder: str) -> list[str]:
        return sorted(self._listed(folder, _folders_of))

    def _listed(self, folder: str, pick: Callable[[Iterator[os.DirEntry[str]]], Iterator[T]]) -> list[T]:
        """Return what `pick` takes from a folder; empty if the folder does not exist, other errors are raised."""
        try:
            with os.scandir(self._path(folder)) as entries:
                return list(pick(entries))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise Unavailable(f"cannot list {folder}: {error.strerror}", code="storage_error") from error

    def delete(self, key: str) -> None:
        with _as_ours(key), contextlib.suppress(FileNotFoundError):
            self._files.unlink(self._path(key))

    def delete_tree(self, folder: str) -> None:
        path = self._path(folder)
        deleted = self._trash.new()
        with _as_ours(folder):
            try:
                self._files.rename(path, deleted)
            except FileNotFoundError:
                return
            self._files.sync_folder(os.path.dirname(path))
            self._known_folders = {f for f in self._known_folders if f != path and not f.startswith(path + "/")}
        self._trash.empty()

    def prepare(self) -> None:
        self._files.refill()
        self._trash.resume()

    def close(self) -> None:
        self._trash.close()
        self._files.close()

    def folder_of_locks(self, key: str) -> Path:
        """Return a folder for files that the store does not keep, and that are locked; it is made if need be.

        Raises
        ------
        Unavailable
            `store_gone`: the warehouse is not there. On an empty mount point the folder would be a new warehouse.
        """
        check_root(self._root)
        folder = Path(self.uri(key))
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        return folder

    def _make_folder(self, folder: str) -> None:
        """Create `folder` and make it durable: a power cut that loses the folder loses its acknowledged files, too.

        The process that created the folder may not have synced it yet, so each process syncs it at its first use.
        """
        if folder in self._known_folders:
            return
        if folder == self._root:
            check_root(self._root)
        else:
            self._make_folder(os.path.dirname(folder))
            _make_synced(self._files, folder)
            if os.path.islink(folder):
                self._check_within(folder)
        self._known_folders.add(folder)

    def _check_within(self, folder: str) -> None:
        """Raise `Corrupt` if a symbolic link leads out of the warehouse; folders above it are known not to."""
        real, root = os.path.realpath(folder), os.path.realpath(self._root)
        if os.path.commonpath([real, root]) != root:
            raise Corrupt(f"{folder} leads out of the warehouse through a symbolic link")


def make_root(root: str, files: FileSystem) -> None:
    """Create a warehouse's folder durably; do nothing if it exists."""
    missing = []
    while not os.path.isdir(root):
        missing.append(root)
        root = os.path.dirname(root)
    with _as_ours(root):
        for folder in reversed(missing):
            _make_synced(files, folder)


def check_root(root: str) -> None:
    """Raise `Unavailable` (`store_gone`) if a warehouse's folder is not there.

    A folder that is made where a disk is not mounted is an empty warehouse, and hides the real one's absence.
    """
    if not os.path.isdir(root):
        raise Unavailable(f"{root} is not there: is the warehouse's disk mounted?", code="store_gone")


def _make_synced(files: FileSystem, folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        files.make_folder(folder)
    files.sync_folder(os.path.dirname(folder))


def _fill(fd: int, view: memoryview, at: int) -> None:
    while view:
        count = os.preadv(fd, [view], at)
        if count == 0:
            view[:] = bytes(len(view))
            return
        view, at = view[count:], at + count


def _folders_of(entries: Iterator[os.DirEntry[str]]) -> Iterator[str]:
    return (e.name for e in entries if e.is_dir(follow_symlinks=False))


def _names_of(entries: Iterator[os.DirEntry[str]]) -> Iterator[str]:
    # Every common file system keeps an entry's type in the folder itself: no `stat` of the file is needed.
    return (e.name for e in entries if e.is_file(follow_symlinks=False))


def _files_of(entries: Iterator[os.DirEntry[str]]) -> Iterator[ListedFile]:
    for entry in entries:
        # A file may vanish between the listing and `stat` (a temp file, a swept file).
        with contextlib.suppress(FileNotFoundError):
            if entry.is_file(follow_symlinks=False):
                stat = entry.stat(follow_symlinks=False)
                yield ListedFile(entry.name, stat.st_size, stat.st_mtime_ns // 1_000_000)


@contextlib.contextmanager
def _as_ours(what: str) -> Iterator[None]:
    """Turn the operating system's errors into ours: `StorageFull` for a full disk, `Unavailable` for most others."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileMissing(f"{what} has no folder: the partition was deleted") from error
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"no space left for {what}; free disk space and try again") from error
        code = READ_ONLY if error.errno in _READ_ONLY else "storage_error"
        raise Unavailable(f"cannot write {what}: {error.strerror or error}", code=code) from error
