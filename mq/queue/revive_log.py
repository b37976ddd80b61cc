"""The revive log: its records as JSON, and the state of a checkpoint as their join; order and repetition do not matter.

The field names are RocketMQ's where it has the field. The tag of the message gives the kind of record:

| tag           | record       | body                                                                       |
|---------------|--------------|----------------------------------------------------------------------------|
| `ck`          | `Checkpoint` | key, `t` topic, `it` invisible ms, `rq` queue, `n`, `bm`, `d`, `a`, `rp`, `dr`, `gb` |
| `ack`, `bAck` | `Ack`        | key, `b` bits, `rt` revive time                                            |
| `done`        | `Done`       | key, `b` bits, `rt` revive time                                            |

The key is `ti` topic id, `c` group, `e` epoch, `r` retry, `q` + `bn` partition and broker, `so` start offset, `pt` pop
time. A record only sets bits of the checkpoints that it names:

    CK  (7, n=3)          messages 7, 8, 9        bits known to be done when it was written
    ACK (bits 0b010)      message 8               may be seen before its CK, or twice
    CK  (8, replaces 7.1) message 8 again         counts as done in the old one, is open in the new one
    DONE (bits 0b001)     message 7               the revive job has dealt with it

Setting bits commutes. So every merge leads to the same state table `state/pop_checkpoints`, however often it is
repeated (SPEC POP-11). An acknowledgement without a checkpoint waits and delays nothing else (RocketMQ #3443).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, field
from msgspec.structs import replace

from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import CHECKPOINT_MESSAGES_MAX
from deltamq.mq.names import PartitionName, partition_name
from deltamq.mq.queue.checkpoint import Attempts, Checkpoint, CheckpointKey, Pop, Replaced, Span
from deltamq.mq.stored_json import corrupt_when_damaged, to_json

_BITS_MAX: Final = (1 << CHECKPOINT_MESSAGES_MAX) - 1

_Natural = Annotated[int, Meta(ge=0)]
_Bits = Annotated[int, Meta(gt=0, le=_BITS_MAX)]


class Ack(msgspec.Struct, frozen=True):
    """Messages of one checkpoint are acknowledged (SPEC POP-6); one record for a whole batch."""

    key: CheckpointKey
    bits: int
    revive_time_ms: int

    @property
    def due_time_ms(self) -> int:
        """The deliver time of the record."""
        return self.revive_time_ms


class Done(msgspec.Struct, frozen=True):
    """The revive job has delivered these messages again, dead-lettered them, or given them up."""

    key: CheckpointKey
    bits: int
    revive_time_ms: int

    @property
    def due_time_ms(self) -> int:
        """The deliver time of the record."""
        return self.revive_time_ms


Record = Checkpoint | Ack | Done


class _Key(msgspec.Struct, gc=False):
    """The stored form of a checkpoint's key."""

    topic_id: str = field(name="ti")
    group: str = field(name="c")
    epoch: int = field(name="e")
    retry: bool = field(name="r")
    partition: str = field(name="q")
    broker: str = field(name="bn")
    start_offset: _Natural = field(name="so")
    pop_time_ms: int = field(name="pt")

    def key(self) -> CheckpointKey:
        """Return the key; its names are interned, because many keys share them: copies take a quarter of the memory."""
        return CheckpointKey(
            sys.intern(self.topic_id),
            sys.intern(self.group),
            self.epoch,
            self.retry,
            sys.intern(partition_name(self.partition, self.broker)),
            self.start_offset,
            self.pop_time_ms,
        )


def _key_fields(key: CheckpointKey) -> tuple[str, str, int, bool, str, str, int, int]:
    name, broker = PartitionName.parse(key.partition)
    return key.topic_id, key.group, key.epoch, key.retry, name, broker, key.start_offset, key.pop_time_ms


class _Acked(_Key, gc=False):
    """The stored form of an `Ack` and of a `Done`."""

    bits: _Bits = field(name="b")
    revive_time_ms: int = field(name="rt")


class _Replaced(_Key, gc=False):
    bits: _Bits = field(name="b")


