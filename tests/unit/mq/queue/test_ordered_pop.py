"""Ordered pops of a whole partition (SPEC POP-8, POP-9, POP-16)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamq.mq.errors import Conflict
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.keyed_pop import KeyedPop
from deltamq.mq.queue.ordered_pop import Delivery, OrderedLane, OrderedPop, PopTurn, dead_producer_id
from deltamq.mq.queue.progress import Committed, Delivered

MINUTE = 60_000


def lane(*, max_attempts: int | None = 16, start: Committed | None = None) -> OrderedPop:
    return OrderedPop(start or Committed(1, 0), max_attempts=max_attempts)


def popped(one: OrderedPop, count: int = 3, now_ms: int = 0) -> list[Delivery]:
    turn = one.turn(now_ms, count)
    if turn.read_from is None:
        return one.again(turn.again, now_ms, MINUTE)
    return one.new(range(turn.read_from, turn.read_from + count), turn.read_from + count, now_ms, MINUTE)


def acked(one: OrderedPop, deliveries: list[Delivery], now_ms: int = 1) -> None:
    for delivery in deliveries:
        one.ack(delivery, now_ms)


def test_pop_16_a_batch_holds_the_partition_until_all_of_it_is_acked() -> None:
    one = lane()
    first = popped(one)
    assert first == [Delivery(0, 1, 0), Delivery(1, 1, 0), Delivery(2, 1, 0)]
    acked(one, first[1:])
    assert one.turn(1, 32) == PopTurn(wait_until_ms=MINUTE)
    assert one.committed == 0
    acked(one, first[:1])
    assert one.committed == 3
    assert one.turn(1, 32) == PopTurn(read_from=3)


def test_pop_16_the_same_messages_come_again_in_order_after_the_invisible_time() -> None:
    one = lane()
    first = popped(one)
    acked(one, [first[1]])
    assert one.turn(MINUTE - 1, 32).again == ()
    again = popped(one, now_ms=MINUTE)
    assert again == [Delivery(0, 2, MINUTE), Delivery(2, 2, MINUTE)]
    acked(one, again, MINUTE + 1)
    assert one.committed == 3


def test_pop_16_a_smaller_pop_gets_the_first_of_them() -> None:
    one = lane()
    popped(one, 4)
    assert [d.offset for d in popped(one, 2, now_ms=MINUTE)] == [0, 1]
    assert one.turn(MINUTE + 1, 2) == PopTurn(wait_until_ms=2 * MINUTE)
    acked(one, [Delivery(0, 2, MINUTE), Delivery(1, 2, MINUTE)], MINUTE + 1)
    assert [d.offset for d in popped(one, 2, now_ms=MINUTE + 1)] == [2, 3]


def test_pop_08_a_handle_of_a_delivery_that_is_over_is_refused() -> None:
    one = lane()
    old = popped(one)
    with pytest.raises(Conflict) as refused:
        acked(one, old, MINUTE)
    assert refused.value.code == "handle_expired"
    new = popped(one, now_ms=MINUTE)
    with pytest.raises(Conflict):
        acked(one, old, MINUTE + 1)
    acked(one, new, MINUTE + 1)
    acked(one, new, MINUTE + 1)
    acked(one, old, 9 * MINUTE)


def test_pop_16_two_pops_in_one_millisecond_have_different_handles() -> None:
    one = lane()
    first = popped(one)
    for delivery in first:
        one.change(delivery, 0, 0)
    again = popped(one)
    assert [d.attempt for d in again] == [2, 2, 2]
    assert not {d.pop_time_ms for d in first} & {d.pop_time_ms for d in again}
    with pytest.raises(Conflict):
        acked(one, first, 0)


def test_pop_09_a_change_moves_the_time_and_kills_the_old_handle() -> None:
    one = lane()
    (old, *_) = popped(one, 1)
    new = one.change(old, 10, 2 * MINUTE)
    assert new == Delivery(0, 1, 10), "the attempt is the same"
    assert one.turn(MINUTE, 1) == PopTurn(wait_until_ms=10 + 2 * MINUTE)
    with pytest.raises(Conflict):
        one.change(old, 11, MINUTE)
    acked(one, [new], MINUTE)
    assert one.committed == 1


def test_pop_16_a_released_message_holds_the_others_only_as_long_as_they_fly() -> None:
    one = lane()
    first = popped(one, 2)
    one.change(first[0], 5, 0)
    assert one.turn(5, 32) == PopTurn(wait_until_ms=MINUTE)
    acked(one, first[1:], 6)
    assert one.turn(6, 32) == PopTurn(again=(0,))


def test_pop_16_a_message_that_failed_too_often_is_dead_and_the_partition_goes_on() -> None:
    one = lane(max_attempts=2)
    popped(one)
    popped(one, now_ms=MINUTE)
    assert one.turn(2 * MINUTE, 32) == PopTurn(dead=(0, 1, 2))
    assert one.turn(2 * MINUTE, 32) == PopTurn(dead=(0, 1, 2)), "told until it is done"
    for offset in range(3):
        one.end(offset)
    assert one.turn(2 * MINUTE, 32) == PopTurn(read_from=3)


def test_order_8_without_a_limit_a_message_is_repeated_for_ever() -> None:
    one = lane(max_attempts=None)
    for at in range(50):
        (delivery,) = popped(one, 1, now_ms=at * MINUTE)
        assert delivery.attempt == at + 1


def test_cons_3_filtered_messages_count_as_consumed() -> None:
    one = lane()
    assert one.new([2, 5], 9, 0, MINUTE) == [Delivery(2, 1, 0), Delivery(5, 1, 0)]
    assert one.committed == 2
    acked(one, [Delivery(2, 1, 0), Delivery(5, 1, 0)])
    assert one.committed == 9
    assert one.new([], 20, 1, MINUTE) == []
    assert one.turn(1, 1) == PopTurn(read_from=20)


def test_pop_16_after_a_crash_leases_go_on_and_the_rest_is_counted_on() -> None:
    one = lane(max_attempts=2)
    first = popped(one)
    acked(one, [first[1]])
    after = lane(max_attempts=2, start=one.progress())
    assert after.turn(5, 32) == PopTurn(wait_until_ms=MINUTE)
    assert after.turn(MINUTE, 32) == PopTurn(again=(0, 2))
    again = after.again((0, 2), MINUTE, MINUTE)
    assert again == [Delivery(0, 2, MINUTE), Delivery(2, 2, MINUTE)]
    third = lane(max_attempts=2, start=after.progress())
    acked(third, again[:1], MINUTE + 1)
    assert third.turn(2 * MINUTE, 32) == PopTurn(dead=(2,)), "it was delivered twice"
    third.end(2)
    assert third.turn(2 * MINUTE, 32) == PopTurn(read_from=3)


def test_pop_09_a_handle_from_before_a_crash_is_as_good_as_it_was() -> None:
    one = lane()
    first = popped(one)
    renewed = one.change(first[2], 5, 2 * MINUTE)
    after = lane(start=one.progress())
    with pytest.raises(Conflict):
        after.change(first[2], 6, MINUTE)
    acked(after, [*first[:2], renewed], 6)
    assert after.committed == 3


def test_pop_16_a_new_handle_differs_from_all_before_a_crash() -> None:
    one = lane()
    (old,) = popped(one, 1, now_ms=9)
    after = lane(start=one.progress())
    released = after.change(old, 9, 0)
    assert released.pop_time_ms == 10, "in the same millisecond, or with a clock that went back"
    (new,) = popped(after, 1, now_ms=9)
    assert (new.attempt, new.pop_time_ms) == (2, 11)


def test_pop_16_leases_are_no_longer_when_the_clock_is_set_back() -> None:
    """By its machine, or since another one, whose clock was ahead, served the lane before."""
    one = lane()
    hour = 60 * MINUTE
    first = popped(one, 2, now_ms=hour)
    after = lane(start=one.progress())
    assert after.turn(0, 32) == PopTurn(wait_until_ms=hour + MINUTE), "as long as it was said"
    renewed = after.change(first[0], 5, MINUTE)
    assert renewed.pop_time_ms > first[0].pop_time_ms, "a fold of what is stored takes the newer one"
    acked(after, [renewed, first[1]], 6)
    assert [d.pop_time_ms for d in popped(after, 2, now_ms=7)] == [7, 7]
    assert after.turn(8, 32) == PopTurn(wait_until_ms=7 + MINUTE)


def test_pop_16_what_was_not_delivered_between_flights_comes_in_its_place() -> None:
    """The group was popped by key before; a restart let it change that."""
    keyed = KeyedPop(Committed(1, 0), max_attempts=16)
    keyed.offer([(0, "a"), (1, "a"), (2, "b")], 3)
    keyed.take(0, 32, MINUTE)
    one = lane(start=keyed.progress())
    assert one.turn(5, 32) == PopTurn(wait_until_ms=MINUTE), "the partition is held"
    assert one.turn(MINUTE, 32) == PopTurn(again=(0,)), "nothing overtakes 1"
    acked(one, one.again((0,), MINUTE, MINUTE), MINUTE)
    assert one.turn(MINUTE + 1, 32) == PopTurn(read_from=1)
    assert one.new([1, 2, 3], 4, MINUTE + 1, MINUTE) == [
        Delivery(1, 1, MINUTE + 1), Delivery(2, 2, MINUTE + 1), Delivery(3, 1, MINUTE + 1)
    ]  # fmt: skip


def test_pop_16_a_message_over_its_limit_waits_for_those_before_it() -> None:
    """A clock that goes back while messages are read puts a lease off that was over."""
    start = Committed(1, 0, (), (Delivered(2, 9, 0, MINUTE),))
    one = lane(max_attempts=3, start=start)
    given_now = one.new([0, 1, 2, 3], 4, 0, MINUTE)
    assert given_now == [Delivery(0, 1, 1), Delivery(1, 1, 1)]
    acked(one, given_now)
    assert one.turn(1, 9) == PopTurn(wait_until_ms=MINUTE)
    assert one.turn(MINUTE, 9) == PopTurn(dead=(2,))


@pytest.mark.parametrize("limit", [None, 9])
def test_pop_16_a_condemned_message_is_dead_also_after_a_crash(limit: int | None) -> None:
    one = lane(max_attempts=limit)
    first = popped(one)
    one.condemn(first[1], 5)
    assert one.turn(5, 32) == PopTurn(dead=(1,)), "the others fly on"
    after = lane(max_attempts=limit, start=one.progress())
    assert after.turn(9, 32) == PopTurn(dead=(1,))
    assert after.is_condemned(1) and after.attempts_of(1) == 1
    for known in (one, after):
        with pytest.raises(Conflict):
            known.condemn(first[1], 6)
        known.end(1)
        acked(known, first)
        assert known.committed == 3


def test_retry_3_the_reason_goes_with_a_lane_that_a_handle_had_opened() -> None:
    one = lane()
    first = popped(one)
    opened = OrderedLane(one.progress(), max_attempts=None)
    opened.condemn(first[1], 5, "no such customer")
    after = opened.as_kind(OrderedPop, max_attempts=3)
    assert after.turn(5, 32) == PopTurn(dead=(1,))
    assert after.reason_of(1) == "no such customer"


@pytest.mark.parametrize("kind", [OrderedPop, KeyedPop])
def test_retry_3_the_reason_waits_with_the_message_for_whoever_buries_it(kind: type[OrderedPop | KeyedPop]) -> None:
    """A pop may come between the condemnation and the dead letter, and write it first."""
    one = kind(Committed(1, 0), max_attempts=3)
    if isinstance(one, KeyedPop):
        one.offer([(0, "k")], 1)
        ((delivery,), _) = one.take(0, 1, MINUTE)
    else:
        (delivery,) = one.new([0], 1, 0, MINUTE)
    one.condemn(delivery, 5, "no such customer")
    dead = one.take(6, 32, MINUTE)[1] if isinstance(one, KeyedPop) else list(one.turn(6, 32).dead)
    assert (dead, one.reason_of(0)) == ([0], "no such customer")
    one.end(0)
    assert one.reason_of(0) is None


def test_retry_3_each_dead_letter_of_a_lane_is_one_request() -> None:
    lanes = [LaneKey("id-1", "g", False, "o@A"), LaneKey("id-1", "g", False, "o@B"), LaneKey("id-1", "h", False, "o@A")]
    ids = {dead_producer_id(one, epoch, offset) for one in lanes for epoch in (1, 2) for offset in (1, 2)}
    assert len(ids) == 12


def test_pop_12_retention_ends_what_was_in_flight_below_it() -> None:
    one = lane()
    popped(one)
    one.lose_below(2)
    assert one.committed == 2
    assert sorted(one.flights) == [2]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pop"), st.integers(1, 4)),
        st.tuples(st.just("ack"), st.integers(0, 5)),
        st.tuples(st.just("change"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 500, 1_000])),
        st.tuples(st.just("crash"), st.booleans()),
    ),
    max_size=40,
)


TOTAL = 12
INVISIBLE_MS = 1_000


class World:
    """A lane over a log of messages, and what its clients hold."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.lane = lane(max_attempts=limit)
        self.stored = self.lane.progress()
        self.now_ms = 0
        self.held: dict[int, Delivery] = {}
        self.deliveries: list[Delivery] = []
        self.done: set[int] = set()
        self.dead: set[int] = set()
        self.counts: dict[int, int] = {}

    def pop(self, count: int) -> None:
        turn = self.lane.turn(self.now_ms, count)
        for offset in turn.dead:
            assert self.counts[offset] == self.limit
            self.dead.add(offset)
            self.lane.end(offset)
        if turn.read_from is None:
            given_now = self.lane.again(turn.again, self.now_ms, INVISIBLE_MS)
        else:
            stop = min(TOTAL, turn.read_from + count)
            given_now = self.lane.new(range(turn.read_from, stop), stop, self.now_ms, INVISIBLE_MS)
        assert [d.offset for d in given_now] == sorted(d.offset for d in given_now)
        for delivery in given_now:
            self.check(delivery, {d.offset for d in given_now})
        self.deliveries += given_now

    def check(self, delivery: Delivery, batch: set[int]) -> None:
        offset = delivery.offset
        assert offset not in self.done | self.dead, "delivered after it was done"
        assert offset not in self.held or self.held[offset].pop_time_ms + INVISIBLE_MS <= self.now_ms, "two leases"
        assert set(range(offset)) <= self.done | self.dead | batch | set(self.held), "overtaken"
        assert delivery.attempt == self.counts.get(offset, 0) + 1
        self.counts[offset] = delivery.attempt
        self.held[offset] = delivery

    def finish(self, kind: str, which: int) -> None:
        delivery = self.deliveries[-1 - which % len(self.deliveries)]
        offset = delivery.offset
        try:
            if kind == "change":
                self.deliveries.append(self.lane.change(delivery, self.now_ms, 0))
            else:
                self.lane.ack(delivery, self.now_ms)
                self.done |= {offset} - self.dead
            self.held.pop(offset, None)
        except Conflict:
            mine = self.held.get(offset) == delivery and self.now_ms < delivery.pop_time_ms + INVISIBLE_MS
            assert not mine, "a live handle was refused"

    def crash(self, by_handle: bool) -> None:
        """All is stored after each step here, so leases go on; a handle may open the lane before a pop does."""
        start = self.stored
        if by_handle:
            self.lane = OrderedLane(start, max_attempts=None).as_kind(OrderedPop, max_attempts=self.limit)
        else:
            self.lane = lane(max_attempts=self.limit, start=start)

    def drain(self) -> None:
        for _ in range(50):
            self.now_ms += INVISIBLE_MS
            self.pop(4)
            for offset in list(self.held):
                self.deliveries.append(self.held[offset])
                self.finish("ack", 0)
        assert self.lane.committed == TOTAL, "stuck"


@settings(max_examples=settings.default.max_examples * 2)
@given(steps, st.sampled_from([None, 2, 3]))
def test_pop_16_nothing_is_lost_overtaken_or_given_twice(sequence: list[tuple[str, int]], limit: int | None) -> None:
    world = World(limit)
    for kind, value in sequence:
        if kind == "pop":
            world.pop(value)
        elif kind == "wait":
            world.now_ms += value
        elif kind == "crash":
            world.crash(bool(value))
        elif world.deliveries:
            world.finish(kind, value)
        world.stored = world.stored.join(world.lane.progress())
        assert world.lane.committed <= min(set(range(TOTAL + 1)) - world.done - world.dead)
    world.drain()
    assert world.done | world.dead == set(range(TOTAL))
