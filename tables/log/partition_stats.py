"""Statistics of an open partition, and of what was removed from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tables.delta import DataFile, Snapshot

__all__ = ["PartitionStats", "Removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """The statistics that the service shows of a partition. `max_offset` is the next offset to be written."""

    min_offset: int
    max_offset: int
    messages: int
    bytes: int
    files: int
    last_append_time_us: int | None
    location: str
    version: int

    @classmethod
    def of(cls, snapshot: Snapshot, *, bytes: int, location: str) -> Self:
        """Return the statistics of a snapshot, without touching the store."""
        files = snapshot.files
        return cls(
            min_offset=snapshot.min_offset,
            max_offset=snapshot.end_offset,
            messages=snapshot.end_offset - snapshot.min_offset,
            bytes=bytes,
            files=len(files),
            last_append_time_us=files[-1].append_max_us if files else None,
            location=location,
            version=snapshot.version,
        )


@dataclass(frozen=True, slots=True)
class Removed:
    """Counts of what retention removed."""

    files: int = 0
    messages: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> Self:
        """Return the counts of these files."""
        return cls(len(files), sum(file.count for file in files), sum(file.size for file in files))

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.files + other.files, self.messages + other.messages, self.bytes + other.bytes)
