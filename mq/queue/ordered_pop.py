"""Ordered pops: which messages of a partition a group may have now.

`order: true` (SPEC POP-16): a popped batch holds the partition. Nothing more is popped until all of it is
acknowledged; what is not comes again when its invisible time has ended, in order:

    pop -> 7 8 9      ack 8      pop -> nothing      60 s later: pop -> 7 9      ack 7 9      pop -> 10 ...

What must survive a crash or a takeover is stored before each answer (`progress`): the committed offset, what is done
above it, and the leases of the rest. Whoever goes on from there knows the handles that were given out, and delivers
nothing again before its time.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from mq.errors import Conflict
from mq.offset_ranges import OffsetRanges
from mq.queue.checkpoint import LaneKey
from mq.queue.progress import Committed, Delivered

__all__ = ["CONDEMNED", "REJECTED", "Delivery", "Flight", "OrderedLane", "OrderedPop", "Turn", "dead_producer_id"]


#: Added to the attempts of a message whose consumer condemned it, so that a crash does not forget it.
CONDEMNED: Final = 1 << 30
#: A clock that is farther behind the newest pop time was set back.
_SET_BACK_MS: Final = 1_000
#: Why it is dead, where nobody knows the words any more: what is stored of a lane has no room for them.
REJECTED: Final = "rejected"


def dead_producer_id(lane: LaneKey, epoch: int, offset: int) -> str:
    """The idempotent producer that dead-letters this message of an ordered lane, as its request 0: stored once."""
    digest = hashlib.sha256(json.dumps([*lane, epoch, offset]).encode()).hexdigest()
    return f"ordered-{digest[:32]}"


class Delivery(NamedTuple):
    """One message given to a client, and what its handle says.

    The attempt is part of it: after a crash that came before a pop was stored, its pop time may be given again.
    """

    offset: int
    #: Which delivery of the message this is, from 1 on.
    attempt: int
    pop_time_ms: int


@dataclass(slots=True)
class Flight:
    """A message that was delivered and is not done."""

    attempt: int
    pop_time_ms: int
    #: When it may be delivered again.
    visible_ms: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What a pop may do now."""

    #: These again, in order; nothing else with them.
    again: tuple[int, ...] = ()
    #: Delivered too often: dead-letter them, report `end`, and ask again.
    dead: tuple[int, ...] = ()
    #: Read new messages from here; None when something holds the partition.
    read_from: int | None = None
    #: When the next delivery is possible, if nothing is now.
    wait_until_ms: int | None = None


def _expired() -> Conflict:
    """The answer to a handle whose delivery is over."""
    return Conflict("the message was released, or is delivered anew", code="handle_expired", field="handle")


