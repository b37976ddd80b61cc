"""The results of sends: where messages are stored, and the error of a batch that was stored only in part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from deltamq.mq.errors import DeltaMQError, Unknown

#: The offset of a message in a logical queue that is moving to another broker: stored, its offset not decided yet.
_UNDECIDED: Final = -1


def offset_after(base_offset: int, count: int) -> int:
    """Return the offset `count` messages after `base_offset`; undecided (-1) if that is."""
    return base_offset + count if base_offset != _UNDECIDED else _UNDECIDED


class Sent(msgspec.Struct, frozen=True, gc=False):
    """One stored message: partition `NAME@BROKER` and offset.

    The offset is -1 while it is not decided: the message's logical queue is moving to another broker (SPEC STATIC-10).
    `duplicate`: an earlier attempt had stored it. `durable`: it was fsynced before the answer.
    """

    partition: str
    offset: int
    duplicate: bool = False
    durable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRange:
    """Messages of one request in one partition: offsets `[base_offset, base_offset + count)`, or -1, see `Sent`.

    `indexes` are their positions in the batch, ascending; None means the whole batch in order. `delayed` messages wait
    there until they are due.
    """

    partition: str
    base_offset: int
    count: int
    duplicate: bool = False
    durable: bool = True
    delayed: bool = False
    indexes: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)

    @property
    def is_undecided(self) -> bool:
        """Whether the messages are stored and have no offsets yet."""
        return self.base_offset == _UNDECIDED

    def offset_of(self, number: int) -> int:
        """Return the offset of the message with this number in the range, from 0; -1 while it is not decided."""
        return offset_after(self.base_offset, number)


@dataclass(frozen=True, slots=True)
class SentBatch:
    """Where the messages of a batch went, in ranges."""

    ranges: tuple[SentRange, ...]

    @property
    def count(self) -> int:
        """Number of stored messages."""
        return sum(r.count for r in self.ranges)

    def __iter__(self) -> Iterator[Sent]:
        """Iterate over `places`."""
        return iter(self.places())

    def places(self) -> list[Sent]:
        """Return the partition and offset of each message, in the order of the batch."""
        placed: list[tuple[int, Sent]] = []
        for r in self.ranges:
            indexes = range(r.count) if r.indexes is None else r.indexes.tolist()
            placed += [
                (index, Sent(r.partition, r.offset_of(n), r.duplicate, r.durable)) for n, index in enumerate(indexes)
            ]
        placed.sort(key=lambda pair: pair[0])
        return [sent for _, sent in placed]

    def per_partition(self) -> dict[str, int]:
        """Return the number of stored messages by partition."""
        counts: dict[str, int] = {}
        for r in self.ranges:
            counts[r.partition] = counts.get(r.partition, 0) + r.count
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Messages of a batch that are not known to be stored: their positions in the batch, and the error."""

    indexes: NDArray[np.int64]
    error: DeltaMQError


class PartlySent(Unknown):
    """A part of the batch is stored; the rest is not, or may not be."""

    code = "partly_sent"

    def __init__(self, sent: SentBatch, failures: Sequence[Failure]) -> None:
        missing = sum(len(f.indexes) for f in failures)
        first = failures[0].error
        super().__init__(f"{sent.count:,} messages are stored, {missing:,} are not known to be: {first.detail}")
        self.sent = sent
        self.failures = tuple(failures)


def summed_up(ranges: Sequence[SentRange], failures: Sequence[Failure]) -> SentBatch:
    """Return the result of a batch, or raise the error that says most about its failures."""
    sent = SentBatch(tuple(ranges))
    if not failures:
        return sent
    if sent.ranges:
        raise PartlySent(sent, failures) from failures[0].error
    unknown = next((f.error for f in failures if isinstance(f.error, Unknown)), None)
    raise unknown or failures[0].error
