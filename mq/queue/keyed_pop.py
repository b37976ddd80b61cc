"""Ordered pops by key (`order: "key"`, SPEC POP-17): messages of one key one after another, other keys go on.

    offset   0:a  1:b  2:a  3:c  4:a          in flight: 0 (a)  1 (b)  3 (c)      waiting: a -> 2 4
    ack 0                                     in flight: 2 (a)  1 (b)  3 (c)      waiting: a -> 4

A poison key stops only itself. What was in flight before a restart is known by its offset alone until it is read again;
then it holds its key until its time is over.

Memory is bounded: the offsets that are in flight or wait for their key are at most `outstanding_max`; beyond, no new
messages are read until some are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from math import inf

from mq.queue.ordered_pop import Delivery, OrderedLane
from mq.queue.progress import Committed
from mq.queue_limits import ORDERED_OUTSTANDING_MAX

__all__ = ["KeyedPop"]

#: A message without a key follows nobody.
Key = str | None


class KeyedPop(OrderedLane):
    """`order: "key"` in one partition.

    while wanted: deliveries += take(...);  if short: read from `read_from`, `offer(...)`, take again
    """

    __slots__ = ("_due", "_is_ready", "_key_of", "_lines", "_outstanding_max", "_ready", "_weights")

    def __init__(
        self, start: Committed, *, max_attempts: int | None, outstanding_max: int = ORDERED_OUTSTANDING_MAX
    ) -> None:
        super().__init__(start, max_attempts=max_attempts)
        self._outstanding_max = outstanding_max
        #: The key of each offset that is known and not done.
        self._key_of: dict[int, Key] = {}
        #: What these weigh in an answer, where that is known.
        self._weights: dict[int, int] = {}
        #: For each key, its offsets that are known and not done; the first one holds the others.
        self._lines: dict[str, deque[int]] = {}
        #: First of their keys and not in flight: a heap, with entries to be passed over, and what it really holds.
        self._ready: list[int] = []
        self._is_ready: set[int] = set()
        #: When flights end: a heap of times with offsets; entries whose time has changed are passed over.
        self._due: list[tuple[int, int]] = []

    @property
    def outstanding(self) -> int:
        """Offsets that are known and not done."""
        return len(self._key_of)

    @property
    def read_from(self) -> int | None:
        """Where to read new messages, None when too many are outstanding."""
        return self.next_offset if self.outstanding < self._outstanding_max else None

    @property
    def room(self) -> int:
        """How many new messages may be offered."""
        return max(0, self._outstanding_max - self.outstanding)

    @property
    def ready(self) -> int:
        """How many messages may be delivered or dead-lettered now, as the last `take` left it."""
        return len(self._is_ready)

    def offer(
        self, messages: Iterable[tuple[int, Key]], next_offset: int, weights: Mapping[int, int] | None = None
    ) -> None:
        """New messages, read from `read_from` up to `next_offset`, with their keys; the rest was filtered out.

        `weights` says what they weigh in an answer, by offset.
        """
        wanted = [(offset, key) for offset, key in messages if not self.is_done(offset)]
        assert len(wanted) <= self.room, "no more than there is room for"
        self.skip_between([offset for offset, _ in wanted], next_offset)
        for offset, key in wanted:
            if weights is not None:
                self._weights[offset] = weights[offset]
            self._add(offset, key)

    def _add(self, offset: int, key: Key) -> None:
        self._key_of[offset] = key
        if key is not None:
            self._lines.setdefault(key, deque()).append(offset)
        if self._is_first(offset):
            self._begin(offset)

    def _is_first(self, offset: int) -> bool:
        """Whether a message is known, and no other one of its key comes before it."""
        if offset not in self._key_of:
            return False
        key = self._key_of[offset]
        return key is None or self._lines[key][0] == offset

    def _begin(self, offset: int) -> None:
        """It is the first of its key now: ready, or in flight since before a restart."""
        if offset in self.flights:
            self._note(offset)
        else:
            self._make_ready(offset)

    def _make_ready(self, offset: int) -> None:
        if offset not in self._is_ready:
            self._is_ready.add(offset)
            heappush(self._ready, offset)

    def take(
        self, now_ms: int, max_messages: int, invisible_ms: int, *, max_bytes: float = inf, at_least: int = 1
    ) -> tuple[list[Delivery], list[int]]:
        """Deliver what may be delivered, the lowest offsets first; and which messages are to be dead-lettered.

        They weigh at most `max_bytes` together, but are never fewer than `at_least`; what is left out stays `ready`.
        Report `end` for each of the latter when it is in the dead letters; until then it holds its key.
        """
        self._release(now_ms)
        offsets: list[int] = []
        dead: list[int] = []
        left = max_bytes
        while self._ready and len(offsets) < max_messages:
            offset = heappop(self._ready)
            if offset not in self._is_ready:
                continue
            if self.is_over(offset):
                dead.append(offset)
            else:
                left -= self._weights.get(offset, 0)
                if left < 0 and len(offsets) >= at_least:
                    heappush(self._ready, offset)
                    break
                offsets.append(offset)
            self._is_ready.remove(offset)
        for offset in dead:
            # It stays ready, so that the next pop tells it again should this caller die.
            self._make_ready(offset)
        given = self.deliver(offsets, now_ms, invisible_ms)
        for offset in offsets:
            self._note(offset)
        return given, dead

    def weight_of(self, deliveries: Iterable[Delivery]) -> int:
        """What they weigh in an answer, as far as that is known."""
        return sum(self._weights.get(one.offset, 0) for one in deliveries)

    def _note(self, offset: int) -> None:
        heappush(self._due, (self.flights[offset].visible_ms, offset))

    def _release(self, now_ms: int) -> None:
        """Flights whose invisible time has ended are ready again."""
        while self._due and self._due[0][0] <= now_ms:
            visible_ms, offset = heappop(self._due)
            flight = self.flights.get(offset)
            if flight is not None and flight.visible_ms == visible_ms and self._is_first(offset):
                self._make_ready(offset)

    def next_release(self) -> int | None:
        """When a flight ends next, for a pop that waits."""
        while self._due:
            visible_ms, offset = self._due[0]
            flight = self.flights.get(offset)
            if flight is not None and flight.visible_ms == visible_ms:
                return visible_ms
            heappop(self._due)
        return None

    def change(self, delivery: Delivery, now_ms: int, invisible_ms: int) -> Delivery:
        """A new invisible time; 0 releases the message, and it is delivered again before others of its key."""
        changed = super().change(delivery, now_ms, invisible_ms)
        self._is_ready.discard(changed.offset)
        self._note(changed.offset)
        return changed

    def condemn(self, delivery: Delivery, now_ms: int, reason: str | None = None) -> None:
        """Its consumer wants it dead-lettered: the next `take` tells it as if it had failed too often."""
        super().condemn(delivery, now_ms, reason)
        if self._is_first(delivery.offset):
            self._make_ready(delivery.offset)

    def end(self, offset: int) -> None:
        """The message is done: acknowledged, or in the dead letters."""
        if self.is_done(offset):
            return
        super().end(offset)
        self._is_ready.discard(offset)
        self._weights.pop(offset, None)
        key = self._key_of.pop(offset, None)
        if key is None:
            return
        line = self._lines[key]
        was_first = line[0] == offset
        line.remove(offset)
        if not line:
            del self._lines[key]
        elif was_first:
            self._begin(line[0])

    def lose_below(self, min_offset: int) -> None:
        """Retention has removed everything below: what is known there is over; the caller records the loss."""
        # In order, so that each is the first of its key when its turn comes.
        for offset in sorted(offset for offset in {*self._key_of, *self.flights} if offset < min_offset):
            self.end(offset)
        self.skip(self.committed, min_offset)
