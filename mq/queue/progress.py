"""The progress of a group in a partition: where it starts, its committed offset, its next pop, and its lag.

The committed offset only grows, except at an explicit reset, and a reset begins a new epoch (SPEC CONS-4, POP-18). So
the progress is the greatest (epoch, offset) that was ever recorded: records may come in any order, twice, and from a
service that does not know of the reset yet.

    (epoch 1, 120)   (epoch 1, 80)   (epoch 2, 0)   (epoch 1, 150)     -->   (epoch 2, 0)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from deltamq.mq.errors import Conflict, Refused, Unprocessable
from deltamq.mq.limits import COMMIT_METADATA_BYTES_MAX
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.request_values import zoned_time
from deltamq.mq.stored_json import corrupt_when_damaged, to_json

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Prefix of the ids of producers that commit offsets from outside the broker's service: streaming queries.
STREAM_PRODUCER_PREFIX: Final = "stream/"


class StartKind(enum.Enum):
    """Where a group begins in a partition in which it has no committed offset (SPEC CONS-2)."""

    FIRST = "first"  #: at the first message that is stored
    LAST = "last"  #: at the end
    TIME = "time"  #: at the first message appended at or after a time


class Start(msgspec.Struct, frozen=True):
    """A place to begin at, or the target of a reset."""

    kind: StartKind = StartKind.FIRST
    time_ms: int | None = None

    def to_json(self) -> str:
        """Return the form that the API uses: `first`, `last`, or an RFC 3339 time."""
        if self.time_ms is None:
            return self.kind.value
        return (_EPOCH + timedelta(milliseconds=self.time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @classmethod
    def from_json(cls, value: object, *, field: str) -> Start:
        """Return the start that `to_json` wrote; other values are refused with an error that names `field`."""
        if not isinstance(value, str):
            raise Refused(f"{field} must be a string", code="invalid_type", field=field)
        if value in (StartKind.FIRST.value, StartKind.LAST.value):
            return cls(StartKind(value))
        moment = zoned_time(value)
        if moment is None:
            raise Unprocessable(f"{field} must be first, last, or an RFC 3339 time with a zone", field=field)
        return cls(StartKind.TIME, (moment - _EPOCH) // timedelta(milliseconds=1))


class Bounds(msgspec.Struct, frozen=True):
    """The offsets `[min_offset, end_offset)` that a partition holds, and the offset of the time of a `Start`."""

    min_offset: int
    end_offset: int
    time_offset: int | None = None


def first_position(start: Start, bounds: Bounds, *, pop: bool) -> int:
    """Return where a group begins in a partition that it never consumed.

    With `last`, a pop gets the last stored message, and the group commits that start (SPEC POP-7); a pull begins at the
    end.
    """
    if start.kind is StartKind.LAST:
        return max(bounds.min_offset, bounds.end_offset - 1) if pop else bounds.end_offset
    return reset_position(start, bounds)


def reset_position(target: Start | int, bounds: Bounds) -> int:
    """Return the offset of a reset to `target`, limited to the offsets that the partition holds."""
    if isinstance(target, int):
        offset = target
    elif target.kind is StartKind.FIRST:
        offset = bounds.min_offset
    elif target.kind is StartKind.LAST:
        offset = bounds.end_offset
    else:
        assert bounds.time_offset is not None, "the caller must look up the offset of the time"
        offset = bounds.time_offset
    return min(max(offset, bounds.min_offset), bounds.end_offset)


class Delivered(NamedTuple):
    """The newest lease of a message of an ordered lane that was delivered and is not done. Greater is later."""

    offset: int
    #: The number of deliveries; a change of the invisible time does not count, but has a later pop time.
    attempt: int
    pop_time_ms: int
    #: When the message may be delivered again; 0 without a lease: an exclusive client tries it in place (`tried`).
    visible_ms: int

    @classmethod
    def tried(cls, offset: int, attempts: int, now_ms: int) -> Delivered:
        """Return a message, not done, that clients of an exclusive group have tried `attempts` times (SPEC ORDER-8)."""
        return cls(offset, attempts, now_ms, 0)

    @property
    def is_leased(self) -> bool:
        """Whether the message has a lease, because it was popped."""
        return self.visible_ms > 0


class CommitNote(NamedTuple):
    """The metadata text of the commit of an offset. Greater is later: a text is replaced at the same offset, too."""

    number: int
    #: Empty after a commit of the same offset without a text.
    text: str


class Committed(msgspec.Struct, frozen=True):
    """A group's progress in a partition; greater is later.

    Only ordered groups use `done` and `delivered` (SPEC POP-16, POP-17): the ranges above the committed offset that are
    done, and the leases of messages that were delivered and are not done. In an exclusive group, `delivered` holds how
    often the message at the committed offset was tried (ORDER-8).

    `note` belongs to the commit of exactly `offset` (KAFKA-13): it is gone as soon as the group is further.
    """

    epoch: int
    offset: int
    done: tuple[tuple[int, int], ...] = ()
    delivered: tuple[Delivered, ...] = ()
    note: CommitNote | None = None

    @property
    def metadata(self) -> str:
        """The metadata text of the committed offset; empty if it has none."""
        return "" if self.note is None else self.note.text

    @property
    def attempts(self) -> int:
        """How often the message at the committed offset was tried in place."""
        first = self.delivered[0] if self.delivered else None
        return first.attempt if first is not None and first.offset == self.offset and not first.is_leased else 0

    def join(self, other: Committed) -> Committed:
        """Return the progress in the later epoch, the union of both within one. Order and repetition do not matter."""
        epoch = max(self.epoch, other.epoch)
        parts = [part for part in (self, other) if part.epoch == epoch]
        done = OffsetRanges(ranges for part in parts for ranges in part.done)
        offset = done.gap_from(max(part.offset for part in parts))
        done.drop_below(offset)
        newest: dict[int, Delivered] = {}
        for lease in (lease for part in parts for lease in part.delivered):
            if lease.offset >= offset and lease.offset not in done:
                newest[lease.offset] = max(lease, newest.get(lease.offset, lease))
        ranges, leases = tuple(done), tuple(sorted(newest.values()))
        if self.note is other.note is None:  # as nearly all
            return Committed(epoch, offset, ranges, leases)
        notes = [part.note for part in parts if part.note is not None and part.offset == offset]
        return Committed(epoch, offset, ranges, leases, max(notes, default=None))


class _StoredNote(msgspec.Struct, gc=False):
    number: int
    text: str


class _Stored(msgspec.Struct, gc=False):
    """Only ordered groups have `done` and `delivered`; only commits with a text, or that replace one, have a `note`."""

    group: str
    topic: str
    topic_id: str
    retry: bool
    partition: str
    epoch: int
    offset: int
    done: tuple[tuple[int, int], ...] | UnsetType = UNSET
    delivered: tuple[Delivered, ...] | UnsetType = UNSET
    note: _StoredNote | UnsetType = UNSET


_read: Final = msgspec.json.Decoder(_Stored).decode


class OffsetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A commit as a record of the offsets log; merged into `state/consumer_offsets`."""

    lane: LaneKey
    topic: str
    committed: Committed

    def to_json(self) -> bytes:
        (topic_id, group, retry, partition), committed = self.lane, self.committed
        stored = _Stored(group, self.topic, topic_id, retry, partition, committed.epoch, committed.offset)
        if committed.done or committed.delivered:
            stored.done, stored.delivered = committed.done, committed.delivered
        if committed.note is not None:
            stored.note = _StoredNote(*committed.note)
        return to_json(stored)

    @classmethod
    def from_json(cls, body: bytes) -> OffsetRecord:
        """Return the record that `to_json` wrote; raises `Corrupt` (`offset_record_corrupt`) when it is damaged."""
        with corrupt_when_damaged("a stored offset commit", code="offset_record_corrupt"):
            stored = _read(body)
        note = None if stored.note is UNSET else CommitNote(stored.note.number, stored.note.text)
        return cls(
            lane=LaneKey(stored.topic_id, stored.group, stored.retry, stored.partition),
            topic=stored.topic,
            committed=Committed(stored.epoch, stored.offset, stored.done or (), stored.delivered or (), note),
        )


