"""Rearrangements of a partition's files: a roll-up replaces many files by one, retention removes the oldest."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from tables.clock import Clock
from tables.delta import DataFile, Encoded, NewCommit, encode_rewrite
from tables.log.publish import Publisher
from tables.log.state import LogState

__all__ = ["Removed", "Rewrite"]


class Rewrite:
    """One rearrangement: its files are stored on construction; `attempt` is called until it is committed or void."""

    def __init__(
        self,
        state: LogState,
        publisher: Publisher,
        clock: Clock,
        adds: Sequence[Encoded],
        removes: Sequence[DataFile],
        *,
        operation: str,
    ) -> None:
        self._state = state
        self._publisher = publisher
        self._adds = adds
        self._removes = removes
        self._operation = operation
        assert _keeps_offsets(adds, removes), f"{state.ref.name}: a {operation} would lose or move offsets"
        self._began_ms = clock.boot_ms()
        for encoded in adds:
            publisher.put(encoded, durable=True)
        self._batch_id = uuid.uuid4().hex
        self._now_ms = clock.wall_us() // 1000

    async def attempt(self) -> bool:
        """Try to commit once, against the newest known state; return False if one of the old files is no longer live.

        The owner of the log holds its append lock.

        Raises
        ------
        LostRace
            Another writer committed first, and the log's state includes the other commit.
        Unknown
            The rearrangement may be committed; calling again is safe.
        """
        self._publisher.sync_earlier()
        if not self._state.are_live(self._removes):
            return False
        oldest = self._state.files[: len(self._removes)]
        assert self._adds or {file.path for file in oldest} == {file.path for file in self._removes}, "it leaves a hole"
        await self._publisher.commit(
            self._encode, self._adds, batch_id=self._batch_id, durable=True, began_ms=self._began_ms
        )
        return True

    def _encode(self, version: int) -> NewCommit:
        return encode_rewrite(
            table_id=self._state.table_id,
            version=version,
            batch_id=self._batch_id,
            operation=self._operation,
            adds=[encoded.file for encoded in self._adds],
            removes=self._removes,
            data_change=not self._adds,
            now_ms=self._now_ms,
        )


def _keeps_offsets(adds: Sequence[Encoded], removes: Sequence[DataFile]) -> bool:
    """Return whether both are adjacent files, and the new files, if there are any, hold the offsets of the old ones."""
    added = [(one.file.start, one.file.end) for one in adds]
    removed = [(file.start, file.end) for file in removes]
    if not removed or any(one[1] != other[0] for files in (added, removed) for one, other in pairwise(files)):
        return False
    return not added or (added[0][0], added[-1][1]) == (removed[0][0], removed[-1][1])


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