class OrderedLane:
    """What ordered pops of both kinds share. Not safe for threads: the pops of a lane are serial (SPEC POP-2).

    `max_attempts` is None where a failing message is repeated in place for ever (SPEC ORDER-8).

    By itself it knows what is in flight and what handles do to it, but not in which order the rest follows: so a lane
    is opened by a handle that comes before the first pop, which makes it one of a kind (`as_kind`).
    """

    __slots__ = (
        "_done",
        "_max_attempts",
        "_pop_time_ms",
        "_reasons",
        "_unread_end",
        "committed",
        "epoch",
        "flights",
        "next_offset",
    )

    def __init__(self, start: Committed, *, max_attempts: int | None) -> None:
        self.epoch = start.epoch
        self.limit(max_attempts)
        self._done = OffsetRanges(start.done)
        self.committed = start.offset
        #: Where new messages begin.
        self.next_offset = start.offset
        #: Delivered and not done, by offset.
        self.flights = {at: Flight(*lease) for at, *lease in start.delivered if not self.is_done(at)}
        #: Below it there may be flights at or behind `next_offset`: from before a restart.
        self._unread_end = 1 + max(self.flights, default=-1)
        self._pop_time_ms = max((flight.pop_time_ms for flight in self.flights.values()), default=-1)
        #: Why consumers want messages dead; a restart forgets it.
        self._reasons: dict[int, str] = {}

    def as_kind(self, kind: Callable[..., Kind], *, max_attempts: int | None) -> Kind:
        """The same lane as one of this kind."""
        after = kind(self.progress(), max_attempts=max_attempts)
        after._reasons.update(self._reasons)
        return after

    def limit(self, max_attempts: int | None) -> None:
        """The group's settings have changed while messages are in flight."""
        self._max_attempts = CONDEMNED if max_attempts is None else max_attempts

    def pop_time(self, now_ms: int) -> int:
        """The pop time of a delivery: later than all before it, so that a handle names one delivery.

        Not so when the clock was set back, or that of who had the lane before was ahead: leases are as long as they are
        asked to be by the clock of now, and the attempt alone tells handles apart.
        """
        next_ms = self._pop_time_ms + 1
        self._pop_time_ms = next_ms if now_ms < next_ms <= now_ms + _SET_BACK_MS else now_ms
        return self._pop_time_ms

    def deliver(self, offsets: Sequence[int], now_ms: int, invisible_ms: int) -> list[Delivery]:
        """Note that these are given to a client now."""
        if not offsets:
            return []
        pop_time_ms = self.pop_time(now_ms)
        given = []
        for offset in offsets:
            before = self.flights.get(offset)
            attempt = before.attempt + 1 if before else 1
            self.flights[offset] = Flight(attempt, pop_time_ms, pop_time_ms + invisible_ms)
            given.append(Delivery(offset, attempt, pop_time_ms))
        return given

    @property
    def done(self) -> OffsetRanges:
        """What is done above the committed offset."""
        return self._done

    def is_done(self, offset: int) -> bool:
        return offset < self.committed or offset in self._done

    def attempts_of(self, offset: int) -> int:
        """How often the message was delivered."""
        return self._counted(offset) % CONDEMNED

    def is_condemned(self, offset: int) -> bool:
        """Whether a consumer wants the message dead."""
        return self._counted(offset) >= CONDEMNED

    def is_over(self, offset: int) -> bool:
        """Whether the message is not to be delivered again, but dead-lettered."""
        return self._counted(offset) >= self._max_attempts

    def _counted(self, offset: int) -> int:
        flight = self.flights.get(offset)
        return flight.attempt if flight else 0

    def _flight(self, delivery: Delivery, now_ms: int) -> Flight:
        """The flight that a handle stands for; `handle_expired` when it is over."""
        offset, attempt, pop_time_ms = delivery
        flight = self.flights.get(offset)
        if flight is None or (flight.attempt, flight.pop_time_ms) != (attempt, pop_time_ms):
            raise _expired()
        if now_ms >= flight.visible_ms:
            raise _expired()
        return flight

    def ack(self, delivery: Delivery, now_ms: int) -> None:
        """Acknowledge one message; twice is harmless (SPEC POP-8).

        Raises
        ------
        Conflict
            `handle_expired`: the delivery is over and the message is not done.
        """
        if not self.is_done(delivery.offset):
            self._flight(delivery, now_ms)
            self.end(delivery.offset)

    def change(self, delivery: Delivery, now_ms: int, invisible_ms: int) -> Delivery:
        """A new invisible time (SPEC POP-9): the old handle is dead, the new one is for what is returned.

        0 releases the message: it may be delivered again at once.
        """
        flight = self._flight(delivery, now_ms)
        flight.pop_time_ms = max(self.pop_time(now_ms), flight.pop_time_ms + 1)
        flight.visible_ms = flight.pop_time_ms + invisible_ms if invisible_ms else now_ms
        return delivery._replace(pop_time_ms=flight.pop_time_ms)

    def condemn(self, delivery: Delivery, now_ms: int, reason: str | None = None) -> None:
        """Its consumer wants it dead-lettered: the next turn tells it as if it had failed too often.

        Whoever writes the dead letter, this caller or a pop that comes in between, finds the reason here. Store
        `progress` before the dead letter, and a crash between the two does not bring the message back.
        """
        flight = self._flight(delivery, now_ms)
        flight.attempt += CONDEMNED
        flight.visible_ms = now_ms
        if reason is not None:
            self._reasons[delivery.offset] = reason

    def reason_of(self, offset: int) -> str | None:
        """Why its consumer wants the message dead, if it said so and nobody has restarted since."""
        return self._reasons.get(offset)

    def end(self, offset: int) -> None:
        """The message is done: acknowledged, or in the dead letters."""
        self.flights.pop(offset, None)
        self._reasons.pop(offset, None)
        self.skip(offset, offset + 1)

    def lose_below(self, min_offset: int) -> None:
        """Retention has removed everything below: what was in flight there is over; the caller records the loss."""
        for offset in [offset for offset in self.flights if offset < min_offset]:
            self.end(offset)
        self.skip(self.committed, min_offset)

    def skip(self, low: int, high: int) -> None:
        """Offsets that need no delivery: done, filtered out, or removed by retention."""
        self._done.add(low, high)
        self.committed = self._done.gap_from(self.committed)
        self._done.drop_below(self.committed)
        self.next_offset = max(self.next_offset, self.committed)

    def skip_between(self, offsets: Iterable[int], next_offset: int) -> None:
        """Of the new messages up to `next_offset` only `offsets` need a delivery."""
        at = start = self.next_offset
        for offset in offsets:
            self.skip(at, offset)
            at = offset + 1
        self.skip(at, next_offset)
        self.next_offset = max(next_offset, self.committed)
        if start < self._unread_end:
            # What was delivered before a restart, and is filtered out now, is done as well.
            for offset in [offset for offset in self.flights if self.is_done(offset)]:
                del self.flights[offset]
                self._reasons.pop(offset, None)

    def progress(self) -> Committed:
        """What must be stored to go on from here after a crash."""
        flights = sorted(self.flights.items())
        leases = tuple(Delivered(at, one.attempt, one.pop_time_ms, one.visible_ms) for at, one in flights)
        return Committed(self.epoch, self.committed, tuple(self._done), leases)