def committed_of(known: Mapping[LaneKey, Committed], records: Iterable[OffsetRecord]) -> dict[LaneKey, Committed]:
    """Return `known` with `records` joined in; their order and repetitions do not change the result."""
    folded = dict(known)
    for record in records:
        before = folded.get(record.lane)
        folded[record.lane] = record.committed if before is None else before.join(record.committed)
    return folded


def decide_commit(
    present: Committed,
    offset: int,
    bounds: Bounds,
    *,
    attempts: int = 0,
    now_ms: int = 0,
    metadata: str = "",
) -> Committed:
    """Return the progress after a client's commit (API `PUT .../offsets`), which never moves it back (SPEC CONS-4).

    `attempts` is how often the message at `offset` was tried in place, until `now_ms`. `metadata` is its text; an empty
    one is stored only if it replaces another text of the same offset.

    Raises
    ------
    Unprocessable
        `offset_out_of_range` for an offset behind the end of the partition, unless the group has it already.
    """
    if not 0 <= offset <= max(bounds.end_offset, present.offset):
        raise Unprocessable(
            f"offset {offset} is not between 0 and the end offset {bounds.end_offset}",
            code="offset_out_of_range",
            field="offsets",
            extra={"end_offset": bounds.end_offset},
        )
    tried = (Delivered.tried(offset, attempts, now_ms),) if attempts else ()
    note = _noted(present, offset, metadata)
    return present.join(Committed(present.epoch, offset, (), tried, note))


