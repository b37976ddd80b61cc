"""Idempotent producers: which requests a partition already holds (SPEC SEND-5).

A producer numbers its requests. The partition remembers its part of a request as a `Part`; a repeated request finds it
and gets the original offsets. Messages that another partition refused may follow into this one later: then the request
has two parts here, with different messages. The window is bounded: the last requests of each producer, the most recent
producers, a day.

    seq:      4   5   6   7   8
              |   |   |       |
              kept parts      last      a repeat of 5 -> its Part;  a repeat of 1 -> too old, the caller refuses it

Kafka's producers number their messages instead, and such a request is new, a repeat, or out of turn:

    producer's epoch and sequences   0: [0, 3) [3, 5)    1: [0, 2) ...     a sequence counts messages and wraps at 2**31
    stored number of the request     e << 47 | position                    one number for each request that only grows

Such a request gets the number right behind the last remembered one, unless it repeats one of these.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from deltamq.mq.errors import Conflict
from deltamq.mq.limits import (
    ARROW_MESSAGES_MAX,
    PRODUCER_REQUESTS_KEPT,
    PRODUCER_SEQ_MAX,
    PRODUCER_WINDOW_MS,
    PRODUCERS_MAX,
)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one request of one producer stored in one partition: offsets `[base_offset, base_offset + count)`.

    `indexes` are the positions of these messages in the request, None for the whole request of `total` messages.
    """

    producer_id: str
    seq: int
    base_offset: int
    count: int
    total: int
    time_ms: int
    indexes: tuple[int, ...] | None = None

    def overlaps(self, indexes: tuple[int, ...] | None) -> bool:
        """Return whether this part holds any of the messages at these positions of the request."""
        return overlap(self.indexes, indexes)


def overlap(left: tuple[int, ...] | None, right: tuple[int, ...] | None) -> bool:
    """Return whether two parts of one request have a message in common; None stands for the whole request."""
    return left is None or right is None or not set(left).isdisjoint(right)


def part_to_json(part: Part) -> list[object]:
    """Return a part as a short JSON array; runs of indexes are written `[first, length]`."""
    runs = None if part.indexes is None else _runs(part.indexes)
    return [part.producer_id, part.seq, part.base_offset, part.count, part.total, part.time_ms, runs]


def part_from_json(raw: list[object]) -> Part:
    """Return the part that `part_to_json` wrote."""
    producer_id, seq, base, count, total, time_ms, runs = raw
    indexes = None
    if isinstance(runs, list):
        if sum(length for _, length in runs) > ARROW_MESSAGES_MAX:
            raise ValueError("the runs have more indexes than a request may have messages")
        indexes = tuple(i for first, length in runs for i in range(first, first + length))
    assert isinstance(producer_id, str) and isinstance(seq, int) and isinstance(base, int)
    assert isinstance(count, int) and isinstance(total, int) and isinstance(time_ms, int)
    return Part(
        producer_id=producer_id,
        seq=seq,
        base_offset=base,
        count=count,
        total=total,
        time_ms=time_ms,
        indexes=indexes,
    )


def _runs(indexes: tuple[int, ...]) -> list[list[int]]:
    runs: list[list[int]] = []
    for i in indexes:
        if runs and i == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([i, 1])
    return runs


class ProducerSeen(msgspec.Struct, frozen=True):
    """What a partition remembers of one producer: its highest sequence and its kept parts by sequence."""

    last_seq: int
    parts: dict[int, tuple[Part, ...]]