#: Of which kind a lane is.
Kind = TypeVar("Kind", bound=OrderedLane)


class OrderedPop(OrderedLane):
    """`order: true` in one partition."""

    __slots__ = ()

    def __init__(self, start: Committed, *, max_attempts: int | None) -> None:
        super().__init__(start, max_attempts=max_attempts)
        # A group that was popped by key before has undelivered messages between its flights: read on from the first.
        behind = OffsetRanges([*start.done, *((offset, offset + 1) for offset in self.flights)])
        self.next_offset = behind.gap_from(self.next_offset)

    def turn(self, now_ms: int, max_messages: int) -> Turn:
        """What a pop may do now: nothing, the same messages again, or new ones (POP-16; R63, R65)."""
        flights = self.flights
        if not flights:
            return Turn(read_from=self.next_offset)
        offsets = sorted(flights)
        dead = tuple(at for at in offsets if flights[at].visible_ms <= now_ms and self.is_over(at))
        if dead:
            return Turn(dead=dead)
        wait_until_ms = max(flight.visible_ms for flight in flights.values())
        if now_ms < wait_until_ms:
            return Turn(wait_until_ms=wait_until_ms)
        again = offsets[: bisect_left(offsets, self.next_offset)]
        return Turn(again=tuple(again[:max_messages])) if again else Turn(read_from=self.next_offset)

    def again(self, offsets: Sequence[int], now_ms: int, invisible_ms: int) -> list[Delivery]:
        """Deliver what `turn` said again; what it left out stays behind these."""
        return self.deliver(offsets, now_ms, invisible_ms)

    def new(self, offsets: Sequence[int], next_offset: int, now_ms: int, invisible_ms: int) -> list[Delivery]:
        """Deliver new messages, read from where `turn` said up to `next_offset`; the rest was filtered out.

        Stops before a message that was delivered too often by now, which the next `turn` tells.
        """
        wanted = [offset for offset in offsets if not self.is_done(offset)]
        over = next((at for at, offset in enumerate(wanted) if self.is_over(offset)), len(wanted))
        if over < len(wanted):
            next_offset = wanted[over]
        self.skip_between(wanted[:over], next_offset)
        return self.deliver(wanted[:over], now_ms, invisible_ms)
