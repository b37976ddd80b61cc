"""How far a group is in a partition: where it starts, what it has committed, where it pops next, how far behind it is.

The committed offset only grows, but for an explicit reset, and a reset is a new epoch (SPEC CONS-4, POP-18). So the
state of a partition is the greatest (epoch, offset) that was ever recorded: records may come in any order, twice, and
from a service that does not know of the reset yet.

    (epoch 1, 120)   (epoch 1, 80)   (epoch 2, 0)   (epoch 1, 150)     -->   (epoch 2, 0)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from mq.errors import Conflict, Refused, Unprocessable
from mq.offset_ranges import OffsetRanges
from mq.queue.checkpoint import LaneKey
from mq.request_values import zoned_time
from mq.stored_json import corrupt_when_damaged, to_json

__all__ = [
    "STREAM_PRODUCER_PREFIX",
    "Bounds",
    "Committed",
    "Delivered",
    "OffsetRecord",
    "Position",
    "Start",
    "StartKind",
    "check_epoch",
    "committed_of",
    "decide_commit",
    "first_position",
    "lag_messages",
    "read_position",
    "reset_position",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: How the producers begin that commit offsets beside the service that serves the broker: streaming queries.
STREAM_PRODUCER_PREFIX: Final = "stream/"


class StartKind(enum.Enum):
    """Where a group begins in a partition in which it has no committed offset (SPEC CONS-2)."""

    FIRST = "first"  #: at the first message that is still stored
    LAST = "last"  #: at the end
    TIME = "time"  #: at the first message appended at or after a time


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: also the target of a reset."""

    kind: StartKind = StartKind.FIRST
    time_ms: int | None = None

    def to_json(self) -> str:
        """As the API writes it: `first`, `last`, or an RFC 3339 time."""
        if self.time_ms is None:
            return self.kind.value
        return (_EPOCH + timedelta(milliseconds=self.time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @classmethod
    def from_json(cls, value: object, *, field: str) -> Start:
        """What `to_json` writes; other values are refused, naming `field`."""
        if not isinstance(value, str):
            raise Refused(f"{field} must be text", code="invalid_type", field=field)
        if value in (StartKind.FIRST.value, StartKind.LAST.value):
            return cls(StartKind(value))
        moment = zoned_time(value)
        if moment is None:
            raise Unprocessable(f"{field} must be first, last, or an RFC 3339 time with its zone", field=field)
        return cls(StartKind.TIME, (moment - _EPOCH) // timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition holds: offsets `[min_offset, end_offset)`, and where the time of a `Start` lies in it."""

    min_offset: int
    end_offset: int
    time_offset: int | None = None


def first_position(start: Start, bounds: Bounds, *, pop: bool) -> int:
    """Where a group begins that never consumed this partition.

    A pop with `last` gets the last message that is there, and the group commits that start (SPEC POP-7); a pull with
    `last` begins at the end.
    """
    if start.kind is StartKind.LAST:
        return max(bounds.min_offset, bounds.end_offset - 1) if pop else bounds.end_offset
    return reset_position(start, bounds)


def reset_position(target: Start | int, bounds: Bounds) -> int:
    """Where a reset to `target` puts the group: inside what the partition holds."""
    if isinstance(target, int):
        offset = target
    elif target.kind is StartKind.FIRST:
        offset = bounds.min_offset
    elif target.kind is StartKind.LAST:
        offset = bounds.end_offset
    else:
        assert bounds.time_offset is not None, "the caller looks the time up"
        offset = bounds.time_offset
    return min(max(offset, bounds.min_offset), bounds.end_offset)


class Delivered(NamedTuple):
    """A message of an ordered lane that was delivered and is not done: its newest lease. Greater is later."""

    offset: int
    #: How often it was delivered; a change of the invisible time is no delivery, but has a later pop time.
    attempt: int
    pop_time_ms: int
    #: When it may be delivered again; 0 where no lease says it: an exclusive client tries it in place (`tried`).
    visible_ms: int

    @classmethod
    def tried(cls, offset: int, attempts: int, now_ms: int) -> Delivered:
        """A message that clients of an exclusive group have tried so often, and that is not done (SPEC ORDER-8)."""
        return cls(offset, attempts, now_ms, 0)

    @property
    def is_leased(self) -> bool:
        """Whether it was popped, so that its lease says what becomes of it."""
        return self.visible_ms > 0


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's progress in a partition; greater is later.

    `done` and `delivered` are used by ordered groups alone (SPEC POP-16, POP-17): offsets above the committed one that
    are finished, and the leases of those that were delivered and are not. Of an exclusive group, `delivered` tells how
    often the message at the committed offset was tried (ORDER-8).
    """

    epoch: int
    offset: int
    done: tuple[tuple[int, int], ...] = ()
    delivered: tuple[Delivered, ...] = ()

    @property
    def attempts(self) -> int:
        """How often the message at the committed offset was tried in place."""
        first = self.delivered[0] if self.delivered else None
        return first.attempt if first is not None and first.offset == self.offset and not first.is_leased else 0

    def join(self, other: Committed) -> Committed:
        """The later of both epochs; within one epoch all progress of both. Order and repetition do not matter."""
        epoch = max(self.epoch, other.epoch)
        parts = [part for part in (self, other) if part.epoch == epoch]
        done = OffsetRanges(ranges for part in parts for ranges in part.done)
        offset = done.gap_from(max(part.offset for part in parts))
        done.drop_below(offset)
        newest: dict[int, Delivered] = {}
        for one in (one for part in parts for one in part.delivered):
            if one.offset >= offset and one.offset not in done:
                newest[one.offset] = max(one, newest.get(one.offset, one))
        return Committed(epoch, offset, tuple(done), tuple(sorted(newest.values())))


class _Stored(msgspec.Struct, gc=False):
    """A commit as it is stored; only ordered groups have what is behind `offset`, both or neither."""

    group: str
    topic: str
    topic_id: str
    retry: bool
    partition: str
    epoch: int
    offset: int
    done: tuple[tuple[int, int], ...] | UnsetType = UNSET
    delivered: tuple[Delivered, ...] | UnsetType = UNSET


_read: Final = msgspec.json.Decoder(_Stored).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """A commit as a record of the offsets log; merged into `state/consumer_offsets`."""

    lane: LaneKey
    topic: str
    committed: Committed

    def to_json(self) -> bytes:
        (topic_id, group, retry, partition), committed = self.lane, self.committed
        stored = _Stored(group, self.topic, topic_id, retry, partition, committed.epoch, committed.offset)
        if committed.done or committed.delivered:
            stored.done, stored.delivered = committed.done, committed.delivered
        return to_json(stored)

    @classmethod
    def from_json(cls, body: bytes) -> OffsetRecord:
        """The record that `to_json` wrote; raises `Corrupt` (`offset_record_corrupt`) when it is damaged."""
        with corrupt_when_damaged("a stored offset commit", code="offset_record_corrupt"):
            stored = _read(body)
        return cls(
            lane=LaneKey(stored.topic_id, stored.group, stored.retry, stored.partition),
            topic=stored.topic,
            committed=Committed(stored.epoch, stored.offset, stored.done or (), stored.delivered or ()),
        )


def committed_of(known: Mapping[LaneKey, Committed], records: Iterable[OffsetRecord]) -> dict[LaneKey, Committed]:
    """`known` and `records` together; in any order, with any of them repeated, the result is the same."""
    folded = dict(known)
    for record in records:
        before = folded.get(record.lane)
        folded[record.lane] = record.committed if before is None else before.join(record.committed)
    return folded


def decide_commit(present: Committed, offset: int, bounds: Bounds, *, attempts: int = 0, now_ms: int = 0) -> Committed:
    """A client's own commit (API `PUT .../offsets`): moves forward, or leaves things as they are (SPEC CONS-4).

    `attempts` is how often the message at `offset` was tried in place, until `now_ms`.

    Raises
    ------
    Unprocessable
        `offset_out_of_range` for an offset that the partition does not have yet.
    """
    if not 0 <= offset <= bounds.end_offset:
        raise Unprocessable(
            f"offset {offset} is not between 0 and the end offset {bounds.end_offset}",
            code="offset_out_of_range",
            field="offsets",
            extra={"end_offset": bounds.end_offset},
        )
    tried = (Delivered.tried(offset, attempts, now_ms),) if attempts else ()
    return present.join(Committed(present.epoch, offset, (), tried))


def check_epoch(partition: str, meant: int | None, present: int) -> None:
    """Refuse a commit of somebody who read where the group is before its offsets were reset (SPEC POP-18).

    `meant` is the epoch that was read with the offsets; None where nobody says it.

    Raises
    ------
    Conflict
        `epoch_over`: what was consumed before the reset says nothing about what the group wants now.
    """
    if meant is not None and meant < present:
        raise Conflict(
            f"{partition}: the group's offsets were reset (epoch {present}) after they were read (epoch {meant})",
            code="epoch_over",
            field=f"epochs.{partition}",
            extra={"epoch": present},
        )


@dataclass(frozen=True, slots=True)
class Position:
    """Where to read, and the messages before it that retention removed before the group could have them, as ranges."""

    offset: int
    lost: tuple[tuple[int, int], ...]

    def lost_offsets(self) -> Iterator[int]:
        """The same one by one."""
        return chain.from_iterable(range(low, high) for low, high in self.lost)


def read_position(offset: int, bounds: Bounds, done: OffsetRanges) -> Position:
    """Move `offset` past what retention has removed; `lost` is to be recorded, never skipped silently (POP-12).

    What the group is `done` with, or has in checkpoints that are stored, is not lost with it.
    """
    at = max(offset, bounds.min_offset)
    return Position(at, tuple(done.gaps(offset, at)))


def lag_messages(committed: int | None, bounds: Bounds) -> int:
    """How many stored messages the group has not committed; all of them when it never consumed."""
    return max(0, bounds.end_offset - max(committed or 0, bounds.min_offset))
