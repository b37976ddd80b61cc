"""Ordered pops by key (`order: "key"`, SPEC POP-17): messages of one key follow one another, other keys go on.

    offset   0:a  1:b  2:a  3:c  4:a          in flight: 0 (a)  1 (b)  3 (c)      waiting: a -> 2 4
    ack 0                                     in flight: 2 (a)  1 (b)  3 (c)      waiting: a -> 4

A poison message stops only its own key. After a restart, a message in flight is known only by its offset until it is
read again; from then on it holds its key until its invisible time ends.

Memory is bounded: at most `outstanding_max` offsets are in flight or wait for their key. At that limit, no new messages
are read until some are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from math import inf

from deltamq.mq.limits import ORDERED_OUTSTANDING_MAX
from deltamq.mq.queue.ordered_pop import Delivery, OrderedLane
from deltamq.mq.queue.progress import Committed

#: None for a message without a key, which waits for no other.
Key = str | None


class KeyedPop(OrderedLane):
    """The lane of a partition that is popped with `order: "key"`.

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
        #: The size of each message in an answer, in bytes, where it is known.
        self._weights: dict[int, int] = {}
        #: The offsets of each key that are known and not done; the first one holds back the others.
        self._lines: dict[str, deque[int]] = {}
        #: A heap of offsets that may be delivered: first of their keys and not in flight. Entries that are not in
        #: `_is_ready` are outdated.
        self._ready: list[int] = []
        self._is_ready: set[int] = set()
        #: A heap of the times at which flights end, with offsets. Entries whose time has changed are outdated.
        self._due: list[tuple[int, int]] = []

    @property
    def outstanding(self) -> int:
        """The number of offsets that are known and not done."""
        return len(self._key_of)

    @property
    def read_from(self) -> int | None:
        """The offset at which to read new messages; None when too many are outstanding."""
        return self.next_offset if self.outstanding < self._outstanding_max else None

    @property
    def room(self) -> int:
        """How many new messages may be offered."""
        return max(0, self._outstanding_max - self.outstanding)

    @property
    def ready(self) -> int:
        """How many messages may be delivered or dead-lettered now, as of the last `take`."""
        return len(self._is_ready)

    def offer(
        self, messages: Iterable[tuple[int, Key]], next_offset: int, weights: Mapping[int, int] | None = None
    ) -> None:
        """Add new messages with their keys, read from `read_from` up to `next_offset`; the rest was filtered out.

        `weights` are their sizes in an answer, in bytes, by offset.
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
        if offset not in self._key_of:
            return False
        key = self._key_of[offset]
        return key is None or self._lines[key][0] == offset

    def _begin(self, offset: int) -> None:
        """Begin with a message that is now the first of its key: ready, or in flight since before a restart."""
        if offset in self.flights:
            self._note(offset)
        else:
            self._make_ready(offset)

    def _make_ready(self, offset: int) -> None:
        if offset not in self._is_ready:
            self._is_ready.add(offset)
            heappush(self._ready, offset)

    def take(
        self,
        now_ms: int,
        max_messages: int,
        invisible_ms: int,
        *,
        max_bytes: float = inf,
        at_least: int = 1,
        room: float = inf,
        attempt_id: str | None = None,
    ) -> tuple[list[Delivery], list[int]]:
        """Deliver ready messages, the lowest offsets first; return the deliveries, and the offsets to dead-letter.

        The deliveries have at most `max_bytes` together; the first `at_least` of them may have more, up to `room`.
        Other messages stay `ready`. Call `end` for each message that was dead-lettered; until then it holds its key.
        """
        self._release(now_ms)
        offsets: list[int] = []
        dead: list[int] = []
        used = 0
        while self._ready and len(offsets) < max_messages:
            offset = heappop(self._ready)
            if offset not in self._is_ready:
                continue
            if self.is_over(offset):
                dead.append(offset)
            else:
                used += self._weights.get(offset, 0)
                if used > room or (used > max_bytes and len(offsets) >= at_least):
                    heappush(self._ready, offset)
                    break
                offsets.append(offset)
            self._is_ready.remove(offset)
        for offset in dead:
            # It stays ready, so that the next pop returns it again if this caller dies.
            self._make_ready(offset)
        given = self.deliver(offsets, now_ms, invisible_ms, attempt_id)
        for offset in offsets:
            self._note(offset)
        return given, dead

    def repeat(self, attempt_id: str, now_ms: int, invisible_ms: int, max_messages: int) -> list[Delivery]:
        """Deliver once more what the pop of this id was given; what does not fit is ready again."""
        offsets = self.of_attempt(attempt_id, now_ms)
        given = super().repeat(attempt_id, now_ms, invisible_ms, max_messages)
        for offset in offsets:
            self._is_ready.discard(offset)
            self._note(offset)
        return given

    def weight_of(self, deliveries: Iterable[Delivery]) -> int:
        """Return the size of the deliveries in an answer, in bytes, as far as it is known."""
        return sum(self._weights.get(delivery.offset, 0) for delivery in deliveries)

    def _note(self, offset: int) -> None:
        heappush(self._due, (self.flights[offset].visible_ms, offset))

    def _release(self, now_ms: int) -> None:
        while self._due and self._due[0][0] <= now_ms:
            visible_ms, offset = heappop(self._due)
            flight = self.flights.get(offset)
            if flight is not None and flight.visible_ms == visible_ms and self._is_first(offset):
                self._make_ready(offset)

    def next_release(self) -> int | None:
        """Return when the next invisible time ends, for a pop that waits; None when nothing is in flight."""
        while self._due:
            visible_ms, offset = self._due[0]
            flight = self.flights.get(offset)
            if flight is not None and flight.visible_ms == visible_ms:
                return visible_ms
            heappop(self._due)
        return None

    def change(self, delivery: Delivery, now_ms: int, invisible_ms: int, *, given_back: bool = False) -> Delivery:
        """Change the invisible time; 0 releases the message, which is delivered again before others of its key."""
        changed = super().change(delivery, now_ms, invisible_ms, given_back=given_back)
        self._is_ready.discard(changed.offset)
        self._note(changed.offset)
        return changed

    def condemn(self, delivery: Delivery, now_ms: int, reason: str | None = None) -> None:
        """Mark a message for the dead letters, as its consumer asked: the next `take` returns it among the dead."""
        super().condemn(delivery, now_ms, reason)
        if self._is_first(delivery.offset):
            self._make_ready(delivery.offset)

    def end(self, offset: int) -> None:
        """Mark a message as done: acknowledged, or in the dead letters."""
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
        """End everything below `min_offset`, which retention has removed; the caller records the loss."""
        # In order of offset, so that each one is the first of its key when it ends.
        for offset in sorted(offset for offset in {*self._key_of, *self.flights} if offset < min_offset):
            self.end(offset)
        self.skip(self.committed, min_offset)
