"""A lane: one partition as one group sees it, with the messages in flight and the group's committed offset.

    offset     0        32       64       96
               | DONE   | HELD   | STORED | HELD   |
               ^committed = 32                     ^ position of the next pop

Checkpoints queue in the order of their pops. The committed offset moves over checkpoints that are stored or finished,
and stops at the first one that is only in memory (SPEC POP-14). A crash loses all checkpoints that are only in memory,
and their messages are popped again. Checkpoints that were stored above the committed offset are then skipped
(`covered`). The in-memory match (`mq.queue.buffer`) decides what to store; its caller carries these decisions out.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from deltamq.mq.limits import (
    ACK_SETTLE_MS,
    BUCKET_MS,
    BUFFER_CHECKPOINTS_MAX,
    PARTITION_CHECKPOINTS_MAX,
    STAY_BUFFER_MS,
    STAY_BUFFER_TIMEOUT_MS,
    STRAIGHT_TO_LOG_MS,
)
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.queue.checkpoint import Checkpoint, LaneKey, Pop, Span, indexes
from deltamq.mq.queue.revive_log import CheckpointState


class HeldState(enum.Enum):
    """The state of a checkpoint in memory."""

    HELD = "held"  #: only in memory, and so are its acknowledgements
    LEAVING = "leaving"  #: being stored; acknowledgements go to the log
    STORED = "stored"  #: in the log; memory only keeps which of its messages are done
    DONE = "done"  #: all its messages are acknowledged or taken over

    def to(self, state: HeldState) -> HeldState:
        """Return `state`; asserts that it may follow this one."""
        assert state in _NEXT[self], f"a checkpoint does not go from {self.value} to {state.value}"
        return state


_NEXT: Final[dict[HeldState, frozenset[HeldState]]] = {
    # LEAVING back to HELD: the checkpoint was certainly not stored.
    HeldState.HELD: frozenset({HeldState.LEAVING, HeldState.DONE}),
    HeldState.LEAVING: frozenset({HeldState.STORED, HeldState.HELD}),
    HeldState.STORED: frozenset({HeldState.DONE}),
    HeldState.DONE: frozenset(),
}
_STORED: Final = HeldState.STORED
_DONE: Final = HeldState.DONE


class Held:
    """A checkpoint in memory. Only `Lane` and `Buffer` change it; compared by identity."""

    __slots__ = (
        "bucket",
        "changing",
        "full",
        "key",
        "lane",
        "next_offset",
        "pending",
        "pop",
        "queued",
        "replaced",
        "span",
        "spent",
        "state",
        "tenure",
    )

    def __init__(self, lane: Lane, pop: Pop, span: Span, next_offset: int, state: HeldState) -> None:
        self.lane = lane
        self.pop = pop
        self.span = span
        #: Its identity in the lane, as handles name it: start offset and pop time.
        self.key = (span.start_offset, pop.pop_time_ms)
        self.full = (1 << span.num) - 1
        #: The tenure of its pop. A handle of an earlier tenure means another checkpoint with the same key.
        self.tenure = lane.tenure
        #: The group's committed offset once this checkpoint and all before it are stored or finished.
        self.next_offset = next_offset
        self.state = state
        #: Bits of messages that are acknowledged or taken over.
        self.spent = 0
        #: The bits of `spent` that were taken over: their handles have expired (SPEC POP-9).
        self.replaced = 0
        #: Bits of acknowledgements and changes that are being stored.
        self.pending = 0
        #: The bits of `pending` that a newer checkpoint is about to take over.
        self.changing = 0
        #: Its bucket in the due times.
        self.bucket = 0
        #: Whether it is in the queue of its lane.
        self.queued = True

    def checkpoint(self) -> Checkpoint:
        """Return the record for the revive log, with the acknowledgements so far.

        Messages that were taken over have their own record.
        """
        return Checkpoint(pop=self.pop, span=self.span, bit_map=self.spent & ~self.replaced)


class InFlight(NamedTuple):
    """A message that a client holds, or that waits to be delivered again after `visible_ms`."""

    lane: LaneKey
    offset: int
    #: As the client named itself; empty if it did not, or its pop was before a restart.
    client_id: str
    since_ms: int
    visible_ms: int
    attempt: int
    #: Whether it was given back as failed, and no client holds it.
    given_back: bool
    #: Whether it becomes a dead letter after `visible_ms`.
    is_condemned: bool
    epoch: int
    revive_queue: int


class Lane:
    """The in-flight state of one group in one partition, in one epoch (SPEC POP-18). Compared by identity.

    A *tenure* is the time for which one process serves the broker, from the takeover until the process ends or another
    takes the broker over. Its number only grows. Memory holds every checkpoint that was popped in this tenure until it
    is finished, but of earlier tenures only the checkpoints in the tables. Pop times do not distinguish the two,
    because the clock of the previous process may have been ahead.
    """

    __slots__ = (
        "committed",
        "covered",
        "epoch",
        "held_count",
        "key",
        "latest",
        "live",
        "overdue",
        "queue",
        "tenure",
    )

    def __init__(self, key: LaneKey, *, epoch: int, committed: int, tenure: int) -> None:
        self.key = key
        self.epoch = epoch
        self.tenure = tenure
        #: The group's committed offset.
        self.committed = committed
        #: The offset up to which messages were popped or skipped.
        self.latest = committed
        #: The number of checkpoints that are only in memory, for the limits.
        self.held_count = 0
        #: Checkpoints in order of pop; the committed offset waits for the first one.
        self.queue: deque[Held] = deque()
        #: Checkpoints that can still be acknowledged or changed, finished ones that are still queued, and, until they
        #: expire, finished ones of which a message was taken over.
        self.live: dict[tuple[int, int], Held] = {}
        #: Checkpoints whose invisible time has ended, with messages not yet known to be delivered again (SPEC POP-11).
        self.overdue: dict[tuple[int, int], Held] = {}
        #: Offsets above the committed one whose checkpoints were stored before a restart.
        self.covered = OffsetRanges()

    def next_read(self) -> tuple[int, int | None]:
        """Return where the next pop reads, and the offset before which it must stop, if any (SPEC POP-7)."""
        high = self.covered.gap_from(self.latest)
        if high > self.latest:
            self.pass_over(high)
        self.covered.drop_below(self.latest)
        return self.latest, self.covered.next_from(self.latest)

    def pass_over(self, next_offset: int) -> None:
        """Skip the messages up to `next_offset`: filtered out (SPEC CONS-3), or handled before."""
        assert next_offset >= self.latest, "pops do not go back"
        self.latest = next_offset
        if self.queue:
            marker = Held(self, _NO_POP, _NOTHING, next_offset, _DONE)
            self.queue.append(marker)
        else:
            self.committed = next_offset

    @property
    def in_flight(self) -> int:
        """The number of messages that are delivered and not done."""
        return sum((held.full & ~held.spent).bit_count() for held in self.live.values())

    @property
    def waiting(self) -> int:
        """The number of messages whose invisible time has ended and that are neither done nor delivered again."""
        return sum((held.full & ~held.spent).bit_count() for held in self.overdue.values())

    def flights(self) -> Iterator[InFlight]:
        """Yield the messages of `in_flight` and `waiting` (SPEC LOOK-4)."""
        for held in (*self.live.values(), *self.overdue.values()):
            pop = held.pop
            for index in indexes(held.full & ~held.spent):
                offset, attempt = held.span.offset_of(index), held.span.attempt_of(index)
                yield InFlight(
                    self.key,
                    offset,
                    pop.client_id,
                    pop.pop_time_ms,
                    pop.revive_time_ms,
                    attempt,
                    pop.given_back,
                    pop.is_condemned,
                    pop.epoch,
                    pop.revive_queue,
                )

    def advance(self) -> bool:
        """Move the committed offset over stored and finished checkpoints, in order of pop; return whether it moved."""
        before = self.committed
        queue = self.queue
        while queue:
            first = queue[0]
            if first.state is _DONE and not first.replaced:
                self.live.pop(first.key, None)
            elif first.state is not _STORED and first.state is not _DONE:
                break
            queue.popleft().queued = False
            if first.next_offset > self.committed:
                self.committed = first.next_offset
        return self.committed != before

    def commit_to(self, offset: int) -> None:
        """Move the committed offset forward to a commit from elsewhere, even over messages in flight."""
        self.committed = max(self.committed, offset)
        self.latest = max(self.latest, offset)

    def cover(self, done: Iterable[tuple[int, int]], states: Iterable[CheckpointState]) -> None:
        """Exclude messages from pops after a restart: done ones, and ones in stored checkpoints of this epoch."""
        for low, high in done:
            self.covered.add(low, high)
        for state in states:
            if state.checkpoint is not None:
                span = state.checkpoint.span
                self.covered.add(span.start_offset, span.last_offset + 1)
        self.covered.drop_below(self.latest)

    def is_over(self, start_offset: int, pop_time_ms: int, tenure: int) -> bool:
        """Return whether a checkpoint that is not live is finished; `tenure` is the one that its handles name.

        A checkpoint of an earlier tenure is either finished, or was lost in a crash and may have been popped again.
        Memory does not show which, so its acknowledgement is refused. So is one for an overdue checkpoint after the
        clock was set back.
        """
        return tenure == self.tenure and (start_offset, pop_time_ms) not in self.overdue


# Pop and span of a marker in the queue, which stands for skipped messages.
_NOTHING: Final = Span(-1, 0)
_NO_POP: Final = Pop(
    topic="", topic_id="", group="", epoch=0, partition="@", pop_time_ms=-1, invisible_ms=0, revive_queue=0
)


class BufferSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of SPEC POP-13."""

    #: If false, every checkpoint and acknowledgement is stored.
    enabled: bool = True
    stay_ms: int = STAY_BUFFER_MS
    stay_timeout_ms: int = STAY_BUFFER_TIMEOUT_MS
    straight_to_log_ms: int = STRAIGHT_TO_LOG_MS
    checkpoints_max: int = BUFFER_CHECKPOINTS_MAX
    partition_checkpoints_max: int = PARTITION_CHECKPOINTS_MAX
    #: Time after the revive time in which an acknowledgement may still be stored; the revive job waits that long.
    settle_ms: int = ACK_SETTLE_MS

    def __post_init__(self) -> None:
        if self.stay_timeout_ms + BUCKET_MS > self.straight_to_log_ms:
            raise ValueError("straight_to_log_ms is too short: a checkpoint must be able to leave memory in time")


