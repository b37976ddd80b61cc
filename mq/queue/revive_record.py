"""The records of the revive log as JSON: checkpoint, acknowledgement, and what the revive job has dealt with.

The field names are RocketMQ's where it has the field; the tag of the message tells the kinds apart:

| tag           | record       | body                                                                       |
|---------------|--------------|----------------------------------------------------------------------------|
| `ck`          | `Checkpoint` | key, `t` topic, `it` invisible ms, `rq` queue, `n`, `bm`, `d`, `a`, `rp`, `dr` |
| `ack`, `bAck` | `Ack`        | key, `b` bits, `rt` revive time                                            |
| `done`        | `Done`       | key, `b` bits, `rt` revive time                                            |

The key is `ti` topic id, `c` group, `e` epoch, `r` retry, `q` + `bn` partition and broker, `so` start offset, `pt` pop
time. Every record changes only the checkpoint that it names, by setting bits: order and repetition do not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mq.errors import Corrupt
from mq.names import PartitionName, partition_name
from mq.queue.checkpoint import Attempts, Checkpoint, CheckpointKey, Pop, Replaced, Span
from mq.queue_limits import CHECKPOINT_MESSAGES_MAX
from mq.stored_json import array, corrupt_when_damaged, integer, mapping, text

__all__ = ["Ack", "Done", "Record", "key_from_json", "key_to_json", "record_from_json", "record_to_json"]

_BITS_MAX: Final = (1 << CHECKPOINT_MESSAGES_MAX) - 1


@dataclass(frozen=True, slots=True)
class Ack:
    """Messages of one checkpoint are acknowledged (SPEC POP-6); one record for a whole batch."""

    key: CheckpointKey
    bits: int
    revive_time_ms: int

    @property
    def due_time_ms(self) -> int:
        """The deliver time of the record."""
        return self.revive_time_ms


@dataclass(frozen=True, slots=True)
class Done:
    """The revive job has delivered these messages again, dead-lettered them, or given them up for good."""

    key: CheckpointKey
    bits: int
    revive_time_ms: int

    @property
    def due_time_ms(self) -> int:
        """The deliver time of the record."""
        return self.revive_time_ms


Record = Checkpoint | Ack | Done


def record_to_json(record: Record) -> tuple[str, dict[str, object]]:
    """The tag and the body of a record."""
    if isinstance(record, Checkpoint):
        return "ck", _checkpoint_to_json(record)
    tag = "done" if isinstance(record, Done) else "ack" if record.bits.bit_count() == 1 else "bAck"
    return tag, {**key_to_json(record.key), "b": record.bits, "rt": record.revive_time_ms}


def record_from_json(tag: str, value: object, *, revive_offset: int = -1) -> Record:
    """The record that `record_to_json` wrote; `revive_offset` is where a checkpoint was found.

    Raises
    ------
    Corrupt
        `revive_record_corrupt` when it is damaged, `revive_record_unknown` when a newer release wrote its kind.
    """
    read = _READERS.get(tag)
    if read is None:
        raise Corrupt(f"the revive log holds a record of unknown kind {tag!r}", code="revive_record_unknown")
    with corrupt_when_damaged(f"a stored {tag} record", code="revive_record_corrupt"):
        return read(mapping(value), revive_offset)


def key_to_json(key: CheckpointKey) -> dict[str, object]:
    """A checkpoint's key as JSON values."""
    name, broker = PartitionName.parse(key.partition)
    return {
        "ti": key.topic_id,
        "c": key.group,
        "e": key.epoch,
        "r": key.retry,
        "q": name,
        "bn": broker,
        "so": key.start_offset,
        "pt": key.pop_time_ms,
    }


def key_from_json(value: object) -> CheckpointKey:
    """The key that `key_to_json` wrote; raises what `corrupt_when_damaged` catches.

    Its names are those of other keys, too: of a million checkpoints in memory they would take up a quarter.
    """
    stored = mapping(value)
    return CheckpointKey(
        sys.intern(text(stored["ti"])),
        sys.intern(text(stored["c"])),
        integer(stored["e"]),
        _flag(stored["r"]),
        sys.intern(partition_name(text(stored["q"]), text(stored["bn"]))),
        _positive(stored["so"]),
        integer(stored["pt"]),
    )


def _checkpoint_to_json(checkpoint: Checkpoint) -> dict[str, object]:
    pop, span, replaced = checkpoint.pop, checkpoint.span, checkpoint.replaces
    body: dict[str, object] = {
        **key_to_json(checkpoint.key),
        "t": pop.topic,
        "it": pop.invisible_ms,
        "rq": pop.revive_queue,
        "n": span.num,
        "bm": checkpoint.bit_map,
        "a": span.attempts if isinstance(span.attempts, int) else list(span.attempts),
    }
    if span.diffs is not None:
        body["d"] = list(span.diffs)
    if replaced is not None:
        body["rp"] = {**key_to_json(replaced.key), "b": replaced.bits}
    if checkpoint.dead_reason is not None:
        body["dr"] = checkpoint.dead_reason
    return body


def _checkpoint_from_json(stored: Mapping[str, object], revive_offset: int) -> Checkpoint:
    key = key_from_json(stored)
    pop = Pop(
        topic=sys.intern(text(stored["t"])),
        topic_id=key.topic_id,
        group=key.group,
        epoch=key.epoch,
        partition=key.partition,
        retry=key.retry,
        pop_time_ms=key.pop_time_ms,
        invisible_ms=_positive(stored["it"]),
        revive_queue=_positive(stored["rq"]),
    )
    span = _span(key.start_offset, stored)
    bits = _positive(stored["bm"])
    if bits > span.full:
        raise ValueError("a bit without a message")
    reason = stored.get("dr")
    return Checkpoint(
        pop=pop,
        span=span,
        bit_map=bits,
        replaces=_replaced(stored.get("rp")),
        dead_reason=None if reason is None else text(reason),
        revive_offset=revive_offset,
    )


def _span(start: int, stored: Mapping[str, object]) -> Span:
    num = integer(stored["n"])
    diffs = stored.get("d")
    read = None if diffs is None else tuple(map(integer, array(diffs)))
    if not 1 <= num <= CHECKPOINT_MESSAGES_MAX:
        raise ValueError(f"{num} messages in a checkpoint")
    if read is not None and (len(read) != num or read[0] != 0 or sorted(set(read)) != list(read)):
        raise ValueError("offset differences that do not ascend from 0")
    return Span(start, num, read, _attempts(stored["a"], num))


def _attempts(value: object, num: int) -> Attempts:
    if not isinstance(value, list):
        return integer(value)
    attempts = tuple(map(integer, value))
    if len(attempts) != num:
        raise ValueError("an attempt for each message, or one for all")
    return attempts


def _replaced(value: object) -> Replaced | None:
    return None if value is None else Replaced(key_from_json(value), _bits(mapping(value)))


def _bits(stored: Mapping[str, object]) -> int:
    bits = integer(stored["b"])
    if not 0 < bits <= _BITS_MAX:
        raise ValueError("bits that no checkpoint has")
    return bits


def _positive(value: object) -> int:
    number = integer(value)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{type(value).__name__} is not true or false")
    return value


_READERS: Final[Mapping[str, Callable[[Mapping[str, object], int], Record]]] = {
    "ck": _checkpoint_from_json,
    "ack": lambda stored, _: Ack(key_from_json(stored), _bits(stored), integer(stored["rt"])),
    "bAck": lambda stored, _: Ack(key_from_json(stored), _bits(stored), integer(stored["rt"])),
    "done": lambda stored, _: Done(key_from_json(stored), _bits(stored), integer(stored["rt"])),
}
