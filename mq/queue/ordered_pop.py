"""Ordered pops: which messages of a partition may be delivered to a group now.

`order: true` (SPEC POP-16): a popped batch holds the partition. Nothing more is popped until all of it is acknowledged.
Messages that are not acknowledged are delivered again in order when their invisible time has ended:

    pop -> 7 8 9      ack 8      pop -> nothing      60 s later: pop -> 7 9      ack 7 9      pop -> 10 ...

A pop may have an `attempt_id` (SPEC POP-20). Repeated with it, since its answer was lost, it gets the same messages
with new leases and new handles, and the handles of the lost answer are void. So nothing waits for the invisible time,
and two clients never have a message at once. Only memory knows this: after a restart the messages come after their
time.

Before each answer, the state that must survive a crash or a takeover is stored (`progress`): the committed offset, the
offsets above it that are done, and the leases of the rest. So the next owner knows the handles of the previous one, and
delivers nothing again before its time.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.limits import ATTEMPT_ID_LENGTH_MAX, ORDERED_REVIVE_QUEUE
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.lane import InFlight
from deltamq.mq.queue.progress import Committed, Delivered

#: Added to the attempts of a message that its consumer sent to the dead letters, so that a crash does not forget it.
CONDEMNED: Final = 1 << 30
#: A clock that is further than this behind the newest pop time was set back.
_SET_BACK_MS: Final = 1_000
#: The reason of a dead letter whose own reason was forgotten: the stored progress of a lane does not hold reasons.
REJECTED: Final = "rejected"
_ATTEMPT_ID: Final = re.compile(rf"[!-~]{{1,{ATTEMPT_ID_LENGTH_MAX}}}")


def check_attempt_id(attempt_id: str, *, in_order: bool) -> str:
    """Return the id of a pop that may be repeated; raise `Unprocessable` if it is no id, or there is no order."""
    if _ATTEMPT_ID.fullmatch(attempt_id) is None:
        raise Unprocessable(
            f"attempt_id must be 1 to {ATTEMPT_ID_LENGTH_MAX} visible ASCII characters",
            code="invalid_attempt_id",
            field="attempt_id",
            extra={"limit": ATTEMPT_ID_LENGTH_MAX},
        )
    if not in_order:
        raise Unprocessable(
            'attempt_id: only a pop in order can be repeated; ask for order true or "key", or leave attempt_id out',
            code="attempt_id_without_order",
            field="attempt_id",
        )
    return attempt_id


def dead_producer_id(lane: LaneKey, epoch: int, offset: int) -> str:
    """Return the idempotent producer whose request 0 is the dead letter of this message, so that it is stored once."""
    return f"ordered-{_digest(lane, epoch, offset)}"


def retry_producer_id(lane: LaneKey, epoch: int, offset: int) -> str:
    """Return the idempotent producer whose request 0 is this message in the retry topic, so that it is stored once."""
    return f"overdue-{_digest(lane, epoch, offset)}"


def _digest(lane: LaneKey, epoch: int, offset: int) -> str:
    return hashlib.sha256(json.dumps([*lane, epoch, offset]).encode()).hexdigest()[:32]


class Delivery(NamedTuple):
    """One delivery of a message to a client, as its handle identifies it.

    The attempt is part of the identity: after a crash before a pop was stored, its pop time may be used again.
    """

    offset: int
    #: The number of this delivery of the message, from 1 on.
    attempt: int
    pop_time_ms: int


class Flight(msgspec.Struct):
    """A message that was delivered and is not done."""

    attempt: int
    pop_time_ms: int
    #: When the message may be delivered again.
    visible_ms: int
    #: The id of the pop that got the message; None without one, and when a handle of the delivery was used.
    attempt_id: str | None = None
    #: Who holds it, as the client named itself; only memory knows it (SPEC LOOK-4).
    client_id: str = ""
    #: Whether it was given back as failed, and no client holds it; only memory knows it, too.
    given_back: bool = False


class PopTurn(msgspec.Struct, frozen=True):
    """What a pop may do now."""

    #: Offsets to deliver again, in order, and nothing else with them.
    again: tuple[int, ...] = ()
    #: Offsets that were delivered too often: dead-letter them, call `end`, and ask for the next turn.
    dead: tuple[int, ...] = ()
    #: Offset to read new messages from; None when messages in flight hold the partition.
    read_from: int | None = None
    #: When the next delivery is possible, if none is possible now.
    wait_until_ms: int | None = None


def _expired() -> Conflict:
    return Conflict("the message was released or delivered again", code="handle_expired", field="handle")


class OrderedLane:
    """The state that both kinds of ordered pops share. Not safe for threads: pops of a lane are serial (SPEC POP-2).

    `max_attempts` is None where a failing message is repeated in place for ever (SPEC ORDER-8).

    By itself it knows the messages in flight and what handles do to them, but not in which order the rest follows.
    It serves a handle that comes before the first pop; that pop then converts the lane to its kind (`as_kind`).
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
        #: The offset at which new messages begin.
        self.next_offset = start.offset
        #: Messages that are delivered and not done, by offset.
        self.flights = {
            lease.offset: Flight(lease.attempt, lease.pop_time_ms, lease.visible_ms)
            for lease in start.delivered
            if not self.is_done(lease.offset)
        }
        #: End of the flights from before a restart; below it, flights may lie at or behind `next_offset`.
        self._unread_end = 1 + max(self.flights, default=-1)
        self._pop_time_ms = max((flight.pop_time_ms for flight in self.flights.values()), default=-1)
        #: Reasons that consumers gave for dead letters, by offset; a restart forgets them.
        self._reasons: dict[int, str] = {}

    def as_kind(self, kind: Callable[..., Kind], *, max_attempts: int | None) -> Kind:
        """Return this lane converted to `kind`."""
        after = kind(self.progress(), max_attempts=max_attempts)
        after._reasons.update(self._reasons)
        return after

    def limit(self, max_attempts: int | None) -> None:
        """Set the limit of deliveries; the group's settings may change while messages are in flight."""
        self._max_attempts = CONDEMNED if max_attempts is None else max_attempts

    def pop_time(self, now_ms: int) -> int:
        """Return the pop time of a delivery: later than all earlier ones, so that a handle names one delivery.

        If the clock was set back, or the clock of the previous owner was ahead, the current time is used: leases then
        have the requested length by the current clock, and only the attempt distinguishes handles.
        """
        next_ms = self._pop_time_ms + 1
        self._pop_time_ms = next_ms if now_ms < next_ms <= now_ms + _SET_BACK_MS else now_ms
        return self._pop_time_ms

    def deliver(
        self, offsets: Sequence[int], now_ms: int, invisible_ms: int, attempt_id: str | None = None
    ) -> list[Delivery]:
        """Deliver these messages to a client now, by the pop that has this id."""
        if not offsets:
            return []
        pop_time_ms = self.pop_time(now_ms)
        given = []
        for offset in offsets:
            before = self.flights.get(offset)
            attempt = before.attempt + 1 if before else 1
            self.flights[offset] = Flight(attempt, pop_time_ms, pop_time_ms + invisible_ms, attempt_id)
            given.append(Delivery(offset, attempt, pop_time_ms))
        return given

    def of_attempt(self, attempt_id: str, now_ms: int) -> list[int]:
        """Return the offsets that the pop of this id was given, and that are leased still, in order."""
        flights = self.flights.items()
        return sorted(at for at, flight in flights if flight.attempt_id == attempt_id and now_ms < flight.visible_ms)

    def repeat(self, attempt_id: str, now_ms: int, invisible_ms: int, max_messages: int) -> list[Delivery]:
        """Deliver once more what the pop of this id was given: its answer was lost, and it was repeated (SPEC POP-20).

        The leases begin again, and the handles of the lost answer are void. It is the same delivery of each message, so
        it does not count again. Messages beyond `max_messages` are released: no client has a handle of these.
        """
        offsets = self.of_attempt(attempt_id, now_ms)
        if not offsets:
            return []
        newest_ms = max(self.flights[offset].pop_time_ms for offset in offsets)
        pop_time_ms = max(self.pop_time(now_ms), newest_ms + 1)
        for at, offset in enumerate(offsets):
            flight = self.flights[offset]
            flight.pop_time_ms = pop_time_ms
            flight.visible_ms = pop_time_ms + invisible_ms if at < max_messages else now_ms
        return [Delivery(at, self.flights[at].attempt, pop_time_ms) for at in offsets[:max_messages]]

    @property
    def done(self) -> OffsetRanges:
        """The offsets above the committed one that are done."""
        return self._done

    def is_done(self, offset: int) -> bool:
        return offset < self.committed or offset in self._done

    def attempts_of(self, offset: int) -> int:
        """Return how often the message was delivered."""
        return self._counted(offset) % CONDEMNED

    def is_condemned(self, offset: int) -> bool:
        """Return whether a consumer has sent the message to the dead letters."""
        return self._counted(offset) >= CONDEMNED

    def is_over(self, offset: int) -> bool:
        """Return whether the message must be dead-lettered instead of delivered again."""
        return self._counted(offset) >= self._max_attempts

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether there are messages in flight, and the invisible time of all of them has ended."""
        return bool(self.flights) and all(flight.visible_ms <= now_ms for flight in self.flights.values())

    def in_flight(self, key: LaneKey) -> Iterator[InFlight]:
        """Yield the messages in flight, of a lane with this key (SPEC LOOK-4)."""
        for offset, flight in self.flights.items():
            yield InFlight(
                key,
                offset,
                flight.client_id,
                flight.pop_time_ms,
                flight.visible_ms,
                self.attempts_of(offset),
                flight.given_back,
                self.is_condemned(offset),
                self.epoch,
                ORDERED_REVIVE_QUEUE,
            )

    def _counted(self, offset: int) -> int:
        flight = self.flights.get(offset)
        return flight.attempt if flight else 0

    def _flight(self, delivery: Delivery, now_ms: int) -> Flight:
        """Return the flight that a handle refers to; raises `Conflict` (`handle_expired`) when it is over."""
        offset, attempt, pop_time_ms = delivery
        flight = self.flights.get(offset)
        if flight is None or (flight.attempt, flight.pop_time_ms) != (attempt, pop_time_ms):
            raise _expired()
        if now_ms >= flight.visible_ms:
            raise _expired()
        # A client with the handle has had the answer, so it does not repeat the pop for this message.
        flight.attempt_id = None
        return flight

    def ack(self, delivery: Delivery, now_ms: int) -> None:
        """Acknowledge one message; a repetition is harmless (SPEC POP-8).

        Raises
        ------
        Conflict
            `handle_expired`: the delivery is over and the message is not done.
        """
        if not self.is_done(delivery.offset):
            self._flight(delivery, now_ms)
            self.end(delivery.offset)

    def change(self, delivery: Delivery, now_ms: int, invisible_ms: int, *, given_back: bool = False) -> Delivery:
        """Change the invisible time (SPEC POP-9); return the delivery of the new handle. The old handle expires.

        0 releases the message: it may be delivered again at once. `given_back`: its client has failed, and no client
        holds the message.
        """
        flight = self._flight(delivery, now_ms)
        flight.pop_time_ms = max(self.pop_time(now_ms), flight.pop_time_ms + 1)
        flight.visible_ms = flight.pop_time_ms + invisible_ms if invisible_ms else now_ms
        flight.given_back = given_back
        if given_back:
            flight.client_id = ""
        return delivery._replace(pop_time_ms=flight.pop_time_ms)

    def condemn(self, delivery: Delivery, now_ms: int, reason: str | None = None) -> None:
        """Mark a message for the dead letters, as its consumer asked: the next turn returns it among the dead.

        The reason is kept for the caller that writes the dead letter: this one, or a pop that comes in between. Store
        `progress` before the dead letter, so that a crash between the two does not bring the message back.
        """
        flight = self._flight(delivery, now_ms)
        flight.attempt += CONDEMNED
        flight.visible_ms = now_ms
        if reason is not None:
            self._reasons[delivery.offset] = reason

    def reason_of(self, offset: int) -> str | None:
        """Return the reason that the consumer gave for a dead letter; None without one, or after a restart."""
        return self._reasons.get(offset)

    def end(self, offset: int) -> None:
        """Mark a message as done: acknowledged, or in the dead letters."""
        self.flights.pop(offset, None)
        self._reasons.pop(offset, None)
        self.skip(offset, offset + 1)

    def lose_below(self, min_offset: int) -> None:
        """End everything below `min_offset`, which retention has removed; the caller records the loss."""
        for offset in [offset for offset in self.flights if offset < min_offset]:
            self.end(offset)
        self.skip(self.committed, min_offset)

    def skip(self, low: int, high: int) -> None:
        """Skip offsets that need no delivery: done, filtered out, or removed by retention."""
        self._done.add(low, high)
        self.committed = self._done.gap_from(self.committed)
        self._done.drop_below(self.committed)
        self.next_offset = max(self.next_offset, self.committed)

    def skip_between(self, offsets: Iterable[int], next_offset: int) -> None:
        """Skip the new messages up to `next_offset`, except `offsets`."""
        at = start = self.next_offset
        for offset in offsets:
            self.skip(at, offset)
            at = offset + 1
        self.skip(at, next_offset)
        self.next_offset = max(next_offset, self.committed)
        if start < self._unread_end:
            # Messages that were delivered before a restart, and are filtered out now, are done as well.
            for offset in [offset for offset in self.flights if self.is_done(offset)]:
                del self.flights[offset]
                self._reasons.pop(offset, None)

    def progress(self) -> Committed:
        """Return the progress to store, from which a lane goes on after a crash."""
        flights = sorted(self.flights.items())
        leases = tuple(Delivered(at, flight.attempt, flight.pop_time_ms, flight.visible_ms) for at, flight in flights)
        return Committed(self.epoch, self.committed, tuple(self._done), leases)


#: The kind of an ordered lane.
Kind = TypeVar("Kind", bound=OrderedLane)


class OrderedPop(OrderedLane):
    """The lane of a partition that is popped with `order: true`."""

    __slots__ = ()

    def __init__(self, start: Committed, *, max_attempts: int | None) -> None:
        super().__init__(start, max_attempts=max_attempts)
        # A group that was popped by key before may have undelivered messages between its flights: read from the first.
        behind = OffsetRanges([*start.done, *((offset, offset + 1) for offset in self.flights)])
        self.next_offset = behind.gap_from(self.next_offset)

    def turn(self, now_ms: int, max_messages: int) -> PopTurn:
        """Return what a pop may do now: wait, deliver the same messages again, or read new ones (POP-16)."""
        flights = self.flights
        if not flights:
            return PopTurn(read_from=self.next_offset)
        offsets = sorted(flights)
        dead = tuple(at for at in offsets if flights[at].visible_ms <= now_ms and self.is_over(at))
        if dead:
            return PopTurn(dead=dead)
        wait_until_ms = max(flight.visible_ms for flight in flights.values())
        if now_ms < wait_until_ms:
            return PopTurn(wait_until_ms=wait_until_ms)
        again = offsets[: bisect_left(offsets, self.next_offset)]
        return PopTurn(again=tuple(again[:max_messages])) if again else PopTurn(read_from=self.next_offset)

    def again(
        self, offsets: Sequence[int], now_ms: int, invisible_ms: int, attempt_id: str | None = None
    ) -> list[Delivery]:
        """Deliver again the messages that `turn` named; the ones that it left out follow later."""
        return self.deliver(offsets, now_ms, invisible_ms, attempt_id)

    def new(
        self,
        offsets: Sequence[int],
        next_offset: int,
        now_ms: int,
        invisible_ms: int,
        attempt_id: str | None = None,
    ) -> list[Delivery]:
        """Deliver new messages, read from `PopTurn.read_from` up to `next_offset`; the rest was filtered out.

        Stops before a message that was delivered too often, which the next `turn` returns among the dead.
        """
        wanted = [offset for offset in offsets if not self.is_done(offset)]
        over = next((at for at, offset in enumerate(wanted) if self.is_over(offset)), len(wanted))
        if over < len(wanted):
            next_offset = wanted[over]
        self.skip_between(wanted[:over], next_offset)
        return self.deliver(wanted[:over], now_ms, invisible_ms, attempt_id)
