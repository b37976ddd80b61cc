"""Ordered pops by key (SPEC POP-8, POP-9, POP-17; RocketMQ #10827, #6163, #8772)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamq.mq.errors import Conflict
from deltamq.mq.queue.keyed_pop import KeyedPop
from deltamq.mq.queue.ordered_pop import Delivery, OrderedPop
from deltamq.mq.queue.progress import Committed, Delivered

MINUTE = 60_000


def lane(keys: str = "", *, max_attempts: int | None = 16, start: Committed | None = None, most: int = 100) -> KeyedPop:
    """A lane to which messages with these keys were offered; `-` is no key."""
    one = KeyedPop(start or Committed(1, 0), max_attempts=max_attempts, outstanding_max=most)
    if keys:
        one.offer(keyed(keys), len(keys))
    return one


def keyed(keys: str) -> list[tuple[int, str | None]]:
    return [(offset, None if key == "-" else key) for offset, key in enumerate(keys)]


def offsets(one: KeyedPop, count: int = 32, now_ms: int = 0) -> list[int]:
    given_now, dead = one.take(now_ms, count, MINUTE)
    assert not dead
    return [delivery.offset for delivery in given_now]


def test_pop_17_one_message_of_each_key_at_a_time() -> None:
    one = lane("abaca--")
    assert offsets(one) == [0, 1, 3, 5, 6]
    assert offsets(one) == []
    one.ack(Delivery(0, 1, 0), 1)
    assert offsets(one, now_ms=1) == [2]
    one.ack(Delivery(2, 1, 1), 2)
    assert offsets(one, now_ms=2) == [4]


def test_rely_8_a_pop_stops_at_its_bytes_and_goes_on_there() -> None:
    one = lane()
    one.offer(keyed("abcde"), 5, {0: 40, 1: 40, 2: 100, 3: 10, 4: 10})

    def taken(max_bytes: int, at_least: int = 1) -> list[int]:
        found, _ = one.take(0, 32, MINUTE, max_bytes=max_bytes, at_least=at_least)
        return [delivery.offset for delivery in found]

    assert taken(10, at_least=0) == [] and one.ready == 5
    assert taken(80) == [0, 1] and one.ready == 3
    assert taken(50) == [2], "one at least, whatever it weighs"
    assert taken(50) == [3, 4] and one.ready == 0
    assert one.weight_of([Delivery(1, 1, 0), Delivery(2, 1, 0)]) == 140
    one.end(2)
    assert one.weight_of([Delivery(2, 1, 0)]) == 0


def test_rely_8_a_pop_takes_nothing_that_there_is_no_room_for() -> None:
    one = lane()
    one.offer(keyed("abc"), 3, {0: 40, 1: 40, 2: 40})
    assert one.take(0, 32, MINUTE, room=39) == ([], []) and one.ready == 3 and one.flights == {}
    assert [delivery.offset for delivery in one.take(0, 32, MINUTE, room=80)[0]] == [0, 1]
    assert [delivery.offset for delivery in one.take(0, 32, MINUTE, max_bytes=10, room=40)[0]] == [2]


def test_rely_8_what_is_to_be_dead_lettered_has_no_weight_in_an_answer() -> None:
    one = lane(max_attempts=1)
    one.offer(keyed("ab"), 2, {0: 70, 1: 70})
    assert offsets(one) == [0, 1]
    one.change(Delivery(1, 1, 0), 1, 3 * MINUTE)
    one.offer([(2, "c"), (3, "d")], 4, {2: 70, 3: 70})
    assert one.take(MINUTE, 32, MINUTE, max_bytes=100) == ([Delivery(2, 1, MINUTE)], [0])
    assert one.ready == 2, "the dead one, and what did not fit"


def test_pop_17_the_offset_moves_over_what_is_done() -> None:
    one = lane("abc")
    offsets(one)
    one.ack(Delivery(1, 1, 0), 1)
    assert one.committed == 0
    assert one.progress() == Committed(1, 0, ((1, 2),), (Delivered(0, 1, 0, MINUTE), Delivered(2, 1, 0, MINUTE)))
    one.ack(Delivery(0, 1, 0), 1)
    assert one.committed == 2


def test_pop_17_a_poison_key_stops_only_itself() -> None:
    one = lane("pabpab")
    for at in range(5):
        now_ms = at * MINUTE
        for delivery in one.take(now_ms, 32, MINUTE)[0] + one.take(now_ms, 32, MINUTE)[0]:
            if delivery.offset != 0:
                one.ack(delivery, now_ms)
    assert one.committed == 0
    assert one.outstanding == 2, "only the poison and what waits behind it"


def test_pop_17_a_poison_message_ends_in_the_dead_letters_and_its_key_goes_on() -> None:
    one = lane("pp", max_attempts=2)
    assert offsets(one) == [0]
    assert offsets(one, now_ms=MINUTE) == [0]
    given_now, dead = one.take(2 * MINUTE, 32, MINUTE)
    assert (given_now, dead) == ([], [0])
    assert one.take(2 * MINUTE, 32, MINUTE) == ([], [0]), "told until it is done"
    one.end(0)
    assert offsets(one, now_ms=2 * MINUTE) == [1]
    one.end(0)


def test_pop_17_after_the_invisible_time_the_message_comes_again_before_the_next_of_its_key() -> None:
    one = lane("aa")
    offsets(one)
    assert offsets(one, now_ms=MINUTE - 1) == []
    given_now, _ = one.take(MINUTE, 32, MINUTE)
    assert given_now == [Delivery(0, 2, MINUTE)]


def test_pop_17_a_released_message_comes_again_at_once() -> None:
    one = lane("aab")
    offsets(one)
    one.change(Delivery(0, 1, 0), 5, 0)
    assert one.next_release() == 5
    assert one.take(5, 32, MINUTE)[0] == [Delivery(0, 2, 6)]
    with pytest.raises(Conflict):
        one.ack(Delivery(0, 1, 0), 6)


def test_pop_09_a_change_moves_the_time() -> None:
    one = lane("a")
    offsets(one)
    assert one.next_release() == MINUTE
    new = one.change(Delivery(0, 1, 0), 5, 2 * MINUTE)
    assert one.next_release() == 5 + 2 * MINUTE
    assert offsets(one, now_ms=MINUTE) == []
    one.ack(new, MINUTE)
    assert one.committed == 1 and one.next_release() is None


def test_pop_08_acking_twice_is_harmless_and_an_old_handle_is_refused() -> None:
    one = lane("a")
    offsets(one)
    with pytest.raises(Conflict) as refused:
        one.ack(Delivery(0, 1, 0), MINUTE)
    assert refused.value.code == "handle_expired"
    offsets(one, now_ms=MINUTE)
    one.ack(Delivery(0, 2, MINUTE), MINUTE)
    one.ack(Delivery(0, 2, MINUTE), MINUTE)


def test_pop_17_memory_is_bounded() -> None:
    one = lane("aaaa", most=4)
    assert (one.room, one.read_from, one.outstanding) == (0, None, 4)
    offsets(one)
    one.ack(Delivery(0, 1, 0), 1)
    assert (one.room, one.read_from) == (1, 4)
    with pytest.raises(AssertionError):
        one.offer([(4, "a"), (5, "b")], 6)


def test_cons_3_filtered_messages_count_as_consumed() -> None:
    one = lane()
    one.offer([(3, "a"), (7, "b")], 10)
    assert one.committed == 3
    assert offsets(one) == [3, 7]
    one.ack(Delivery(3, 1, 0), 1)
    one.ack(Delivery(7, 1, 0), 1)
    assert one.committed == 10


def test_pop_17_after_a_crash_what_is_done_stays_done_and_leases_go_on() -> None:
    one = lane("abab")
    offsets(one)
    one.ack(Delivery(1, 1, 0), 1)
    after = lane("abab", start=one.progress())
    assert after.take(5, 32, MINUTE)[0] == [Delivery(3, 1, 5)]
    assert after.next_release() == MINUTE
    assert after.take(MINUTE, 32, MINUTE)[0] == [Delivery(0, 2, MINUTE)]


def test_pop_08_a_handle_from_before_a_crash_is_good_before_its_key_is_known() -> None:
    one = lane("aabbc")
    offsets(one)
    after = lane(start=one.progress())
    after.ack(Delivery(0, 1, 0), 1)
    renewed = after.change(Delivery(2, 1, 0), 2, 2 * MINUTE)
    after.condemn(Delivery(4, 1, 0), 3)
    assert after.take(4, 32, MINUTE) == ([], []), "nothing is known yet"
    after.offer(keyed("aabbc")[1:], 5)
    assert after.take(5, 32, MINUTE) == ([Delivery(1, 1, 5)], [4])
    assert after.take(MINUTE, 32, MINUTE) == ([], [4])
    after.ack(renewed, MINUTE)
    assert [one.offset for one in after.take(MINUTE, 32, MINUTE)[0]] == [3]


def test_pop_17_several_flights_of_one_key_follow_each_other() -> None:
    """The group was popped with `order: true` before; a restart let it change that."""
    line = OrderedPop(Committed(1, 0), max_attempts=16)
    first = line.new(range(4), 4, 0, MINUTE)
    after = lane("aaab", start=line.progress())
    assert offsets(after, now_ms=MINUTE - 1) == []
    assert offsets(after, now_ms=MINUTE) == [0, 3]
    with pytest.raises(Conflict):
        after.ack(first[1], MINUTE)
    after.ack(Delivery(0, 2, MINUTE), MINUTE + 1)
    assert offsets(after, now_ms=MINUTE + 1) == [1]


def test_pop_17_one_behind_others_of_its_key_ends_and_leaves_the_line() -> None:
    line = OrderedPop(Committed(1, 0), max_attempts=16)
    first = line.new(range(3), 3, 0, MINUTE)
    after = lane("aaa", start=line.progress())
    after.ack(first[1], 1)
    after.condemn(first[2], 2)
    assert after.take(2, 32, MINUTE) == ([], []), "its turn has not come"
    after.ack(first[0], 3)
    assert after.take(3, 32, MINUTE) == ([], [2])
    after.end(2)
    assert (after.committed, after.outstanding, after.flights) == (3, 0, {})


@pytest.mark.parametrize("kind", [OrderedPop, KeyedPop])
def test_cons_3_what_is_filtered_out_after_a_restart_holds_nothing(kind: type[OrderedPop | KeyedPop]) -> None:
    """The consumers came back with other tags."""
    one = lane("ab")
    offsets(one)
    one.offer([(3, "c")], 4)
    offsets(one, now_ms=1)
    after = kind(Committed(1, 0, (), one.progress().delivered), max_attempts=16)
    if isinstance(after, KeyedPop):
        after.offer([(2, "b")], 4)
        assert sorted(after.flights) == []
        assert offsets(after, now_ms=2) == [2]
    else:
        assert after.turn(2, 32).wait_until_ms == MINUTE + 1
        assert after.turn(MINUTE + 1, 32).again == (0, 1)
        for delivery in after.again((0, 1), MINUTE + 1, MINUTE):
            after.ack(delivery, MINUTE + 1)
        assert [d.offset for d in after.new([2], 4, MINUTE + 1, MINUTE)] == [2]
        assert sorted(after.flights) == [2]
    after.ack(Delivery(2, 1, after.flights[2].pop_time_ms), MINUTE + 1)
    assert after.committed == 4


def test_pop_17_a_condemned_message_is_dead_also_after_a_crash() -> None:
    one = lane("aa", max_attempts=None)
    offsets(one)
    one.condemn(Delivery(0, 1, 0), 5)
    assert one.take(5, 32, MINUTE) == ([], [0])
    after = lane("aa", max_attempts=None, start=one.progress())
    assert after.take(5, 32, MINUTE) == ([], [0])
    after.end(0)
    assert offsets(after, now_ms=5) == [1]


def test_pop_12_retention_ends_what_is_below_it() -> None:
    one = lane("aabb")
    offsets(one)
    one.lose_below(3)
    assert one.committed == 3
    assert offsets(one, now_ms=1) == [3]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pop"), st.integers(1, 5)),
        st.tuples(st.just("ack"), st.integers(0, 6)),
        st.tuples(st.just("change"), st.integers(0, 6)),
        st.tuples(st.just("wait"), st.sampled_from([1, 500, 1_000])),
        st.tuples(st.just("crash"), st.integers(0, 1)),
    ),
    max_size=40,
)


class World:
    """A lane with a log of messages, and what its clients hold."""

    def __init__(self, keys: str, limit: int | None) -> None:
        self.messages, self.limit = keyed(keys), limit
        self.lane = lane(max_attempts=limit, most=5)
        self.stored = self.lane.progress()
        self.now_ms = 0
        self.held: dict[int, Delivery] = {}
        self.deliveries: list[Delivery] = []
        self.done: set[int] = set()
        self.dead: set[int] = set()
        self.counts: dict[int, int] = {}

    def pop(self, count: int) -> None:
        for _ in range(2):
            given_now, dead = self.lane.take(self.now_ms, count, 1_000)
            for delivery in given_now:
                self.check(delivery)
            for offset in dead:
                assert self.counts[offset] == self.limit
                self.dead.add(offset)
                self.lane.end(offset)
            start = self.lane.read_from
            if start is not None:
                stop = min(len(self.messages), start + self.lane.room)
                self.lane.offer(self.messages[start:stop], stop)
        assert self.lane.outstanding <= 5

    def check(self, delivery: Delivery) -> None:
        offset = delivery.offset
        key = self.messages[offset][1]
        assert offset not in self.done | self.dead, "delivered after it was done"
        assert offset not in self.held or self.held[offset].pop_time_ms + 1_000 <= self.now_ms, "two leases"
        before = {at for at, other in self.messages[:offset] if key is not None and other == key}
        assert before <= self.done | self.dead, "overtaken"
        assert delivery.attempt == self.counts.get(offset, 0) + 1
        self.counts[offset] = delivery.attempt
        self.held[offset] = delivery
        self.deliveries.append(delivery)

    def finish(self, kind: str, which: int) -> None:
        delivery = self.deliveries[-1 - which % len(self.deliveries)]
        try:
            if kind == "change":
                self.deliveries.append(self.lane.change(delivery, self.now_ms, 0))
            else:
                self.lane.ack(delivery, self.now_ms)
                if delivery.offset not in self.dead:
                    self.done.add(delivery.offset)
            self.held.pop(delivery.offset, None)
        except Conflict:
            mine = self.held.get(delivery.offset) == delivery and self.now_ms < delivery.pop_time_ms + 1_000
            assert not mine, "a live handle was refused"

    def crash(self, reads: int) -> None:
        """All is stored after each step here, so leases go on; the first pop may come later than handles."""
        self.lane = lane(max_attempts=self.limit, start=self.stored, most=5)
        if reads:
            self.pop(0)


@settings(max_examples=settings.default.max_examples * 2)
@given(st.text(alphabet="aab-", max_size=12), steps, st.sampled_from([None, 2, 3]))
def test_pop_17_per_key_order_holds_whatever_happens(
    keys: str, sequence: list[tuple[str, int]], limit: int | None
) -> None:
    world = World(keys, limit)
    for kind, value in sequence:
        if kind == "pop":
            world.pop(value)
        elif kind == "wait":
            world.now_ms += value
        elif kind == "crash":
            world.crash(value)
        elif world.deliveries:
            world.finish(kind, value)
        world.stored = world.stored.join(world.lane.progress())
    rounds = 0
    while world.lane.committed < len(keys):
        world.now_ms += 1_000
        world.pop(5)
        while world.held:
            offset, delivery = world.held.popitem()
            if not (world.done | world.dead) & {offset}:
                try:
                    world.lane.ack(delivery, world.now_ms)
                    world.done.add(offset)
                except Conflict:
                    pass
        rounds += 1
        assert rounds < 100, "stuck"
    assert world.done | world.dead == set(range(len(keys)))
