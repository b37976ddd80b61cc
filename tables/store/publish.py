"""The file calls of a commit and the data file that it names, in the order that durability needs.

    write file -> write temp -> sync file, folder of the file, temp -> link temp to its name -> rename it to .head
        -> sync folder of the log

`link` fails if the name exists, whichever process created it, and never overwrites; what the commit names and its own
content are durable before the name appears. Both files are written before the first sync, because the file system then
puts them to disk together: a commit takes a fifth less time.

`tables.store.native` does the same in one call.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import pyarrow as pa

from tables.failpoints import failpoint

__all__ = ["Failed", "Publication", "Step", "publish_in_steps"]


class Step(IntEnum):
    """A step of a commit; from `SETTLE` on the commit exists for all processes."""

    WRITE_FILE = 1
    WRITE_LOG = 2
    SYNC = 3
    LINK = 4
    SETTLE = 5


@dataclass(frozen=True, slots=True)
class Publication:
    """A data file, the commit that names it, and where both go: paths of files in existing folders."""

    file: str
    file_data: pa.Buffer | bytes
    temp: str
    log: bytes
    name: str
    head: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The step that failed, and its error."""

    step: Step
    error: OSError


class Files(Protocol):
    """The system calls that the steps need."""

    def write_new(self, path: str, data: pa.Buffer | bytes, *, sync: bool) -> None: ...
    def sync_file(self, path: str) -> None: ...
    def sync_folder(self, path: str) -> None: ...
    def link(self, source: str, target: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...


def publish_in_steps(files: Files, wanted: Publication, *, sync: bool) -> Failed | None:
    """Publish in Python; return what failed, None if nothing did."""
    step = Step.WRITE_FILE
    try:
        files.write_new(wanted.file, wanted.file_data, sync=False)
        failpoint("commit.after_data_write")
        step = Step.WRITE_LOG
        failpoint("commit.before_log_tmp")
        files.write_new(wanted.temp, wanted.log, sync=False)
        step = Step.SYNC
        if sync:
            files.sync_file(wanted.file)
            files.sync_folder(os.path.dirname(wanted.file))
            failpoint("commit.after_data_fsync")
            files.sync_file(wanted.temp)
        failpoint("commit.after_log_fsync")
        step = Step.LINK
        files.link(wanted.temp, wanted.name)
    except OSError as error:
        return Failed(step, error)
    failpoint("commit.after_link")
    try:
        files.rename(wanted.temp, wanted.head)
        if sync:
            files.sync_folder(os.path.dirname(wanted.name))
    except OSError as error:
        return Failed(Step.SETTLE, error)
    return None
