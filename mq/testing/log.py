"""What the in-memory twin keeps for good: messages in partitions, and the state that survives a crash.

"For good" is as long as the Python process lives; the point of the division is that `MemoryQueue.crash` forgets all
else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mq.meta import GroupsState
from mq.producer import Part, ProducerWindow
from mq.queue import Bounds, CheckpointKey, CheckpointState, Committed, LaneKey, LostReason, Record, fold
from mq.routing import Route

__all__ = ["MemoryLog", "MemoryTopic", "Origin", "Row", "Tables"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a retried, delayed or dead message came from."""

    topic: str
    partition: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message as a partition holds it (SPEC MODEL-2)."""

    body: bytes
    message_id: str
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    deliver_time_ms: int | None = None
    reconsume_times: int = 0
    origin: Origin | None = None
    #: Given by the partition.
    offset: int = -1
    append_time_ms: int = -1


class MemoryLog:
    """One partition: dense offsets, and each request of a producer stored once (SPEC MODEL-3, SEND-5)."""

    def __init__(self) -> None:
        self.min_offset = 0
        self._rows: list[Row] = []
        self._window = ProducerWindow()

    @property
    def end_offset(self) -> int:
        return len(self._rows)

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.min_offset, self.end_offset)

    def bounds_at(self, time_ms: int | None) -> Bounds:
        """The bounds, and where a time lies in them."""
        return self.bounds if time_ms is None else replace(self.bounds, time_offset=self.offset_at(time_ms))

    def append(self, rows: Sequence[Row], now_ms: int, *, producer_id: str | None = None, seq: int = 0) -> int:
        """Append the rows, unless this request is stored already; return the offset of the first."""
        if producer_id is not None:
            known = self._window.find(producer_id, seq)
            if known is not None:
                return known.base_offset
            self._window.add(
                Part(
                    producer_id=producer_id,
                    seq=seq,
                    base_offset=self.end_offset,
                    count=len(rows),
                    total=len(rows),
                    time_ms=now_ms,
                )
            )
        base = self.end_offset
        self._rows += [replace(row, offset=base + at, append_time_ms=now_ms) for at, row in enumerate(rows)]
        return base

    def read(self, low: int, high: int) -> list[Row]:
        """The rows of offsets `[low, high)` that are still there."""
        return self._rows[max(low, self.min_offset) : high]

    def stored_seqs(self, producer_id: str) -> list[int]:
        """The requests of a producer that are remembered."""
        seen = self._window.seen(producer_id)
        return [] if seen is None else list(seen.parts)

    def offset_at(self, time_ms: int) -> int:
        """The first offset appended at or after the time."""
        return next(
            (row.offset for row in self._rows[self.min_offset :] if row.append_time_ms >= time_ms), self.end_offset
        )


@dataclass(frozen=True, slots=True)
class MemoryTopic:
    """One life of a topic."""

    name: str
    id: str
    route: Route


class Tables:
    """Everything that a crash leaves."""

    def __init__(self) -> None:
        self.topics: dict[str, MemoryTopic] = {}
        #: Lives of topics so far, for their ids.
        self.lives = 0
        #: Lives of the process so far.
        self.tenures = 0
        self.groups = GroupsState()
        self.states: dict[CheckpointKey, CheckpointState] = {}
        self.committed: dict[LaneKey, Committed] = {}
        self.lost: dict[tuple[LaneKey, int], LostReason] = {}
        #: Places in the delay partition that were dealt with, and those whose messages were cancelled.
        self.delay_ended: set[tuple[str, int]] = set()
        self.cancelled: set[tuple[str, int]] = set()
        self._logs: dict[tuple[object, ...], MemoryLog] = {}

    def log(self, *place: object) -> MemoryLog:
        """The partition at a place; a place of an earlier life is another place."""
        return self._logs.setdefault(place, MemoryLog())

    def lane_log(self, lane: LaneKey) -> MemoryLog:
        """What the lane's group reads there."""
        if not lane.retry:
            return self.log("topic", lane.topic_id, lane.partition)
        return self.log("retry", lane.group, self.groups.group(lane.group).epoch, lane.topic_id, lane.partition)

    def dead_letters(self, group: str) -> MemoryLog:
        """The dead letters of the present life of a group."""
        return self.log("dead", group, self.groups.group(group).epoch)

    def record(self, records: Iterable[Record]) -> None:
        """Append to the revive log; the twin merges at once."""
        self.states = fold(self.states, records)

    def commit(self, lane: LaneKey, committed: Committed) -> None:
        """Append to the offsets log; the twin merges at once."""
        before = self.committed.get(lane)
        self.committed[lane] = committed if before is None else before.join(committed)

    def lose(self, lane: LaneKey, offsets: Iterable[int], reason: LostReason) -> None:
        """Record messages that retention took before the group was done with them (SPEC POP-12)."""
        self.lost |= {(lane, offset): reason for offset in offsets}
