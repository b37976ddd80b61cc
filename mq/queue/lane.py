"""One partition as one group sees it: what is in flight, and how far the group's offset may move.

    offset     0        32       64       96
               | DONE   | HELD   | STORED | HELD   |
               ^committed = 32                     ^ position of the next pop

Checkpoints queue in the order of their pops. The offset moves over those that are stored or finished, and stops at the
first that only memory knows (SPEC POP-14): a crash forgets that one and all behind it that only memory knows, and
their messages are popped again. What was stored above the committed offset is passed over then (`covered`).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import Final

from mq.offset_ranges import OffsetRanges
from mq.queue.checkpoint import Checkpoint, LaneKey, Pop, Span
from mq.queue.checkpoint_state import CheckpointState

__all__ = ["Held", "HeldState", "Lane"]


class HeldState(enum.Enum):
    """Where a checkpoint is."""

    HELD = "held"  #: only in memory; its acknowledgements meet it here
    LEAVING = "leaving"  #: being stored; acknowledgements go to the log
    STORED = "stored"  #: in the log; memory only remembers which of its messages are done
    DONE = "done"  #: all its messages are acknowledged or taken over

    def to(self, state: HeldState) -> HeldState:
        """`state`, if it may follow this one."""
        assert state in _NEXT[self], f"a checkpoint does not go from {self.value} to {state.value}"
        return state


_NEXT: Final[dict[HeldState, frozenset[HeldState]]] = {
    # A store that failed for certain puts the checkpoint back into memory only.
    HeldState.HELD: frozenset({HeldState.LEAVING, HeldState.DONE}),
    HeldState.LEAVING: frozenset({HeldState.STORED, HeldState.HELD}),
    HeldState.STORED: frozenset({HeldState.DONE}),
    HeldState.DONE: frozenset(),
}
_STORED: Final = HeldState.STORED
_DONE: Final = HeldState.DONE


class Held:
    """A checkpoint in memory. Changed by `Lane` and `Buffer` only; compared by identity."""

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
        #: What handles call it by, in its lane: where it begins, and when it was popped.
        self.key = (span.start_offset, pop.pop_time_ms)
        self.full = (1 << span.num) - 1
        #: Handles of earlier tenures mean another checkpoint that happened to be popped at the same time.
        self.tenure = lane.tenure
        #: The group's offset when this checkpoint and all before it may be passed.
        self.next_offset = next_offset
        self.state = state
        #: Bits of messages that are acknowledged or taken over.
        self.spent = 0
        #: Of these, the ones taken over: their handles are dead (SPEC POP-9).
        self.replaced = 0
        #: Bits of acknowledgements and changes that are being stored.
        self.pending = 0
        #: Of these, the ones that a newer checkpoint is about to take over.
        self.changing = 0
        #: Its place in the due times.
        self.bucket = 0
        #: Whether it stands in the queue of its lane.
        self.queued = True

    def checkpoint(self) -> Checkpoint:
        """The record for the revive log, with the acknowledgements so far; what was taken over has its own record."""
        return Checkpoint(pop=self.pop, span=self.span, bit_map=self.spent & ~self.replaced)


class Lane:
    """The in-flight state of one group in one partition, in one epoch (SPEC POP-18). Compared by identity.

    A *tenure* is one process serving the broker, from when it took it until it ends or another takes it, and has a
    number that only grows. What was popped in this tenure memory knows until it is finished; what was popped before it
    only as far as the tables do. Times cannot tell the two apart: the clock of before may have been ahead.
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
        #: The group's offset as far as it may be stored.
        self.committed = committed
        #: Where the pops that memory knows have come to.
        self.latest = committed
        #: Checkpoints in memory only, for the limits.
        self.held_count = 0
        #: Checkpoints in order of pop; the first one is what the committed offset waits for.
        self.queue: deque[Held] = deque()
        #: Everything that can still be acknowledged or changed, what is finished but still queued, and finished
        #: checkpoints of which a message was taken over, until they expire.
        self.live: dict[tuple[int, int], Held] = {}
        #: Whose time is over, and of which not everything is known to be delivered again (SPEC POP-11).
        self.overdue: dict[tuple[int, int], Held] = {}
        #: Offsets above the committed one whose checkpoints were stored before a restart.
        self.covered = OffsetRanges()

    def next_read(self) -> tuple[int, int | None]:
        """Where the next pop reads, and the offset before which it must stop if there is one (SPEC POP-7)."""
        high = self.covered.gap_from(self.latest)
        if high > self.latest:
            self.pass_over(high)
        self.covered.drop_below(self.latest)
        return self.latest, self.covered.next_from(self.latest)

    def pass_over(self, next_offset: int) -> None:
        """Everything up to `next_offset` needs no delivery: filtered out (SPEC CONS-3), or dealt with before."""
        assert next_offset >= self.latest, "pops do not go back"
        self.latest = next_offset
        if self.queue:
            marker = Held(self, _NOBODY, _NOTHING, next_offset, _DONE)
            self.queue.append(marker)
        else:
            self.committed = next_offset

    @property
    def in_flight(self) -> int:
        """Messages that are given away and not done."""
        return sum((held.full & ~held.spent).bit_count() for held in self.live.values())

    @property
    def waiting(self) -> int:
        """Messages that are neither done nor delivered again, though their time is over."""
        return sum((held.full & ~held.spent).bit_count() for held in self.overdue.values())

    def advance(self) -> bool:
        """Move the committed offset over what is stored or finished, in order of pop; False if it stays."""
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
        """A commit from elsewhere: the offset moves forward to it, whatever is in flight below."""
        self.committed = max(self.committed, offset)
        self.latest = max(self.latest, offset)

    def cover(self, done: Iterable[tuple[int, int]], states: Iterable[CheckpointState]) -> None:
        """After a restart: do not pop again what is done, or what stored checkpoints of this epoch hold."""
        for low, high in done:
            self.covered.add(low, high)
        for state in states:
            if state.checkpoint is not None:
                span = state.checkpoint.span
                self.covered.add(span.start_offset, span.last_offset + 1)
        self.covered.drop_below(self.latest)

    def is_over(self, start_offset: int, pop_time_ms: int, tenure: int) -> bool:
        """Whether a checkpoint is finished, given that it is not live: handles of it name that tenure.

        An older one may be finished, or forgotten by a crash and popped again by now: nobody can tell, so its
        acknowledgement must not be believed. Nor may that of an overdue one, when the clock is set back.
        """
        return tenure == self.tenure and (start_offset, pop_time_ms) not in self.overdue


# What a marker in the queue has instead of a pop.
_NOTHING: Final = Span(-1, 0)
_NOBODY: Final = Pop(
    topic="", topic_id="", group="", epoch=0, partition="@", pop_time_ms=-1, invisible_ms=0, revive_queue=0
)
