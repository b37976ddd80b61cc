"""The POP checkpoint (CK): which messages one pop of one partition delivered, until when, and which are done.

    pop of offsets 7, 8, 12 at t=1000 for 60 s       start_offset 7, diffs (0, 1, 5), num 3
    ack of offset 8                                  index 1, bit_map 0b010
    at 1000 + 60,000 ms                              indexes 0 and 2 are delivered again

A checkpoint covers at most 32 messages (SPEC POP-1), so a large pop makes several. They share one `Pop`, and each has
its own `Span`. Checkpoints and acknowledgements are matched by `CheckpointKey`, a tuple: as joined text, topic "t1"
partition "2" would have the same key as topic "t" partition "12".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from deltamq.mq.limits import CHECKPOINT_LEAD_MS, CHECKPOINT_MESSAGES_MAX

# Delivery attempts: one number for all messages of a span, or one for each.
Attempts = int | tuple[int, ...]

_ONE_MESSAGE: Final = 0b1


class LaneKey(NamedTuple):
    """A lane: one partition as one group sees it, in one life of the topic.

    `retry` is true for the group's retry partition; `topic_id` is still the user's topic (SPEC POP-11).
    """

    topic_id: str
    group: str
    retry: bool
    partition: str


class CheckpointKey(NamedTuple):
    """The identity of a checkpoint (SPEC POP-4, POP-12).

    `epoch` is the group's epoch in the partition: the same offset popped after a reset is another checkpoint.
    """

    topic_id: str
    group: str
    epoch: int
    retry: bool
    partition: str
    start_offset: int
    pop_time_ms: int

    @property
    def lane(self) -> LaneKey:
        return LaneKey(self.topic_id, self.group, self.retry, self.partition)


class Span(NamedTuple):
    """The messages of one checkpoint. A named tuple for speed: a pop of 1,024 messages makes 32 of them."""

    start_offset: int
    num: int
    #: Offsets relative to the first if they are not contiguous (a filtered pop), else None.
    diffs: tuple[int, ...] | None = None
    #: Number of this delivery of each message, from 1 on.
    attempts: Attempts = 1

    @property
    def full(self) -> int:
        """The bit map in which every message is done."""
        return (1 << self.num) - 1

    @property
    def last_offset(self) -> int:
        return self.start_offset + (self.num - 1 if self.diffs is None else self.diffs[-1])

    def offset_of(self, index: int) -> int:
        """Return the offset of the message at `index`."""
        assert 0 <= index < self.num, "no such message"
        return self.start_offset + (index if self.diffs is None else self.diffs[index])

    def index_of(self, offset: int) -> int | None:
        """Return the index of the bit of `offset`; None when the span does not hold the offset."""
        diff = offset - self.start_offset
        if self.diffs is None:
            return diff if 0 <= diff < self.num else None
        return self.diffs.index(diff) if diff in self.diffs else None

    def attempt_of(self, index: int) -> int:
        """Return the number of this delivery of the message at `index`, from 1 on."""
        return self.attempts if isinstance(self.attempts, int) else self.attempts[index]

    def below(self, offset: int) -> int:
        """Return the bit map of the messages below `offset`."""
        return sum(1 << index for index in range(self.num) if self.offset_of(index) < offset)

    def one(self, index: int) -> Span:
        """Return a span that holds only the message at `index`."""
        return Span(self.offset_of(index), 1, None, self.attempt_of(index))


def spans_of(offsets: Sequence[int], attempts: Attempts = 1) -> list[Span]:
    """Divide popped offsets, ascending, into spans of at most 32 messages (SPEC POP-1).

    A `range` is divided without a look at each offset. `attempts` is one number for all messages, or one for each.
    """
    step = CHECKPOINT_MESSAGES_MAX
    if isinstance(offsets, range) and isinstance(attempts, int):
        assert offsets.step == 1, "a popped range is contiguous"
        stop = offsets.stop
        return [Span(at, min(step, stop - at), None, attempts) for at in range(offsets.start, stop, step)]
    return [_span(offsets[at : at + step], _part(attempts, at, step)) for at in range(0, len(offsets), step)]


def _part(attempts: Attempts, at: int, step: int) -> Attempts:
    if isinstance(attempts, int):
        return attempts
    part = attempts[at : at + step]
    return part[0] if len(set(part)) == 1 else part


def _span(offsets: Sequence[int], attempts: Attempts) -> Span:
    start = offsets[0]
    if offsets[-1] - start == len(offsets) - 1:
        return Span(start, len(offsets), None, attempts)
    diffs = tuple(offset - start for offset in offsets)
    assert all(low < high for low, high in pairwise(diffs)), "popped offsets ascend"
    return Span(start, len(offsets), diffs, attempts)


def indexes(bits: int) -> Iterator[int]:
    """Yield the positions of the ones in a bit map, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