class _Checkpoint(_Key, gc=False, omit_defaults=True):
    topic: str = field(name="t")
    invisible_ms: _Natural = field(name="it")
    revive_queue: _Natural = field(name="rq")
    num: Annotated[int, Meta(ge=1, le=CHECKPOINT_MESSAGES_MAX)] = field(name="n")
    bit_map: _Natural = field(name="bm")
    attempts: Attempts = field(name="a")
    diffs: tuple[int, ...] | None = field(name="d", default=None)
    replaces: _Replaced | None = field(name="rp", default=None)
    dead_reason: str | None = field(name="dr", default=None)
    given_back: bool = field(name="gb", default=False)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> _Checkpoint:
        pop, span, replaced = checkpoint.pop, checkpoint.span, checkpoint.replaces
        return cls(
            *_key_fields(checkpoint.key),
            pop.topic,
            pop.invisible_ms,
            pop.revive_queue,
            span.num,
            checkpoint.bit_map,
            span.attempts,
            span.diffs,
            None if replaced is None else _Replaced(*_key_fields(replaced.key), replaced.bits),
            checkpoint.dead_reason,
            pop.given_back,
        )

    def checkpoint(self, revive_offset: int) -> Checkpoint:
        """Return the checkpoint; raises `ValueError` when its numbers contradict each other."""
        key = self.key()
        span = Span(key.start_offset, self.num, self.diffs, self.attempts)
        _check(span, self.bit_map)
        pop = Pop(
            topic=sys.intern(self.topic),
            topic_id=key.topic_id,
            group=key.group,
            epoch=key.epoch,
            partition=key.partition,
            retry=key.retry,
            pop_time_ms=key.pop_time_ms,
            invisible_ms=self.invisible_ms,
            revive_queue=self.revive_queue,
            given_back=self.given_back,
            is_condemned=self.dead_reason is not None,
        )
        replaced = self.replaces
        return Checkpoint(
            pop=pop,
            span=span,
            bit_map=self.bit_map,
            replaces=None if replaced is None else Replaced(replaced.key(), replaced.bits),
            dead_reason=self.dead_reason,
            revive_offset=revive_offset,
        )


def _check(span: Span, bit_map: int) -> None:
    diffs, attempts = span.diffs, span.attempts
    if bit_map > span.full:
        raise ValueError("the bit map has a bit without a message")
    if diffs is not None and (len(diffs) != span.num or diffs[0] != 0 or sorted(set(diffs)) != list(diffs)):
        raise ValueError("the offset differences do not ascend from 0")
    if not isinstance(attempts, int) and len(attempts) != span.num:
        raise ValueError("the number of attempts is not the number of messages")


_checkpoint: Final = msgspec.json.Decoder(_Checkpoint).decode
_acked: Final = msgspec.json.Decoder(_Acked).decode


def record_to_json(record: Record) -> tuple[str, bytes]:
    """Return the tag and the body of a record."""
    if isinstance(record, Checkpoint):
        return "ck", to_json(_Checkpoint.of(record))
    tag = "done" if isinstance(record, Done) else "ack" if record.bits.bit_count() == 1 else "bAck"
    return tag, to_json(_Acked(*_key_fields(record.key), record.bits, record.revive_time_ms))


def record_from_json(tag: str, body: bytes, *, revive_offset: int = -1) -> Record:
    """Return the record that `record_to_json` wrote; `revive_offset` is the offset at which a checkpoint was found.

    Raises
    ------
    Corrupt
        `revive_record_corrupt` when it is damaged, `revive_record_unknown` when a newer release wrote its kind.
    """
    read = _READERS.get(tag)
    if read is None:
        raise Corrupt(f"the revive log holds a record of unknown kind {tag!r}", code="revive_record_unknown")
    with corrupt_when_damaged(f"a stored {tag} record", code="revive_record_corrupt"):
        return read(body, revive_offset)


def _ack(body: bytes, _: int) -> Ack:
    stored = _acked(body)
    return Ack(stored.key(), stored.bits, stored.revive_time_ms)


def _done(body: bytes, _: int) -> Done:
    stored = _acked(body)
    return Done(stored.key(), stored.bits, stored.revive_time_ms)


_READERS: Final[Mapping[str, Callable[[bytes, int], Record]]] = {
    "ck": lambda body, revive_offset: _checkpoint(body).checkpoint(revive_offset),
    "ack": _ack,
    "bAck": _ack,
    "done": _done,
}


States = Mapping[CheckpointKey, "CheckpointState"]


class CheckpointState(msgspec.Struct, frozen=True):
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


def _either(left: Checkpoint | None, right: Checkpoint | None) -> Checkpoint | None:
    """Return one of the two checkpoints, the same for either order; an append whose answer was lost stores two."""
    if left is None or right is None:
        return left or right
    return min(left, right, key=_rank)


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
