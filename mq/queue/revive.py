"""What is due, and what becomes of each message (SPEC POP-11, POP-12).

    states of checkpoints --due--> not acknowledged --decide_redelivery--> Revive | DeadLetter | Skip | Lost | Later

A job may run twice, be killed at any line, and run again: each message ends in one place once. The messages that go to
one place are requests of idempotent producers, named after where the messages lie and numbered with a bit map of them.
So the destination itself says what it already holds, message by message, even when the group's settings have changed
since, and also when another checkpoint has taken a message over that was delivered again already: a lease that was
renewed while this job, whose clock is ahead, called it over (POP-9). Whatever the clocks say, it is delivered once:

    1 read states and logs up to now          4 append each request with its stamp   (a repeated one is stored once)
    2 ask both destinations what they hold     5 append the `Done` record            (a repeated one counts once)
    3 decide

A message that cannot be read stays in its checkpoint for a later run and holds up nothing else.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple

from mq.limits import PRODUCER_REQUESTS_KEPT
from mq.queue.checkpoint import Checkpoint, CheckpointKey, Span, indexes
from mq.queue.checkpoint_state import CheckpointState
from mq.queue.retry import DEFAULT_WAITS_MS, DeadReason
from mq.queue.revive_record import Done
from mq.queue_limits import ACK_SETTLE_MS

__all__ = [
    "REVIVE_PRODUCER_PREFIX",
    "Copy",
    "DeadLetter",
    "Decision",
    "Due",
    "Later",
    "Life",
    "Lost",
    "LostReason",
    "Request",
    "Revive",
    "Skip",
    "Stored",
    "due",
    "life_of",
    "loss_producer_id",
    "producer_id",
    "requests",
    "settle",
    "stored_bits",
]


#: What the ids of this job's producers begin with.
REVIVE_PRODUCER_PREFIX: Final = "revive-"
#: Neighbours that share a producer: each may be a request of its own, and a partition must remember all of them.
_BLOCK: Final = PRODUCER_REQUESTS_KEPT


class Life(enum.Enum):
    """Whether a checkpoint belongs to the present life of its topic and group."""

    PRESENT = "present"
    TOPIC_OVER = "topic_over"  #: the topic was deleted, and perhaps made again
    GROUP_OVER = "group_over"  #: the group was deleted, and perhaps made again
    EPOCH_OVER = "epoch_over"  #: the group's offsets were reset


class LostReason(enum.Enum):
    """Why a message that nobody acknowledged cannot be delivered again. Recorded in a table, never silent."""

    RETENTION = "retention"  #: its partition no longer has it


@dataclass(frozen=True, slots=True)
class Due:
    """A checkpoint with the bits of the messages that are to be delivered again."""

    checkpoint: Checkpoint
    bits: int


class Copy(NamedTuple):
    """One message to append to a destination: the body and all else come from where it lies."""

    offset: int
    #: Failed deliveries so far, to be stored with the copy.
    reconsume_times: int


class Request(NamedTuple):
    """Messages that lie side by side, as a request of an idempotent producer."""

    producer_id: str
    #: The messages themselves: what is stored can be read from the number.
    producer_seq: int

    @property
    def messages(self) -> int:
        """How many these are."""
        return self.producer_seq.bit_count()


@dataclass(frozen=True, slots=True)
class _Append:
    """Messages of one checkpoint for one destination."""

    checkpoint: Checkpoint
    bits: int

    def requests(self) -> list[Request]:
        """What the messages are stored as, in order."""
        return requests(self.checkpoint.key, self.checkpoint.span, self.bits)

    def copies(self) -> Iterator[Copy]:
        """The messages, in order."""
        span = self.checkpoint.span
        for index in indexes(self.bits):
            yield Copy(span.offset_of(index), span.attempt_of(index))


@dataclass(frozen=True, slots=True)
class Revive(_Append):
    """Append to the group's retry topic on the same broker."""


@dataclass(frozen=True, slots=True)
class DeadLetter(_Append):
    """Append to the group's dead letters, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """Nobody is to get these: their checkpoint is of an earlier life (SPEC POP-12)."""

    checkpoint: Checkpoint
    bits: int
    reason: Life


@dataclass(frozen=True, slots=True)
class Lost:
    """These are gone: record group, topic, partition, offsets and reason."""

    checkpoint: Checkpoint
    bits: int
    reason: LostReason

    def offsets(self) -> list[int]:
        return [self.checkpoint.span.offset_of(index) for index in indexes(self.bits)]


@dataclass(frozen=True, slots=True)
class Later:
    """These cannot be read now: leave them in their checkpoint, and try again at that time."""

    checkpoint: Checkpoint
    bits: int
    at_ms: int


Decision = Revive | DeadLetter | Skip | Lost | Later


@dataclass(frozen=True, slots=True)
class Stored:
    """What the two destinations hold of a checkpoint's messages, as bit maps."""

    retry: int = 0
    dead: int = 0

    @property
    def bits(self) -> int:
        return self.retry | self.dead


_NOTHING: Final = Stored()