class Pop(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The values that all checkpoints of one pop of one partition share (SPEC POP-4)."""

    topic: str
    topic_id: str
    group: str
    #: The group's epoch in the partition (SPEC POP-18).
    epoch: int
    #: Written NAME@BROKER.
    partition: str
    #: Whether the messages were popped from the group's retry topic; `topic` is the user's topic even then.
    retry: bool = False
    pop_time_ms: int
    invisible_ms: int
    #: The queue of the revive log that holds all records about these messages (SPEC POP-6).
    revive_queue: int
    #: Whether the messages were given back as failed: they wait to be delivered again, and no client holds them.
    given_back: bool = False
    #: Whether they become dead letters when they are due: `Checkpoint.dead_reason` says why.
    is_condemned: bool = False
    #: Who popped, as the client named itself; only memory knows it, for those who look (SPEC LOOK-4).
    client_id: str = ""

    def __eq__(self, other: object) -> bool:
        """Return whether the other is of the same checkpoint: the last two fields are not stored with it."""
        return isinstance(other, Pop) and astuple(self)[:-2] == astuple(other)[:-2]

    def __hash__(self) -> int:
        """Return what is the same for pops that are the same."""
        return hash(astuple(self)[:-2])

    @property
    def revive_time_ms(self) -> int:
        """When messages that are not acknowledged become visible again (SPEC POP-4)."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def lane(self) -> LaneKey:
        return LaneKey(self.topic_id, self.group, self.retry, self.partition)


assert Pop.__struct_fields__[-2:] == ("is_condemned", "client_id"), "what is not compared comes last"


class Replaced(NamedTuple):
    """Messages of an earlier checkpoint whose lease a newer checkpoint took over (SPEC POP-9)."""

    key: CheckpointKey
    bits: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint: a record of the revive log. A handle refers to one message of it."""

    pop: Pop
    span: Span
    #: Messages that were done when this was written; later acknowledgements have their own records.
    bit_map: int = 0
    #: Set by a change of the invisible time: this one record also takes the message out of the named checkpoint, so a
    #: crash cannot separate the two (SPEC POP-9).
    replaces: Replaced | None = None
    #: If set, the messages are dead-lettered for this reason when due, not delivered again.
    dead_reason: str | None = None
    #: Offset of the record in its revive queue; -1 while it is not known.
    revive_offset: int = -1

    def __post_init__(self) -> None:
        assert 1 <= self.span.num <= CHECKPOINT_MESSAGES_MAX, "a checkpoint covers 1 to 32 messages"
        assert 0 <= self.bit_map <= self.span.full, "a bit without a message"

    @property
    def key(self) -> CheckpointKey:
        pop = self.pop
        return CheckpointKey(
            pop.topic_id, pop.group, pop.epoch, pop.retry, pop.partition, self.span.start_offset, pop.pop_time_ms
        )

    @property
    def revive_time_ms(self) -> int:
        return self.pop.revive_time_ms

    @property
    def due_time_ms(self) -> int:
        """The deliver time of the record: 1 s before the deliver time of its acknowledgements (SPEC POP-6)."""
        return self.revive_time_ms - CHECKPOINT_LEAD_MS

    def ack(self, offset: int) -> Checkpoint:
        """Return this checkpoint with one message done; unchanged if it does not hold the offset (SPEC POP-8)."""
        index = self.span.index_of(offset)
        return self if index is None else self.with_bits(1 << index)

    def with_bits(self, bits: int) -> Checkpoint:
        """Return this checkpoint with more messages done; bits without a message are ignored."""
        return replace(self, bit_map=self.bit_map | (bits & self.span.full))

    def changed(
        self,
        index: int,
        *,
        now_ms: int,
        invisible_ms: int,
        revive_queue: int,
        dead_reason: str | None = None,
        given_back: bool = False,
    ) -> Checkpoint:
        """Return the checkpoint that takes over the message at `index` (SPEC POP-9, POP-10).

        Its pop time is later than this one's even within one millisecond, so that the two have different keys.
        """
        pop = replace(
            self.pop,
            pop_time_ms=max(now_ms, self.pop.pop_time_ms + 1),
            invisible_ms=invisible_ms,
            revive_queue=revive_queue,
            given_back=given_back,
            is_condemned=dead_reason is not None,
            client_id="" if given_back else self.pop.client_id,
        )
        taken = Replaced(self.key, _ONE_MESSAGE << index)
        return Checkpoint(pop=pop, span=self.span.one(index), replaces=taken, dead_reason=dead_reason)
