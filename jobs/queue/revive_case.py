"""A due checkpoint, the partitions that it involves, and the rows that are appended for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltamq.mq.meta.group import Group
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.queue.checkpoint import LaneKey, indexes
from deltamq.mq.queue.revive import (
    DeadLetter,
    Decision,
    DueCheckpoint,
    Later,
    Lost,
    LostRecord,
    Revive,
    Skip,
    StoredCopies,
)
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart
from deltamq.tables.log.point_reads import Picked
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.redelivery_rows import again, with_reason
from deltamq.tables.queue.refs import dead_ref, retry_ref


class Case(msgspec.Struct):
    """A due checkpoint and the decisions about it."""

    due: DueCheckpoint
    stored: StoredCopies
    decisions: list[Decision] = msgspec.field(default_factory=list)

    @property
    def wanted(self) -> list[int]:
        """Offsets of the messages that no destination holds yet."""
        span = self.due.checkpoint.span
        return [span.offset_of(index) for index in indexes(self.due.bits & ~self.stored.bits)]

    def put_off(self, decision: Revive | DeadLetter | Lost, at_ms: int) -> None:
        """Replace a decision that could not be stored, at least not completely, by a later try."""
        if decision in self.decisions:
            self.decisions[self.decisions.index(decision)] = Later(decision.checkpoint, decision.bits, at_ms)


class BatchOutcome(msgspec.Struct):
    """The outcome of a batch; counts are messages."""

    revived: int = 0
    dead: int = 0
    skipped: int = 0
    lost: int = 0
    #: Checkpoints with messages that wait for another try, and the time of this try.
    later: list[tuple[DueCheckpoint, int]] = msgspec.field(default_factory=list)
    #: Checkpoints without such messages.
    settled: list[DueCheckpoint] = msgspec.field(default_factory=list)
    #: Reasons why something could not be read or written, for people.
    troubles: set[str] = msgspec.field(default_factory=set)

    def add(self, other: BatchOutcome) -> None:
        """Add the outcome of another batch."""
        self.revived += other.revived
        self.dead += other.dead
        self.skipped += other.skipped
        self.lost += other.lost
        self.later += other.later
        self.troubles |= other.troubles

    def counts(self) -> dict[str, int]:
        """Return the counts as facts of a run."""
        return {"rows": self.revived + self.dead, "dead": self.dead, "lost": self.lost, "skipped": self.skipped}

    def count(self, decision: Decision) -> None:
        """Add a decision that was carried out."""
        messages = decision.bits.bit_count()
        if isinstance(decision, Revive):
            self.revived += messages
        elif isinstance(decision, DeadLetter):
            self.dead += messages
        elif isinstance(decision, Skip):
            self.skipped += messages
        elif isinstance(decision, Lost):
            self.lost += messages


#: Identifies rows that could not be appended.
Token = tuple[Case, Revive | DeadLetter]


class CaseLane(msgspec.Struct, frozen=True):
    """A lane of the current topic and group, and the partitions that it involves."""

    cluster: str
    lane: LaneKey
    topic: Topic
    group: Group

    @property
    def pop_place(self) -> tuple[str, str]:
        """Topic and partition of messages that were never retried."""
        return self.topic.name, self.lane.partition

    @property
    def source(self) -> PartitionRef:
        if self.lane.retry:
            return self.retry
        return PartitionRef(Space.TOPICS, self.topic.name, self.lane.partition, self.topic.generation)

    @property
    def retry(self) -> PartitionRef:
        return retry_ref(self.group.name, self.group.epoch, self.topic.name, self.topic.generation, self._broker)

    @property
    def dead(self) -> PartitionRef:
        return dead_ref(self.group.name, self.group.epoch, self._broker)

    @property
    def _broker(self) -> str:
        return broker_of(self.lane.partition)


def rows_of(picked: Picked, place: tuple[str, str], tokens: Sequence[Token]) -> pa.RecordBatch:
    """Return the rows of the decisions, one after another."""
    copies = [copy for _, decision in tokens for copy in decision.copies()]
    places = picked.places(np.fromiter((copy.offset for copy in copies), dtype=np.int64, count=len(copies)))
    taken = picked.rows if _is_all(places, picked) else picked.rows.take(pa.array(places))
    rows = again(taken, *place, [copy.reconsume_times for copy in copies])
    if isinstance(tokens[0][1], DeadLetter):
        reasons = [
            dead.reason for _, dead in tokens if isinstance(dead, DeadLetter) for _ in range(dead.bits.bit_count())
        ]
        rows = with_reason(rows, reasons)
    return rows


def _is_all(places: npt.NDArray[np.integer[Any]], picked: Picked) -> bool:
    return len(places) == picked.rows.num_rows and bool((np.diff(places) == 1).all())


def parts_of(tokens: Sequence[Token]) -> tuple[list[RowsPart], list[Token]]:
    """Return the requests to append, and the decision behind each."""
    requests = [(request, token) for token in tokens for request in token[1].requests()]
    parts = [
        RowsPart(request.messages, ProducerStamp(request.producer_id, request.producer_seq, None, request.messages))
        for request, _ in requests
    ]
    return parts, [token for _, token in requests]


def lost_record(lost: Lost, now_ms: int) -> LostRecord:
    pop = lost.checkpoint.pop
    ranges = OffsetRanges((offset, offset + 1) for offset in lost.offsets())
    return LostRecord(lane=pop.lane, topic=pop.topic, ranges=tuple(ranges), reason=lost.reason, time_ms=now_ms)