def producer_id(key: CheckpointKey, offset: int) -> str:
    """The idempotent producer of copies of the message at `offset`, and of its neighbours: the same in every run.

    It is named after the lane, its epoch and the place there, not after the lease: in an epoch a message is given to
    its group again once, whichever of its leases the job finds over.
    """
    return _producer((*key.lane, key.epoch, offset // _BLOCK))


def loss_producer_id(key: CheckpointKey) -> str:
    """The idempotent producer of the records of what a checkpoint lost."""
    return _producer(key)


#: Both destinations are asked for the same producers, which then append.
@lru_cache(maxsize=4_096)
def _producer(named: tuple[object, ...]) -> str:
    return f"{REVIVE_PRODUCER_PREFIX}{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:32]}"


def requests(key: CheckpointKey, span: Span, bits: int) -> list[Request]:
    """The requests that messages of a checkpoint are stored as, in order of their offsets."""
    return [
        Request(producer_id(key, block * _BLOCK), sum(1 << offset % _BLOCK for _, offset in those))
        for block, those in _blocks(span, bits)
    ]


def stored_bits(key: CheckpointKey, span: Span, bits: int, sequences: Callable[[str], Iterable[int]]) -> int:
    """Which messages of a checkpoint a destination holds; `sequences` are those that it has of a producer."""
    found = 0
    for block, those in _blocks(span, bits):
        held = 0
        for seq in sequences(producer_id(key, block * _BLOCK)):
            held |= seq
        if held:
            found |= sum(1 << index for index, offset in those if held >> offset % _BLOCK & 1)
    return found


def _blocks(span: Span, bits: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Indexes and offsets of messages, by the blocks that share a producer."""
    placed = ((index, span.offset_of(index)) for index in indexes(bits))
    for block, those in groupby(placed, key=lambda one: one[1] // _BLOCK):
        yield block, list(those)


def life_of(checkpoint: Checkpoint, *, topic_id: str | None, epoch: int | None, group_epoch: int | None) -> Life:
    """Whether a checkpoint is still of this life (SPEC POP-12).

    `topic_id` and `group_epoch` are those of the present topic and group of these names, `epoch` the group's in the
    partition; None when there is none. Times are not compared: RocketMQ lost messages by that (#7914).
    """
    pop = checkpoint.pop
    if topic_id != pop.topic_id:
        return Life.TOPIC_OVER
    if group_epoch is None or pop.epoch < group_epoch:
        return Life.GROUP_OVER
    return Life.PRESENT if pop.epoch == epoch else Life.EPOCH_OVER


def due(states: Iterable[CheckpointState], now_ms: int, *, settle_ms: int = ACK_SETTLE_MS) -> list[Due]:
    """What must be delivered again at `now_ms`, in an order that depends on nothing but the states."""
    found = [
        Due(state.checkpoint, bits) for state in states if state.checkpoint and (bits := state.due(now_ms, settle_ms))
    ]
    return sorted(found, key=lambda one: (one.checkpoint.revive_time_ms, one.checkpoint.key))


def decide_redelivery(
    due: Due,
    *,
    life: Life,
    max_attempts: int,
    now_ms: int,
    stored: Stored = _NOTHING,
    gone: Collection[int] = (),
    unreadable: Mapping[int, int] = {},
) -> list[Decision]:
    """What becomes of each due message; each is in at most one decision, those that are stored already in none.

    Parameters
    ----------
    stored
        What the destinations hold of the checkpoint from earlier runs.
    gone
        Offsets that the partition no longer has.
    unreadable
        Offsets that could not be read this time, with the number of times that has happened.
    """
    checkpoint = due.checkpoint
    bits = due.bits & ~stored.bits
    if life is not Life.PRESENT:
        return [Skip(checkpoint, bits, life)] if bits else []
    span = checkpoint.span
    decisions: list[Decision] = []
    lost, append = 0, 0
    for index in indexes(bits):
        offset = span.offset_of(index)
        if offset in gone:
            lost |= 1 << index
        elif offset in unreadable:
            decisions.append(Later(checkpoint, 1 << index, now_ms + _backoff_ms(unreadable[offset])))
        else:
            append |= 1 << index
    if lost:
        decisions.append(Lost(checkpoint, lost, LostReason.RETENTION))
    return decisions + _appends(checkpoint, append, max_attempts)


def _appends(checkpoint: Checkpoint, bits: int, max_attempts: int) -> list[Decision]:
    """Again, or to the dead letters: the attempt limit holds for consumers that only time out, too (POP-11)."""
    if checkpoint.dead_reason is not None:
        return [DeadLetter(checkpoint, bits, checkpoint.dead_reason)] if bits else []
    attempt_of = checkpoint.span.attempt_of
    dead = sum(1 << index for index in indexes(bits) if attempt_of(index) >= max_attempts)
    decisions: list[Decision] = []
    if dead:
        decisions.append(DeadLetter(checkpoint, dead, DeadReason.MAX_ATTEMPTS.value))
    if bits & ~dead:
        decisions.append(Revive(checkpoint, bits & ~dead))
    return decisions


def _backoff_ms(times: int) -> int:
    """R58: a message that cannot be read is tried less and less often."""
    return DEFAULT_WAITS_MS[min(max(times, 1), len(DEFAULT_WAITS_MS)) - 1]


def settle(due: Due, decisions: Iterable[Decision]) -> Done | None:
    """The record that ends what was decided, to be appended when all of it is stored; None when all must wait.

    Messages that earlier runs stored count as ended, too.
    """
    waiting = 0
    for decision in decisions:
        if isinstance(decision, Later):
            waiting |= decision.bits
    ended = due.bits & ~waiting
    return Done(due.checkpoint.key, ended, due.checkpoint.revive_time_ms) if ended else None
