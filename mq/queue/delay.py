"""Delayed messages: when each is due, how it is forwarded once, and marks of what was cancelled or ended (RETRY-4, 5).

A delayed message waits in a delay partition. When it is due, the forwarder appends it to its target, as a request of an
idempotent producer that is named after the place where it waits. So the message is stored once, even if the forwarder
is killed or runs twice.

    delay partition, offset 37   -->   producer delay-<digest>-2, sequence 5     (37 = 2 * 16 + 5)

Sixteen offsets share a producer, because a partition remembers sixteen requests of each. Every mark only adds to a set,
so order and repetition do not matter.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterable
from typing import Final

import msgspec
from msgspec import field

from deltamq.mq.errors import Conflict, Corrupt, Unknown, Unprocessable
from deltamq.mq.limits import DELAY_MS_MAX, PRODUCER_REQUESTS_KEPT
from deltamq.mq.stored_json import corrupt_when_damaged, to_json

#: Prefix of the ids of the forwarder's producers.
DELAY_PRODUCER_PREFIX: Final = "delay-"


class Delayed(msgspec.Struct, frozen=True, kw_only=True):
    """A delayed message in its delay partition."""

    delay_partition: str
    offset: int
    message_id: str
    deliver_time_ms: int
    topic: str
    topic_id: str
    partition: str


class Forward(msgspec.Struct, frozen=True):
    """Append the message to its target partition."""

    message: Delayed

    @property
    def producer_id(self) -> str:
        """The id of the producer, the same in every run."""
        digest = hashlib.sha256(self.message.delay_partition.encode()).hexdigest()
        return f"{DELAY_PRODUCER_PREFIX}{digest[:16]}-{self.message.offset // PRODUCER_REQUESTS_KEPT}"

    @property
    def producer_seq(self) -> int:
        return self.message.offset % PRODUCER_REQUESTS_KEPT


class DropReason(enum.Enum):
    """Why a due message is not forwarded."""

    CANCELLED = "cancelled"  #: by its message id, before it was due
    TOPIC_OVER = "topic_over"  #: its topic was deleted, and perhaps created again


class Drop(msgspec.Struct, frozen=True):
    """Drop this message: it is not delivered."""

    message: Delayed
    reason: DropReason


Decision = Forward | Drop


def deliver_time(now_ms: int, *, deliver_time_ms: int | None = None, delay_ms: int | None = None) -> int | None:
    """Return when to deliver a message that is sent now; None for at once (SPEC RETRY-4, RETRY-5).

    Raises
    ------
    Unprocessable
        `invalid_value`: both arguments are given, the delay is negative, or the time is more than 40 days ahead;
        `field` names the argument.
    """
    if deliver_time_ms is not None and delay_ms is not None:
        raise Unprocessable("give deliver_time or delay_ms, not both", field="delay_ms")
    if delay_ms is not None:
        if not 0 <= delay_ms <= DELAY_MS_MAX:
            raise _too_far("delay_ms")
        return now_ms + delay_ms if delay_ms else None
    if deliver_time_ms is None or deliver_time_ms <= now_ms:
        return None
    if deliver_time_ms - now_ms > DELAY_MS_MAX:
        raise _too_far("deliver_time")
    return deliver_time_ms


def _too_far(field: str) -> Unprocessable:
    return Unprocessable(
        f"{field}: a message waits 0 to {DELAY_MS_MAX} ms", field=field, extra={"min": 0, "max": DELAY_MS_MAX}
    )


def is_due(message: Delayed, now_ms: int) -> bool:
    """Return whether the deliver time of the message has come."""
    return message.deliver_time_ms <= now_ms


def check_cancel(message: Delayed, now_ms: int) -> None:
    """Refuse a cancellation that comes too late, before anything is stored.

    A cancellation concerns the message at its place, not its id: the id may be used again.

    Raises
    ------
    Conflict
        `already_due`.
    """
    if is_due(message, now_ms):
        raise Conflict("the message is already due", code="already_due", field="message_id")


def confirm_cancel(message: Delayed, stored_ms: int) -> None:
    """Check that a cancellation whose record was stored at `stored_ms` is certain to take effect.

    The forwarder first reads the clock and then the cancellations. So every run that could forward the message sees a
    cancellation that was stored before the deliver time, but perhaps not a later one.

    Raises
    ------
    Unknown
        The message fell due while the record was being stored.
    """
    if is_due(message, stored_ms):
        raise Unknown("the message fell due while it was being cancelled")


def decide_forwards(
    waiting: Iterable[Delayed],
    *,
    now_ms: int,
    ended: Collection[tuple[str, int]] = (),
    cancelled: Collection[tuple[str, int]] = (),
    topic_ids: Collection[str] = (),
) -> list[Decision]:
    """Decide about each message that is due and not `ended`, in order of deliver time and place.

    `ended` and `cancelled` are places, as delay partition and offset: of messages that earlier runs forwarded or
    dropped, and of messages that were cancelled. `topic_ids` are the ids of the current topics.
    """
    due = [
        message
        for message in waiting
        if is_due(message, now_ms) and (message.delay_partition, message.offset) not in ended
    ]
    due.sort(key=lambda message: (message.deliver_time_ms, message.delay_partition, message.offset))
    return [_decide(message, cancelled, topic_ids) for message in due]


def _decide(message: Delayed, cancelled: Collection[tuple[str, int]], topic_ids: Collection[str]) -> Decision:
    if message.topic_id not in topic_ids:
        return Drop(message, DropReason.TOPIC_OVER)
    if (message.delay_partition, message.offset) in cancelled:
        return Drop(message, DropReason.CANCELLED)
    return Forward(message)


class Cancelled(msgspec.Struct, frozen=True):
    """The message at `offset` of a delay partition must not be delivered.

    The place identifies the message. The id is only for people: it may be used again after its message was cancelled.
    """

    delay_partition: str = field(name="partition")
    offset: int
    message_id: str


class Ended(msgspec.Struct, frozen=True):
    """Offsets `[low, high)` of a delay partition were forwarded or dropped."""

    delay_partition: str = field(name="partition")
    ranges: tuple[tuple[int, int], ...]


DelayMark = Cancelled | Ended
_cancelled: Final = msgspec.json.Decoder(Cancelled).decode
_ended: Final = msgspec.json.Decoder(Ended).decode


def mark_to_json(mark: DelayMark) -> tuple[str, bytes]:
    """Return the tag and the body of a mark."""
    return ("cancelled" if isinstance(mark, Cancelled) else "ended"), to_json(mark)


def mark_from_json(tag: str, body: bytes) -> DelayMark:
    """Return the mark that `mark_to_json` wrote; raises `Corrupt` (`delay_mark_corrupt`) when it is damaged."""
    with corrupt_when_damaged(f"a stored {tag} mark", code="delay_mark_corrupt"):
        if tag == "cancelled":
            return _cancelled(body)
        if tag == "ended":
            return _ended(body)
    raise Corrupt(f"the delay marks hold a record of unknown kind {tag!r}", code="delay_mark_corrupt")
