"""A pop in order whose answer was lost is repeated with its `attempt_id` (SPEC POP-20; RocketMQ #9695, #10827)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Conflict, Unprocessable
from deltamq.mq.limits import ATTEMPT_ID_LENGTH_MAX
from deltamq.mq.queue.keyed_pop import KeyedPop
from deltamq.mq.queue.ordered_pop import Delivery, OrderedPop, PopTurn, check_attempt_id
from deltamq.mq.queue.progress import Committed

MINUTE = 60_000
TOTAL = 12
KINDS = pytest.mark.parametrize("kind", [OrderedPop, KeyedPop])

Lane = OrderedPop | KeyedPop


def lane(kind: type[Lane] = OrderedPop, start: Committed | None = None, max_attempts: int = 16) -> Lane:
    return kind(start or Committed(1, 0), max_attempts=max_attempts)


def popped(
    one: Lane, count: int, now_ms: int, attempt_id: str | None = None, invisible_ms: int = MINUTE
) -> list[Delivery]:
    """Pop as the service does: messages 0 to `TOTAL`, each third of which has one key."""
    if isinstance(one, OrderedPop):
        turn = one.turn(now_ms, count)
        assert not turn.dead
        if turn.read_from is None:
            return one.again(turn.again, now_ms, invisible_ms, attempt_id)
        stop = min(TOTAL, turn.read_from + count)
        return one.new(range(turn.read_from, stop), stop, now_ms, invisible_ms, attempt_id)
    start = one.read_from
    if start is not None and start < TOTAL:
        one.offer([(offset, str(offset % 3)) for offset in range(start, TOTAL)], TOTAL)
    found, dead = one.take(now_ms, count, invisible_ms, attempt_id=attempt_id)
    assert not dead
    return found


def is_good(one: Lane, delivery: Delivery, now_ms: int) -> bool:
    """Whether the handle of a delivery is good; it counts as used."""
    try:
        one.change(delivery, now_ms, MINUTE)
    except Conflict as error:
        assert error.code == "handle_expired"
        return False
    return True


@KINDS
def test_pop_20_the_same_messages_with_new_leases_and_the_same_attempt(kind: type[Lane]) -> None:
    one = lane(kind)
    lost = popped(one, 3, 0, "x")
    again = one.repeat("x", 40_000, MINUTE, 32)
    assert again == [Delivery(offset, 1, 40_000) for offset in (0, 1, 2)]
    assert not any(is_good(one, delivery, 40_001) for delivery in lost), "nobody else has them"
    assert popped(one, 3, MINUTE, "y") == [], "the leases began anew"
    for delivery in again:
        one.ack(delivery, 99_999)
    assert one.committed == 3


@KINDS
def test_pop_20_in_the_same_millisecond_and_with_a_clock_that_went_back(kind: type[Lane]) -> None:
    one = lane(kind)
    handles = popped(one, 1, 90_000, "x")
    for now_ms in (90_000, 90_000, 5_000):
        handles += one.repeat("x", now_ms, MINUTE, 32)
    assert len(handles) == len(set(handles)) == 4
    assert [is_good(one, delivery, 5_000) for delivery in handles] == [False, False, False, True]


@KINDS
def test_pop_20_after_its_time_or_under_another_id_it_is_a_pop_like_others(kind: type[Lane]) -> None:
    one = lane(kind)
    popped(one, 3, 0, "x")
    assert one.repeat("y", 1, MINUTE, 32) == []
    assert one.repeat("x", MINUTE, MINUTE, 32) == []
    assert [(d.offset, d.attempt) for d in popped(one, 3, MINUTE, "y")] == [(0, 2), (1, 2), (2, 2)]
    assert one.repeat("x", MINUTE, MINUTE, 32) == [], "others have them now"
    assert len(one.repeat("y", MINUTE, MINUTE, 32)) == 3


@KINDS
def test_pop_20_a_message_whose_handle_was_used_is_left_out(kind: type[Lane]) -> None:
    one = lane(kind)
    first, second, third = popped(one, 3, 0, "x")
    one.ack(first, 1)
    one.change(second, 1, 2 * MINUTE)
    assert one.repeat("x", 2, MINUTE, 32) == [Delivery(2, 1, 2)]
    assert third.offset == 2 and one.flights[1].visible_ms == 1 + 2 * MINUTE, "a nack's wait stands"


@KINDS
def test_pop_20_what_does_not_fit_is_released_at_once(kind: type[Lane]) -> None:
    one = lane(kind)
    popped(one, 3, 0, "x")
    kept = one.repeat("x", 5, MINUTE, 1)
    assert [d.offset for d in kept] == [0]
    assert one.repeat("x", 6, MINUTE, 32) == [Delivery(0, 1, 6)], "it is asked for again"
    if isinstance(one, OrderedPop):
        assert one.turn(7, 32) == PopTurn(wait_until_ms=6 + MINUTE), "nothing overtakes the first"
        one.ack(Delivery(0, 1, 6), 7)
    assert [(d.offset, d.attempt) for d in popped(one, 2, 7, "y")] == [(1, 2), (2, 2)]


@KINDS
def test_pop_20_a_restart_forgets_the_id_and_keeps_the_leases(kind: type[Lane]) -> None:
    one = lane(kind)
    first = popped(one, 3, 0, "x")
    after = lane(kind, start=one.progress())
    assert after.repeat("x", 1, MINUTE, 32) == []
    assert popped(after, 3, 1, "x") == [], "not twice at once"
    assert is_good(after, first[0], 2)
    assert [d.offset for d in popped(after, 3, MINUTE + 1, "x")][:1] == ([] if kind is OrderedPop else [1])


@pytest.mark.parametrize("bad", ["", " ", "a b", "a\n", "é", "\x7f", "x" * (ATTEMPT_ID_LENGTH_MAX + 1)])
def test_pop_20_a_bad_id_is_refused_by_name(bad: str) -> None:
    with pytest.raises(Unprocessable) as refused:
        check_attempt_id(bad, in_order=True)
    assert (refused.value.code, refused.value.field) == ("invalid_attempt_id", "attempt_id")


def test_pop_20_an_id_without_order_is_refused() -> None:
    longest = "~" * ATTEMPT_ID_LENGTH_MAX
    assert check_attempt_id(longest, in_order=True) == longest
    with pytest.raises(Unprocessable) as refused:
        check_attempt_id("x", in_order=False)
    assert (refused.value.code, refused.value.field) == ("attempt_id_without_order", "attempt_id")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pop"), st.sampled_from("xyz"), st.integers(1, 4)),
        st.tuples(st.just("lose"), st.sampled_from("xyz"), st.integers(1, 4)),
        st.tuples(st.just("ack"), st.just(""), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.just(""), st.sampled_from([1, 400, 1_000])),
        st.tuples(st.just("crash"), st.just(""), st.just(0)),
    ),
    max_size=40,
)


class Clients:
    """Three clients that pop one lane, each with ids of its own; some answers are lost, and then the pop is repeated.

    A client repeats with the same id and the same number until it has an answer, as `PopConsumer` does.
    """

    def __init__(self, kind: type[Lane]) -> None:
        self.kind = kind
        self.lane = lane(kind, max_attempts=1_000)
        self.now_ms = 0
        #: The handle that a client has of each message.
        self.held: dict[int, Delivery] = {}
        #: The open pop of each client: its number of messages, and the ids used before.
        self.open: dict[str, int] = {}
        self.used: dict[str, int] = {}
        #: What each lost answer held, by client.
        self.lost: dict[str, list[int]] = {}
        self.done: set[int] = set()

    def pop(self, client: str, count: int, *, lost: bool) -> None:
        count = self.open.setdefault(client, count)
        attempt_id = f"{client}{self.used.get(client, 0)}"
        lost_now = self.lost.get(client, [])
        leased = [at for at in lost_now if at in self.lane.flights and self.lane.flights[at].visible_ms > self.now_ms]
        found = self.lane.repeat(attempt_id, self.now_ms, 1_000, count)
        assert [d.offset for d in found] == sorted(leased)[:count], "the same messages, while they are leased"
        found = found or popped(self.lane, count, self.now_ms, attempt_id, invisible_ms=1_000)
        for delivery in found:
            holder = self.held.get(delivery.offset)
            assert holder is None or not self.is_live(holder), "two clients have it at once"
        taken = {d.offset for d in found}
        self.lost = {who: [at for at in offsets if at not in taken] for who, offsets in self.lost.items()}
        if lost:
            self.lost[client] = [d.offset for d in found]
            return
        self.held |= {d.offset: d for d in found}
        self.lost.pop(client, None)
        del self.open[client]
        self.used[client] = self.used.get(client, 0) + 1

    def is_live(self, delivery: Delivery) -> bool:
        flight = self.lane.flights.get(delivery.offset)
        same = flight is not None and (flight.attempt, flight.pop_time_ms) == (delivery.attempt, delivery.pop_time_ms)
        return same and flight is not None and flight.visible_ms > self.now_ms

    def ack(self, which: int) -> None:
        good = [one for one in self.held.values() if self.is_live(one)]
        if good:
            delivery = good[which % len(good)]
            self.lane.ack(delivery, self.now_ms)
            self.done.add(delivery.offset)

    def crash(self) -> None:
        self.lane = lane(self.kind, self.lane.progress(), max_attempts=1_000)
        self.lost.clear()
        for client in self.open:
            self.used[client] = self.used.get(client, 0) + 1
        self.open.clear()

    def play(self, kind: str, client: str, number: int) -> None:
        if kind == "ack":
            self.ack(number)
        elif kind == "wait":
            self.now_ms += number
        elif kind == "crash":
            self.crash()
        else:
            self.pop(client, number, lost=kind == "lose")

    def drain(self) -> None:
        for _ in range(4 * TOTAL):
            self.now_ms += 1_000
            self.pop("x", 32, lost=False)
            while any(self.is_live(one) for one in self.held.values()):
                self.ack(0)
        assert self.done == set(range(TOTAL)) and self.lane.committed == TOTAL


@KINDS
@given(script=steps)
def test_pop_20_whatever_answers_are_lost_no_message_is_had_twice_or_stays_away(
    kind: type[Lane], script: list[tuple[str, str, int]]
) -> None:
    clients = Clients(kind)
    for step in script:
        clients.play(*step)
    clients.drain()
