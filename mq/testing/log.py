"""The durable state of the in-memory queue: messages in partitions, and the tables.

It lives as long as the Python process. `MemoryQueue.crash` keeps it and forgets all other state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from deltamq.mq.meta.group import GroupsState
from deltamq.mq.partitioners import Partitioner, slot_of
from deltamq.mq.producer import Part, ProducerWindow
from deltamq.mq.queue.checkpoint import CheckpointKey, LaneKey
from deltamq.mq.queue.progress import Bounds, Committed
from deltamq.mq.queue.revive import LostReason
from deltamq.mq.queue.revive_log import CheckpointState, Record, fold
from deltamq.mq.routing import Route


class Origin(msgspec.Struct, frozen=True):
    """The place from which a retried, delayed or dead message came."""

    topic: str
    partition: str
    offset: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a partition (SPEC MODEL-2)."""

    body: bytes
    message_id: str
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    deliver_time_ms: int | None = None
    reconsume_times: int = 0
    origin: Origin | None = None
    #: Assigned by the partition.
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
        """Return the bounds, with the offset of a time if one is given."""
        return self.bounds if time_ms is None else replace(self.bounds, time_offset=self.offset_at(time_ms))

    def append(self, rows: Sequence[Row], now_ms: int, *, producer_id: str | None = None, seq: int = 0) -> int:
        """Append the rows unless this request is already stored; return the offset of the first."""
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
        """Return the rows of offsets `[low, high)` that were not removed."""
        return self._rows[max(low, self.min_offset) : high]

    def stored_seqs(self, producer_id: str) -> list[int]:
        """Return the sequence numbers of a producer's requests that are remembered."""
        seen = self._window.seen(producer_id)
        return [] if seen is None else list(seen.parts)

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset that was appended at or after the time."""
        return next(
            (row.offset for row in self._rows[self.min_offset :] if row.append_time_ms >= time_ms), self.end_offset
        )


class MemoryTopic(msgspec.Struct, frozen=True):
    """One life of a topic."""

    name: str
    id: str
    route: Route
    partitioner: Partitioner = "lp"

    def index_of(self, key: str) -> int:
        """Return the index of the partition for messages with `key`."""
        if self.partitioner == "kafka":
            return slot_of(key, "kafka", len(self.route.partitions))
        return self.route.partition_of(key)


class StoredState:
    """All state that survives a crash."""

    def __init__(self) -> None:
        self.topics: dict[str, MemoryTopic] = {}
        #: The number of topics created so far, for their ids.
        self.lives = 0
        #: The number of starts of the service so far.
        self.tenures = 0
        self.groups = GroupsState()
        self.states: dict[CheckpointKey, CheckpointState] = {}
        self.committed: dict[LaneKey, Committed] = {}
        self.lost: dict[tuple[LaneKey, int], LostReason] = {}
        #: Places in the delay partition whose messages were forwarded or dropped, and places of cancelled messages.
        self.delay_ended: set[tuple[str, int]] = set()
        self.cancelled: set[tuple[str, int]] = set()
        self._logs: dict[tuple[object, ...], MemoryLog] = {}

    def log(self, *place: object) -> MemoryLog:
        """Return the partition with this identity; it differs between the lives of a topic or group."""
        return self._logs.setdefault(place, MemoryLog())

    def lane_log(self, lane: LaneKey) -> MemoryLog:
        """Return the partition that the lane's group reads."""
        if not lane.retry:
            return self.log("topic", lane.topic_id, lane.partition)
        return self.log("retry", lane.group, self.groups.group(lane.group).epoch, lane.topic_id, lane.partition)

    def dead_letters(self, group: str) -> MemoryLog:
        """Return the dead letters of the current life of a group."""
        return self.log("dead", group, self.groups.group(group).epoch)

    def record(self, records: Iterable[Record]) -> None:
        """Append to the revive log; the in-memory queue merges at once."""
        self.states = fold(self.states, records)

    def commit(self, lane: LaneKey, committed: Committed) -> None:
        """Append to the offsets log; the in-memory queue merges at once."""
        before = self.committed.get(lane)
        self.committed[lane] = committed if before is None else before.join(committed)

    def lose(self, lane: LaneKey, offsets: Iterable[int], reason: LostReason) -> None:
        """Record messages that retention removed before the group was done with them (SPEC POP-12)."""
        self.lost |= {(lane, offset): reason for offset in offsets}
