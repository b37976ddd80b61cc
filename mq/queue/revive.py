"""Revive: which messages are due, and what becomes of each (SPEC POP-11, POP-12).

    states of checkpoints --due--> not acknowledged --decide_redelivery--> Revive | DeadLetter | Skip | Lost | Later

A job may run twice, be killed at any line, and run again: each message ends in one place once. The messages that go to
one destination are requests of idempotent producers, named after the place of the messages and numbered with a bit map
of them. So the destination itself shows which messages it already holds, even if the group's settings have changed
since. That holds also for a message that was delivered again and then taken over by another checkpoint: the job's clock
was ahead, and it found a lease over that was just being renewed (POP-9). Whatever the clocks say, a message is
delivered again once:

    1 read states and logs up to now          4 append each request with its stamp   (a repeated one is stored once)
    2 ask both destinations what they hold     5 append the `Done` record            (a repeated one counts once)
    3 decide

A message that cannot be read stays in its checkpoint for a later run and delays nothing else. One that is gone is
recorded as lost, with the reason: no loss is silent.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from deltamq.mq.limits import ACK_SETTLE_MS, PRODUCER_REQUESTS_KEPT
from deltamq.mq.queue.checkpoint import Checkpoint, CheckpointKey, LaneKey, Span, indexes
from deltamq.mq.queue.retry import DEFAULT_WAITS_MS, DeadReason
from deltamq.mq.queue.revive_log import CheckpointState, Done
from deltamq.mq.stored_json import corrupt_when_damaged, to_json

#: Prefix of the ids of this job's producers.
REVIVE_PRODUCER_PREFIX: Final = "revive-"
#: Neighbouring offsets that share a producer: each may be its own request, and a partition must remember all of them.
_BLOCK: Final = PRODUCER_REQUESTS_KEPT


class Life(enum.Enum):
    """Whether a checkpoint belongs to the current life of its topic and group."""

    PRESENT = "present"
    TOPIC_OVER = "topic_over"  #: the topic was deleted, and perhaps created again
    GROUP_OVER = "group_over"  #: the group was deleted, and perhaps created again
    EPOCH_OVER = "epoch_over"  #: the group's offsets were reset


class LostReason(enum.Enum):
    """Why a message that was not acknowledged cannot be delivered again. Recorded in a table, never silent."""

    RETENTION = "retention"  #: its partition no longer has it


class DueCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint with the bits of the messages that must be delivered again."""

    checkpoint: Checkpoint
    bits: int


class Copy(NamedTuple):
    """One message to append to a destination; its content is read from `offset`."""

    offset: int
    #: Failed deliveries so far, to be stored with the copy.
    reconsume_times: int


class Request(NamedTuple):
    """Neighbouring messages as a request of an idempotent producer."""

    producer_id: str
    #: The bit map of the messages, so that the number shows which ones are stored.
    producer_seq: int

    @property
    def messages(self) -> int:
        """The number of messages."""
        return self.producer_seq.bit_count()


class _Append(msgspec.Struct, frozen=True):
    checkpoint: Checkpoint
    bits: int

    def requests(self) -> list[Request]:
        """Return the requests that store the messages, in order."""
        return requests(self.checkpoint.key, self.checkpoint.span, self.bits)

    def copies(self) -> Iterator[Copy]:
        """Yield the messages, in order."""
        span = self.checkpoint.span
        for index in indexes(self.bits):
            yield Copy(span.offset_of(index), span.attempt_of(index))


class Revive(_Append, frozen=True):
    """Append the messages to the group's retry topic on the same broker."""


class DeadLetter(_Append, frozen=True):
    """Append the messages to the group's dead letters, with the reason."""

    reason: str


class Skip(msgspec.Struct, frozen=True):
    """Skip the messages: their checkpoint belongs to an earlier life (SPEC POP-12)."""

    checkpoint: Checkpoint
    bits: int
    reason: Life


class Lost(msgspec.Struct, frozen=True):
    """Record the messages as lost, with group, topic, partition, offsets and reason."""

    checkpoint: Checkpoint
    bits: int
    reason: LostReason

    def offsets(self) -> list[int]:
        return [self.checkpoint.span.offset_of(index) for index in indexes(self.bits)]


class Later(msgspec.Struct, frozen=True):
    """Leave the messages in their checkpoint, since they cannot be read now, and try again at `at_ms`."""

    checkpoint: Checkpoint
    bits: int
    at_ms: int


Decision = Revive | DeadLetter | Skip | Lost | Later


class StoredCopies(msgspec.Struct, frozen=True):
    """The messages of a checkpoint that the two destinations hold, as bit maps."""

    retry: int = 0
    dead: int = 0

    @property
    def bits(self) -> int:
        return self.retry | self.dead


_NOTHING: Final = StoredCopies()