class StoreCheckpoint(msgspec.Struct, frozen=True):
    """Append this record to the revive log; then call `stored`, or `store_failed` if it certainly was not stored.

    While the outcome is unknown, repeat the append: a record that is in the log twice counts once.
    """

    held: Held
    checkpoint: Checkpoint


class Change(msgspec.Struct, frozen=True):
    """Append the checkpoint that takes over one message; then call `changed`, or `change_failed`."""

    held: Held
    bit: int
    checkpoint: Checkpoint


class CommitOffset(msgspec.Struct, frozen=True):
    """Commit the group's offset in the partition; a later commit of the same lane supersedes an earlier one."""

    lane: LaneKey
    epoch: int
    offset: int


class AckResult(NamedTuple):
    """The result of an acknowledgement: the bits that are in neither field are acknowledged."""

    #: Bits to append as an `Ack` record; then call `ack_stored`, or `ack_failed`.
    store: int
    #: Bits to answer with `handle_expired`.
    refused: int
    held: Held | None


#: The type of a partition.
Partition = TypeVar("Partition")

#: One pop in this many takes retried messages first.
_RETRY_FIRST_EVERY: Final = 5


def visits(
    partitions: Sequence[Partition], retries: Sequence[Partition], *, draw: int, as_given: bool = False
) -> list[Partition]:
    """Return the partitions in the order in which a pop visits them until it has enough messages.

    A pop starts at a random partition, so that pops do not crowd at the first. The group's retry partitions come last,
    and with a probability of 1/5 first, so that neither starves. `draw` is a random number. With `as_given`, a pop does
    not start at a random partition: the partitions are segments of one logical queue, the oldest first.

    Ordered pops visit the retry partitions, too: a message that was popped without order and not acknowledged in time
    is found only there (POP-3).
    """
    at = draw // _RETRY_FIRST_EVERY % len(partitions) if partitions and not as_given else 0
    if draw % _RETRY_FIRST_EVERY == 0:
        return [*retries, *partitions[at:], *partitions[:at]]
    return [*partitions[at:], *partitions[:at], *retries]
