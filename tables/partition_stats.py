"""What an open partition says of itself, and of what was removed from it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PartitionStats", "Removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """What the service shows of a partition. `max_offset` is the next offset to be written."""

    min_offset: int
    max_offset: int
    messages: int
    bytes: int
    files: int
    last_append_time_us: int | None
    location: str
    version: int


@dataclass(frozen=True, slots=True)
class Removed:
    """What retention took away."""

    files: int = 0
    messages: int = 0
    bytes: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.files + other.files, self.messages + other.messages, self.bytes + other.bytes)