class ProducerWindow:
    """The duplicate window of one partition: a deterministic fold over parts, in offset order.

    Not safe for concurrent change; the partition's append lock guards it.
    """

    def __init__(
        self,
        *,
        producers_max: int = PRODUCERS_MAX,
        requests_kept: int = PRODUCER_REQUESTS_KEPT,
        window_ms: int = PRODUCER_WINDOW_MS,
    ) -> None:
        self._producers_max = producers_max
        self._requests_kept = requests_kept
        self._window_ms = window_ms
        #: Least recently seen producer first: the first one is the next to be forgotten.
        self._seen: OrderedDict[str, OrderedDict[int, tuple[Part, ...]]] = OrderedDict()

    @property
    def window_ms(self) -> int:
        """How long a request is remembered, in milliseconds."""
        return self._window_ms

    @property
    def whole_since_ms(self) -> int:
        """The time since which every request within the window is certainly remembered; 0 if all of them are.

        Producers are forgotten in the order in which they were last seen. So while there is room, no producer was
        forgotten early; in a full window, none that was seen after the one that is forgotten next.
        """
        if len(self._seen) < self._producers_max:
            return 0
        return self._last_ms(next(iter(self._seen))) + 1

    def _last_ms(self, producer_id: str) -> int:
        return max(parts[-1].time_ms for parts in self._seen[producer_id].values())

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, producer_id: str, seq: int, indexes: tuple[int, ...] | None = None) -> Part | None:
        """Return a remembered part of this request that has some of these messages; None when there is none."""
        parts = self._seen.get(producer_id)
        if parts is None:
            return None
        return next((part for part in parts.get(seq, ()) if part.overlaps(indexes)), None)

    def seen(self, producer_id: str) -> ProducerSeen | None:
        """Return a copy of all that is remembered of a producer; None when nothing is."""
        parts = self._seen.get(producer_id)
        return None if not parts else ProducerSeen(max(parts), dict(parts))

    def add(self, part: Part) -> None:
        """Remember a stored part, and forget parts that fall out of the window."""
        parts = self._seen.get(part.producer_id)
        if parts is None:
            parts = self._seen[part.producer_id] = OrderedDict()
        else:
            self._seen.move_to_end(part.producer_id)
        others = parts.get(part.seq, ())
        parts[part.seq] = (
            (*(other for other in others if not other.overlaps(part.indexes)), part) if others else (part,)
        )
        if len(parts) > self._requests_kept:
            parts.pop(min(parts))
        self._forget(part.time_ms)

    def _forget(self, now_ms: int) -> None:
        while len(self._seen) > self._producers_max:
            self._seen.popitem(last=False)
        while self._seen and not self._is_in_window(next(iter(self._seen)), now_ms):
            self._seen.popitem(last=False)

    def _is_in_window(self, producer_id: str, now_ms: int) -> bool:
        """The newest parts are mostly the last ones added: look at these first."""
        since_ms = now_ms - self._window_ms
        return any(parts[-1].time_ms >= since_ms for parts in reversed(self._seen[producer_id].values()))

    def extend(self, parts: Iterable[Part]) -> None:
        """Remember each of these parts."""
        for part in parts:
            self.add(part)


#: Number of sequences, after which they begin at 0 again.
SEQUENCES: Final = 1 << 31
EPOCH_MAX: Final = (1 << 15) - 1
#: Bits of the position of a request's first message among all messages of its producer in this partition and epoch.
_POSITION_BITS: Final = 47
_POSITION_MAX: Final = (1 << _POSITION_BITS) - 1
#: Bits of a producer's id that are random; the others are the time at which it was made, until the year 2109.
RANDOM_BITS: Final = 21

assert ARROW_MESSAGES_MAX * PRODUCER_REQUESTS_KEPT < SEQUENCES, "a repeat and a new request must differ"
assert (EPOCH_MAX << _POSITION_BITS | _POSITION_MAX) <= PRODUCER_SEQ_MAX


class OutOfSequence(Conflict):
    """The request does not follow the producer's last one; nothing of it was stored."""

    code = "sequence_gap"


class Sequence(msgspec.Struct, frozen=True):
    """The producer's own numbers of one request: its epoch, and the sequence of its first message."""

    epoch: int
    base: int
    #: The time since which the producer exists: it stored nothing before.
    born_ms: int


class Earlier(msgspec.Struct, frozen=True):
    """What former partitions of a logical queue, which get no more messages, remember of a producer.

    A request that repeats none of these goes on where they end.
    """

    parts: Mapping[int, tuple[Part, ...]]
    #: These partitions remember every producer born at or after this time.
    known_since_ms: int


def new_producer_id(now_ms: int, random: int) -> int:
    """Return a 63-bit id that is unique without coordination. `random` has `RANDOM_BITS` bits."""
    assert 0 <= random < 1 << RANDOM_BITS
    return now_ms << RANDOM_BITS | random


def born_ms_of(producer_id: int) -> int:
    """Return the time at which an id was made."""
    return producer_id >> RANDOM_BITS


def number_of(wanted: Sequence, count: int, seen: ProducerSeen | None, *, known_since_ms: int) -> int:
    """Return the number of a request of `count` messages; if it is a repeat, the number of the stored request.

    `seen` is what the partition remembers of the producer; it remembers every producer born at or after
    `known_since_ms`. A producer that it may have forgotten may begin with any sequence, as in Kafka.

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
