"""What a backup is made of, and the folder or bucket that holds backups (SPEC RELY-12).

    files/topics/orders/orders@broker-a/00000...-<batch>.parquet    data files, shared by all backups that name them
    backups/20261129T013000.482Z-4f2a.zip                           one backup's logs and small files
    backups/20261129T013000.482Z-4f2a.json                          what belongs to it, with sizes and checksums

A data file's name is never used for other content, so a backup copies only files that are not there yet. The JSON file
is written last: without it there is no backup, and what a killed one left is copied again or removed later.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from deltamq.mq.errors import Conflict, Corrupt, NotFound
from deltamq.tables.store.store import FileMissing, ListedFile, Store

_FILES: Final = "files"
_BACKUPS: Final = "backups"
_FORMAT: Final = 1
#: Age from which a file that no backup names is removed: one that is being made may be about to name a younger one.
_UNNAMED_KEEP_MS: Final = 24 * 3_600_000


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """One file: `key` is relative to the warehouse, `crc` a CRC-32 of its `size` bytes."""

    key: str
    size: int
    crc: int


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """One backup: every message that was acknowledged before `began_ms` is in it."""

    name: str
    #: The id of the warehouse, which stays in what is restored.
    warehouse: str
    began_ms: int
    ended_ms: int
    tables: int
    #: Messages of topics.
    messages: int
    files: tuple[StoredFile, ...]
    #: The archive of logs and small files.
    archive: StoredFile
    #: Tables that could not be copied, each with the reason.
    damaged: Mapping[str, str] = {}
    #: Exports of the warehouse; the tables that they write to are not in the backup, so neither is their progress.
    exports: tuple[str, ...] = ()
    format: int = _FORMAT

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self.archive.size + sum(file.size for file in self.files)


_decoder: Final = msgspec.json.Decoder(Backup)


def described(key: str, data: pa.Buffer | bytes) -> StoredFile:
    """Return name, size and checksum of a file with this content."""
    return StoredFile(key, len(data), zlib.crc32(data))


def checked(file: StoredFile, data: pa.Buffer) -> pa.Buffer:
    """Return the content of a file; raises `Corrupt` if it differs from what was stored."""
    if len(data) != file.size:
        raise Corrupt(f"{file.key}: has {len(data)} bytes, the backup says {file.size}")
    if zlib.crc32(data) != file.crc:
        raise Corrupt(f"{file.key}: its checksum is not the backup's; the file was altered")
    return data


class BackupFolder(msgspec.Struct, frozen=True):
    """The backups in a store."""

    store: Store

    def names(self) -> list[str]:
        """Return the names of the complete backups, the oldest first."""
        return [name.removesuffix(".json") for name in self.store.names(_BACKUPS) if name.endswith(".json")]

    def backup(self, name: str) -> Backup:
        """Return a backup's description.

        Raises
        ------
        NotFound
            `backup_not_found`.
        Corrupt
            It cannot be read, or is of a format that this release does not know.
        """
        key = f"{_BACKUPS}/{name}.json"
        try:
            backup = _decoder.decode(self.store.read(key).to_pybytes())
        except FileMissing as error:
            raise NotFound(
                f"there is no backup {name} in {self.store.uri('')}; `deltamq backup list` names those that are there",
                code="backup_not_found",
                field="backup",
            ) from error
        except msgspec.DecodeError as error:
            raise Corrupt(f"{key}: is not the description of a backup: {error}") from error
        if backup.format != _FORMAT:
            raise Corrupt(f"{key}: is of format {backup.format}, this release knows {_FORMAT}")
        return backup

    def newest(self, *, until_ms: int | None = None) -> Backup:
        """Return the newest backup, or the newest that had ended at a time.

        Raises
        ------
        NotFound
            `backup_not_found`.
        """
        for name in reversed(self.names()):
            backup = self.backup(name)
            if until_ms is None or backup.ended_ms <= until_ms:
                return backup
        when = "" if until_ms is None else " that had ended by then"
        raise NotFound(f"there is no backup{when} in {self.store.uri('')}", code="backup_not_found", field="backup")

    # What a new backup stores.

    def put_file(self, key: str, data: pa.Buffer) -> StoredFile:
        """Store a data file, durably; a file that a killed backup left is replaced."""
        self.store.replace(f"{_FILES}/{key}", data)
        return described(key, data)

    def put_archive(self, name: str, contents: Mapping[str, bytes]) -> StoredFile:
        """Store the archive of a backup's logs and small files, by key."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for key, data in contents.items():
                archive.writestr(key, data)
        data = packed.getvalue()
        key = f"{_BACKUPS}/{name}.zip"
        self.store.replace(key, data)
        return described(key, data)

    def check_files(self, backup: Backup) -> None:
        """Raise `Conflict` if a file of earlier backups that this one names was removed with them in the meantime."""
        folders = {f"{_FILES}/{file.key}".rpartition("/")[0] for file in backup.files}
        there = {f"{folder}/{name}" for folder in folders for name in self.store.names(folder)}
        missing = [file.key for file in backup.files if f"{_FILES}/{file.key}" not in there]
        if missing:
            raise Conflict(
                f"{len(missing)} files were removed from {self.store.uri('')} in the meantime, the first is "
                f"{missing[0]}; make the backup again",
                code="backup_files_removed",
            )

    def put(self, backup: Backup) -> None:
        """Store the description: from here on there is this backup."""
        self.store.replace(f"{_BACKUPS}/{backup.name}.json", msgspec.json.encode(backup))

    # What is read again.

    def file(self, file: StoredFile) -> pa.Buffer:
        """Return a data file's content; raises `FileMissing` or `Corrupt`."""
        return checked(file, self.store.read(f"{_FILES}/{file.key}"))

    def archive(self, backup: Backup) -> dict[str, bytes]:
        """Return the logs and small files of a backup by key; raises `FileMissing` or `Corrupt`."""
        data = checked(backup.archive, self.store.read(backup.archive.key))
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {key: archive.read(key) for key in archive.namelist()}

    def faults(self, backup: Backup, *, progress: Callable[[int, int], None] = lambda done, total: None) -> list[str]:
        """Read and check every byte of a backup; return what is wrong.

        `progress` is called after each file with the bytes done and the bytes of the backup.
        """
        done = backup.archive.size
        faults = []
        try:
            self.archive(backup)
        except (Corrupt, FileMissing, zipfile.BadZipFile) as error:
            faults.append(_fault(backup.archive.key, error))
        for file in backup.files:
            try:
                self.file(file)
            except (Corrupt, FileMissing) as error:
                faults.append(_fault(file.key, error))
            done += file.size
            progress(done, backup.size)
        return faults

    def remove(self, names: Sequence[str], *, now_ms: int) -> int:
        """Remove backups, and the files that no other one names; return the bytes that this frees."""
        freed = 0
        for name in names:
            freed += self.backup(name).archive.size
            self.store.delete(f"{_BACKUPS}/{name}.json")
            self.store.delete(f"{_BACKUPS}/{name}.zip")
        named = {file.key for name in self.names() for file in self.backup(name).files}
        for key, listed in list(walk(self.store, _FILES)):
            if key.removeprefix(f"{_FILES}/") not in named and now_ms - listed.modified_ms >= _UNNAMED_KEEP_MS:
                self.store.delete(key)
                freed += listed.size
        return freed


def _fault(key: str, error: Exception) -> str:
    return f"{key}: is missing" if isinstance(error, FileMissing) else str(error)


def walk(store: Store, folder: str) -> Iterator[tuple[str, ListedFile]]:
    """Yield all files below a folder with their keys."""
    for entry in store.entries(folder):
        yield f"{folder}/{entry.name}", entry
    for name in store.folders(folder):
        yield from walk(store, f"{folder}/{name}")
