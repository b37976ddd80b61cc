"""The state of one checkpoint as a join of its records in the revive log: order and repetition do not matter.

    CK  (7, n=3)          messages 7, 8, 9        bits known to be done when it was written
    ACK (bits 0b010)      message 8               may be seen before its CK, or twice
    CK  (8, replaces 7.1) message 8 again         counts as done in the old one, is open in the new one
    DONE (bits 0b001)     message 7               the revive job has dealt with it

Each record sets bits, and setting bits commutes. So every merge leads to the same state table `state/pop_checkpoints`,
however often it is repeated (SPEC POP-11). An acknowledgement without a checkpoint waits and delays nothing else
(RocketMQ #3443).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey
from deltamq.mq.queue.revive_record import Ack, Record

States = Mapping[CheckpointKey, "CheckpointState"]


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """One row of `state/pop_checkpoints`."""

    #: None while only other records about it were seen. Its own bit map is 0 here; `acked` includes it.
    checkpoint: Checkpoint | None = None
    #: Bits of acknowledged messages.
    acked: int = 0
    #: Bits of messages that a newer checkpoint took over (SPEC POP-9).
    replaced: int = 0
    #: Bits of messages that the revive job delivered again, dead-lettered or gave up.
    done: int = 0
    #: 0 while no record with the time was seen.
    revive_time_ms: int = 0

    def join(self, other: CheckpointState) -> CheckpointState:
        """Return the union of both states: commutative, associative, idempotent."""
        return CheckpointState(
            checkpoint=_either(self.checkpoint, other.checkpoint),
            acked=self.acked | other.acked,
            replaced=self.replaced | other.replaced,
            done=self.done | other.done,
            revive_time_ms=max(self.revive_time_ms, other.revive_time_ms),
        )

    @property
    def open(self) -> int:
        """The bits of messages that are still in flight: not acknowledged, taken over or done."""
        return 0 if self.checkpoint is None else self.checkpoint.span.full & ~(self.acked | self.replaced | self.done)

    def due(self, now_ms: int, settle_ms: int) -> int:
        """Return the bits of messages that must be delivered again now (SPEC POP-11)."""
        return self.open if now_ms >= self.revive_time_ms + settle_ms else 0

    def may_forget(self, committed: int, now_ms: int, keep_ms: int) -> bool:
        """Return whether the row may be removed, given the group's committed offset in the partition.

        A finished checkpoint above the committed offset stays: after a restart, it is the only evidence that its
        messages must not be popped again. `keep_ms` is how long records may still arrive after the revive time.
        """
        if now_ms < self.revive_time_ms + keep_ms:
            return False
        return self.checkpoint is None or (not self.open and self.checkpoint.span.last_offset < committed)


def _either(one: Checkpoint | None, other: Checkpoint | None) -> Checkpoint | None:
    """Return one of the two checkpoints, the same for either order; an append whose answer was lost stores two."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=_rank)


def _rank(checkpoint: Checkpoint) -> tuple[int, int, str]:
    """Return a sort key: by offset, known ones first; then by the text, so that the order is total."""
    at = checkpoint.revive_offset
    return (at < 0, at, repr(checkpoint))


def parts_of(record: Record) -> Iterator[tuple[CheckpointKey, CheckpointState]]:
    """Yield what one record adds to each checkpoint that it concerns: its own, and the one that it takes over from."""
    if not isinstance(record, Checkpoint):
        bits, time_ms = record.bits, record.revive_time_ms
        if isinstance(record, Ack):
            yield record.key, CheckpointState(acked=bits, revive_time_ms=time_ms)
        else:
            yield record.key, CheckpointState(done=bits, revive_time_ms=time_ms)
        return
    itself = replace(record, bit_map=0)
    yield record.key, CheckpointState(checkpoint=itself, acked=record.bit_map, revive_time_ms=record.revive_time_ms)
    if record.replaces is not None:
        yield record.replaces.key, CheckpointState(replaced=record.replaces.bits)


def fold(states: States, records: Iterable[Record]) -> dict[CheckpointKey, CheckpointState]:
    """Return `states` with `records` joined in; their order and repetitions do not change the result."""
    folded = dict(states)
    nothing = CheckpointState()
    for record in records:
        for key, part in parts_of(record):
            folded[key] = folded.get(key, nothing).join(part)
    return folded