def producer_id(key: CheckpointKey, offset: int) -> str:
    """Return the producer of copies of the message at `offset` and of its neighbours, the same in every run.

    It is named after the lane, its epoch and the place, not after the lease: in an epoch, a message is delivered again
    to its group once, whichever of its leases the job finds over.
    """
    return _producer((*key.lane, key.epoch, offset // _BLOCK))


def loss_producer_id(key: CheckpointKey) -> str:
    """Return the idempotent producer of the records of messages that a checkpoint lost."""
    return _producer(key)


#: Cached, because each id is used three times: to ask both destinations, and to append.
@lru_cache(maxsize=4_096)
def _producer(named: tuple[object, ...]) -> str:
    return f"{REVIVE_PRODUCER_PREFIX}{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:32]}"


def requests(key: CheckpointKey, span: Span, bits: int) -> list[Request]:
    """Return the requests that store messages of a checkpoint, in order of their offsets."""
    return [
        Request(producer_id(key, block * _BLOCK), sum(1 << offset % _BLOCK for _, offset in messages))
        for block, messages in _blocks(span, bits)
    ]


def stored_bits(key: CheckpointKey, span: Span, bits: int, sequences: Callable[[str], Iterable[int]]) -> int:
    """Return the bits of the messages that a destination holds; `sequences` returns the ones of a producer there."""
    stored = 0
    for block, messages in _blocks(span, bits):
        held = 0
        for seq in sequences(producer_id(key, block * _BLOCK)):
            held |= seq
        if held:
            stored |= sum(1 << index for index, offset in messages if held >> offset % _BLOCK & 1)
    return stored


def _blocks(span: Span, bits: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the indexes and offsets of messages, by the blocks that share a producer."""
    placed = ((index, span.offset_of(index)) for index in indexes(bits))
    for block, messages in groupby(placed, key=lambda message: message[1] // _BLOCK):
        yield block, list(messages)


def life_of(checkpoint: Checkpoint, *, topic_id: str | None, epoch: int | None, group_epoch: int | None) -> Life:
    """Return whether a checkpoint belongs to the current life of its topic and group (SPEC POP-12).

    `topic_id` and `group_epoch` are of the current topic and group with these names, `epoch` is the group's in the
    partition; None when there is none. Times are not compared: RocketMQ lost messages that way (#7914).
    """
    pop = checkpoint.pop
    if topic_id != pop.topic_id:
        return Life.TOPIC_OVER
    if group_epoch is None or pop.epoch < group_epoch:
        return Life.GROUP_OVER
    return Life.PRESENT if pop.epoch == epoch else Life.EPOCH_OVER


def due(states: Iterable[CheckpointState], now_ms: int, *, settle_ms: int = ACK_SETTLE_MS) -> list[DueCheckpoint]:
    """Return the messages that must be delivered again at `now_ms`, in an order that only depends on the states."""
    checkpoints = [
        DueCheckpoint(state.checkpoint, bits)
        for state in states
        if state.checkpoint and (bits := state.due(now_ms, settle_ms))
    ]
    return sorted(checkpoints, key=lambda item: (item.checkpoint.revive_time_ms, item.checkpoint.key))


def decide_redelivery(
    due: DueCheckpoint,
    *,
    life: Life,
    max_attempts: int,
    now_ms: int,
    stored: StoredCopies = _NOTHING,
    gone: Collection[int] = (),
    unreadable: Mapping[int, int] = {},
) -> list[Decision]:
    """Decide about each due message; each is in at most one decision, and in none if it is stored already.

    Parameters
    ----------
    stored
        The messages of the checkpoint that the destinations hold from earlier runs.
    gone
        Offsets that the partition no longer has.
    unreadable
        Offsets that could not be read, with the number of attempts that have failed so far.
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
    """Divide messages into redeliveries and dead letters; attempts that only timed out count, too (POP-11)."""
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
    """Return the wait before the next try of a message that could not be read `times` times; it grows."""
    return DEFAULT_WAITS_MS[min(max(times, 1), len(DEFAULT_WAITS_MS)) - 1]


def settle(due: DueCheckpoint, decisions: Iterable[Decision]) -> Done | None:
    """Return the record to append when all that was decided is stored; None when every message must wait.

    Messages that earlier runs stored count as ended, too.
    """
    waiting = 0
    for decision in decisions:
        if isinstance(decision, Later):
            waiting |= decision.bits
    ended = due.bits & ~waiting
    return Done(due.checkpoint.key, ended, due.checkpoint.revive_time_ms) if ended else None


class _Stored(msgspec.Struct):
    group: str
    topic: str
    topic_id: str
    retry: bool
    partition: str
    ranges: tuple[tuple[int, int], ...]
    reason: LostReason
    time_ms: int


_read: Final = msgspec.json.Decoder(_Stored).decode


class LostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets `[low, high)` of one lane that were removed before the group was done with them."""

    lane: LaneKey
    topic: str
    ranges: tuple[tuple[int, int], ...]
    reason: LostReason
    time_ms: int

    def to_json(self) -> bytes:
        topic_id, group, retry, partition = self.lane
        return to_json(_Stored(group, self.topic, topic_id, retry, partition, self.ranges, self.reason, self.time_ms))

    @classmethod
    def from_json(cls, body: bytes) -> LostRecord:
        """Return the record that `to_json` wrote; raises `Corrupt` (`lost_record_corrupt`) when it is damaged."""
        with corrupt_when_damaged("a stored loss", code="lost_record_corrupt"):
            stored = _read(body)
        return cls(
            lane=LaneKey(stored.topic_id, stored.group, stored.retry, stored.partition),
            topic=stored.topic,
            ranges=stored.ranges,
            reason=stored.reason,
            time_ms=stored.time_ms,
        )
