"""Producers that number their messages, as Kafka's do: which request is new, which is a repeat, which is out of turn.

    producer's epoch and sequences   0: [0, 3) [3, 5)    1: [0, 2) ...     a sequence counts messages and wraps at 2**31
    stored number of the request     e << 47 | position                    one number for each request that only grows

Each partition remembers requests by producer and number (`mq.producer`). A request of such a producer has no number of
its own: its place is right behind the last one that is remembered, or it is a repeat of one that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deltamq.mq.errors import Conflict
from deltamq.mq.limits import ARROW_MESSAGES_MAX, PRODUCER_REQUESTS_KEPT, PRODUCER_SEQ_MAX
from deltamq.mq.producer import Part, ProducerSeen

#: Number of sequences, after which they begin at 0 again.
SEQUENCES: Final = 1 << 31
EPOCH_MAX: Final = (1 << 15) - 1
#: Bits of the position of a request's first message among all of its producer's in this partition and epoch.
_POSITION_BITS: Final = 47
_POSITION_MAX: Final = (1 << _POSITION_BITS) - 1
#: Bits of a producer's id that are random; the others are the time at which it was made, until the year 2109.
RANDOM_BITS: Final = 21

assert ARROW_MESSAGES_MAX * PRODUCER_REQUESTS_KEPT < SEQUENCES, "a repeat and a new request must differ"
assert (EPOCH_MAX << _POSITION_BITS | _POSITION_MAX) <= PRODUCER_SEQ_MAX


class OutOfSequence(Conflict):
    """The request does not follow the producer's last one; nothing of it was stored."""

    code = "sequence_gap"


@dataclass(frozen=True, slots=True)
class Sequence:
    """The producer's own numbers of one request: its epoch, and the sequence of its first message."""

    epoch: int
    base: int
    #: The time since which the producer exists: it stored nothing before.
    born_ms: int


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is remembered of a producer in partitions that a logical queue had before; nothing is added there any more.

    A request that is none of these goes on where they end.
    """

    parts: Mapping[int, tuple[Part, ...]]
    #: Of producers that were born at this time or later, those partitions have forgotten none.
    known_since_ms: int


def new_producer_id(now_ms: int, random: int) -> int:
    """Return an id of 63 bits; processes need not agree on it. `random` has `RANDOM_BITS` bits."""
    assert 0 <= random < 1 << RANDOM_BITS
    return now_ms << RANDOM_BITS | random


def born_ms_of(producer_id: int) -> int:
    """Return the time at which an id was made."""
    return producer_id >> RANDOM_BITS


def number_of(wanted: Sequence, count: int, seen: ProducerSeen | None, *, known_since_ms: int) -> int:
    """Return the number of a request of `count` messages; if it is a repeat, the number of the stored request.

    `seen` is what the partition remembers of the producer; of producers that were born at `known_since_ms` or later it
    has forgotten none. One that may have been forgotten may begin with any sequence, as in Kafka.

    Raises
    ------
    OutOfSequence
        `sequence_gap`: it is neither a repeat that is remembered nor the next request; `producer_epoch_old`.
    """
    if seen is None or not seen.parts:
        if wanted.base and wanted.born_ms >= known_since_ms:
            raise _gap(wanted, 0)
        return wanted.epoch << _POSITION_BITS | wanted.base
    last = seen.parts[max(seen.parts)][-1]
    epoch, position = last.seq >> _POSITION_BITS, last.seq & _POSITION_MAX
    if wanted.epoch < epoch:
        detail = f"producer epoch {wanted.epoch} is over, {epoch} has begun"
        raise OutOfSequence(detail, code="producer_epoch_old")
    if wanted.epoch > epoch:
        if wanted.base:
            raise _gap(wanted, 0)
        return wanted.epoch << _POSITION_BITS
    repeat = repeat_of(wanted, count, seen.parts)
    if repeat is not None:
        return repeat.seq
    following = position + last.count
    if following % SEQUENCES != wanted.base:
        raise _gap(wanted, following % SEQUENCES)
    assert following <= _POSITION_MAX, "a producer with 2**47 messages"
    return epoch << _POSITION_BITS | following


def repeat_of(wanted: Sequence, count: int, parts: Mapping[int, tuple[Part, ...]]) -> Part | None:
    """Return the stored request that this one repeats; None if it is another."""
    for number in sorted(parts, reverse=True):
        part = parts[number][-1]
        position = number & _POSITION_MAX
        same = number >> _POSITION_BITS == wanted.epoch and position % SEQUENCES == wanted.base
        if same and part.count == count:
            return part
    return None


def _gap(wanted: Sequence, expected: int) -> OutOfSequence:
    return OutOfSequence(f"producer sequence {wanted.base} of epoch {wanted.epoch} does not follow: {expected} does")
