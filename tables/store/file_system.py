"""What a store on a local disk asks of the operating system."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import msgspec
import pyarrow as pa


class CommitStep(IntEnum):
    """A step of a commit; from `SETTLE` on the commit exists for all processes."""

    WRITE_FILE = 1
    WRITE_LOG = 2
    SYNC = 3
    LINK = 4
    SETTLE = 5


class Publication(msgspec.Struct, frozen=True):
    """A data file, the commit that names it, and where both go: paths of files in existing folders."""

    file: str
    file_data: pa.Buffer | bytes
    temp: str
    log: bytes
    name: str
    head: str


class Failed(msgspec.Struct, frozen=True):
    """The step that failed, and its error."""

    step: CommitStep
    error: OSError


class FileSystem(Protocol):
    """The system calls whose order durability depends on; a test records them and replays every legal crash."""

    def write_new(self, path: str, data: pa.Buffer | bytes, *, sync: bool) -> None: ...
    def sync_file(self, path: str) -> None: ...
    def sync_folder(self, path: str) -> None: ...
    def link(self, source: str, target: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def make_folder(self, path: str) -> None: ...
    async def publish(self, wanted: Publication, *, sync: bool) -> Failed | None: ...
    def refill(self) -> None: ...
    def close(self) -> None: ...
