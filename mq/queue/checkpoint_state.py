"""What the records of the revive log add up to for one checkpoint: a join, so order and repetition do not matter.

    CK  (7, n=3)          messages 7, 8, 9        bits known to be done when it was written
    ACK (bits 0b010)      message 8               may be seen before its CK, or twice
    CK  (8, replaces 7.1) message 8 again         counts as done in the old one, is open in the new one
    DONE (bits 0b001)     message 7               the revive job has dealt with it

Each record sets bits, and setting bits commutes: this is the state table `state/pop_checkpoints`, whoever merges it and
however often (SPEC POP-11). An acknowledgement without a checkpoint waits without holding up anything (RocketMQ #3443).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mq.queue.checkpoint import Checkpoint, CheckpointKey
from mq.queue.revive_record import Ack, Record

__all__ = ["CheckpointState", "fold", "parts_of"]

States = Mapping[CheckpointKey, "CheckpointState"]


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """One row of `state/pop_checkpoints`."""

    #: None as long as only records about it were seen. Its own bit map is 0 here: `acked` has it.
    checkpoint: Checkpoint | None = None
    #: Acknowledged.
    acked: int = 0
    #: Taken over by a newer checkpoint (SPEC POP-9).
    replaced: int = 0
    #: Delivered again, dead-lettered or given up by the revive job.
    done: int = 0
    #: 0 as long as nothing has told it.
    revive_time_ms: int = 0

    def join(self, other: CheckpointState) -> CheckpointState:
        """Both together: commutative, associative, idempotent."""
        return CheckpointState(
            checkpoint=_either(self.checkpoint, other.checkpoint),
            acked=self.acked | other.acked,
            replaced=self.replaced | other.replaced,
            done=self.done | other.done,
            revive_time_ms=max(self.revive_time_ms, other.revive_time_ms),
        )

    @property
    def open(self) -> int:
        """The bits of messages that are still given away: neither acknowledged nor dealt with."""
        return 0 if self.checkpoint is None else self.checkpoint.span.full & ~(self.acked | self.replaced | self.done)

    def due(self, now_ms: int, settle_ms: int) -> int:
        """The bits of messages that must be delivered again now (SPEC POP-11)."""
        return self.open if now_ms >= self.revive_time_ms + settle_ms else 0

    def may_forget(self, committed: int, now_ms: int, keep_ms: int) -> bool:
        """Whether the row may be cleaned away, given the group's committed offset in the partition.

        A finished checkpoint above the committed offset stays: after a restart it alone says that its messages are
        not to be popped again. `keep_ms` is how long records may still arrive after the revive time.
        """
        if now_ms < self.revive_time_ms + keep_ms:
            return False
        return self.checkpoint is None or (not self.open and self.checkpoint.span.last_offset < committed)


def _either(one: Checkpoint | None, other: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint of both, stored twice when an append's answer was lost: the same one whoever asks."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=_rank)


def _rank(checkpoint: Checkpoint) -> tuple[int, int, str]:
    """Where it lies, known places first; then anything that makes the choice the same for both orders."""
    at = checkpoint.revive_offset
    return (at < 0, at, repr(checkpoint))


def parts_of(record: Record) -> Iterator[tuple[CheckpointKey, CheckpointState]]:
    """What one record adds to which checkpoints: itself, and the one that it replaces a message of."""
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
    """`states` and `records` together; in any order, with any of them repeated, the result is the same."""
    folded = dict(states)
    nothing = CheckpointState()
    for record in records:
        for key, part in parts_of(record):
            folded[key] = folded.get(key, nothing).join(part)
    return folded