def _noted(present: Committed, offset: int, metadata: str) -> CommitNote | None:
    """Return the note of a commit; None if it has no text and replaces none."""
    before = present.note if present.offset == offset else None
    if before is None:
        return CommitNote(1, metadata) if metadata else None
    return before if metadata == before.text else CommitNote(before.number + 1, metadata)


def check_metadata(partition: str, metadata: str) -> None:
    """Refuse a metadata text that is too large to be stored with an offset (SPEC KAFKA-13).

    Raises
    ------
    Unprocessable
        `commit_metadata_too_large`, naming the partition.
    """
    if not is_storable_metadata(metadata):
        raise Unprocessable(
            f"metadata.{partition}: {_utf8_bytes(metadata)} bytes in UTF-8 are more than {COMMIT_METADATA_BYTES_MAX}",
            code="commit_metadata_too_large",
            field=f"metadata.{partition}",
            extra={"limit": COMMIT_METADATA_BYTES_MAX},
        )


def is_storable_metadata(metadata: str) -> bool:
    """Return whether a metadata text is small enough to be stored with an offset (SPEC KAFKA-13)."""
    return len(metadata) * 4 <= COMMIT_METADATA_BYTES_MAX or _utf8_bytes(metadata) <= COMMIT_METADATA_BYTES_MAX


def _utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def check_epoch(partition: str, meant: int | None, present: int) -> None:
    """Refuse a commit by a client that read the group's offsets before they were reset (SPEC POP-18).

    `meant` is the epoch that the client read with the offsets; None if the request does not name one.

    Raises
    ------
    Conflict
        `epoch_over`: progress from before a reset does not count after it.
    """
    if meant is not None and meant < present:
        raise Conflict(
            f"{partition}: the group's offsets were reset (epoch {present}) after they were read (epoch {meant})",
            code="epoch_over",
            field=f"epochs.{partition}",
            extra={"epoch": present},
        )


class Position(msgspec.Struct, frozen=True):
    """The offset to read from, and the ranges below it that retention removed before the group consumed them."""

    offset: int
    lost: tuple[tuple[int, int], ...]

    def lost_offsets(self) -> Iterator[int]:
        """Return the lost offsets one by one."""
        return chain.from_iterable(range(low, high) for low, high in self.lost)


def read_position(offset: int, bounds: Bounds, done: OffsetRanges) -> Position:
    """Move `offset` past the messages that retention has removed; the caller must record `lost` (POP-12).

    `done` are the offsets that the group is done with, or that stored checkpoints hold: these are not lost.
    """
    at = max(offset, bounds.min_offset)
    return Position(at, tuple(done.gaps(offset, at)))


def lag_messages(committed: int | None, bounds: Bounds) -> int:
    """Return how many stored messages the group has not committed; all of them if it never consumed."""
    return max(0, bounds.end_offset - max(committed or 0, bounds.min_offset))
