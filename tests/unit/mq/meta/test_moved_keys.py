"""Order of keys across expansions (SPEC ROUTE-6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Corrupt
from deltamq.mq.meta.fold import event_from_json, event_to_json
from deltamq.mq.meta.moved_keys import (
    KeysMoved,
    Move,
    MovedKeys,
    MoveEvent,
    MoveSealed,
    decide_seal,
    first_blocked,
    moves_between,
    moves_of,
)
from deltamq.mq.meta.topic_settings import OrderStrategy, TopicRequest
from deltamq.mq.meta.topics import Event, MetaState, decide_put_topic
from deltamq.mq.routing import Route, expand, new_route

AB = ("A", "B")
TWO = new_route("orders", 2, AB)
FOUR = expand(TWO, "orders", 4, AB)
MOVES = moves_between(TWO, FOUR)
ALL_BUT = {"orders@A": 10**9, "orders@B": 10**9}


def moved(*events: MoveEvent) -> MovedKeys:
    return MovedKeys().apply_all([KeysMoved(topic_id="id-1", moves=MOVES), *events])


def sealed(source: str, end_offset: int, epoch: int = FOUR.epoch) -> MoveSealed:
    return MoveSealed(topic_id="id-1", epoch=epoch, source=source, end_offset=end_offset)


def test_route_06_an_expansion_says_what_moved_from_where() -> None:
    of_a, of_b = MOVES
    assert of_a == Move(2, "orders@A", "orders#1@A", ((256, 512),))
    assert of_b == Move(2, "orders@B", "orders#2@B", ((768, 1024),))
    assert moves_between(FOUR, FOUR) == ()


def test_route_06_messages_go_to_the_old_partition_until_it_is_sealed() -> None:
    assert moved().table(FOUR).tolist() == TWO.table.tolist()
    half = moved(sealed("orders@A", 120)).table(FOUR)
    assert half[:512].tolist() == FOUR.table[:512].tolist()
    assert half[512:].tolist() == TWO.table[512:].tolist()
    assert moved(sealed("orders@A", 120), sealed("orders@B", 7)).table(FOUR).tolist() == FOUR.table.tolist()


def test_route_06_moved_keys_wait_until_the_old_partition_is_consumed_to_its_end() -> None:
    state = moved(sealed("orders@A", 120))
    assert state.sources("orders#1@A") == {"orders@A"}
    blocked = state.blocked("orders#1@A", {"orders@A": 119})
    assert blocked is not None
    assert np.flatnonzero(blocked).tolist() == list(range(256, 512))
    assert state.blocked("orders#1@A", {"orders@A": 120}) is None
    assert state.blocked("orders@A", {}) is None, "an old partition waits for nothing"
    unsealed = state.blocked("orders#2@B", ALL_BUT)
    assert unsealed is not None and unsealed.sum() == 256


def test_route_06_a_batch_is_cut_before_the_first_key_that_waits() -> None:
    blocked = moved().blocked("orders#1@A", ALL_BUT)
    lps = np.array([0, 300, 300, 1], dtype=np.int16)
    assert first_blocked(blocked, np.where([True, False, True, True], lps, -1)) == 2
    assert first_blocked(blocked, np.where([True, False, False, True], lps, -1)) == 4
    assert first_blocked(None, lps) == 4


def test_route_06_every_partition_on_the_way_counts() -> None:
    """No message of a key need ever have been in the one in the middle."""
    eight = expand(FOUR, "orders", 8, AB)
    state = moved(sealed("orders@A", 120), sealed("orders@B", 7))
    state = state.apply_all([KeysMoved(topic_id="id-1", moves=moves_between(FOUR, eight))])
    state = state.apply_all(sealed(source, 0, eight.epoch) for source in FOUR.partitions)
    target = eight.partitions[eight.table[511]]
    assert state.sources(target) == {"orders@A", "orders#1@A"}
    blocked = state.blocked(target, {"orders@A": 119, "orders#1@A": 0})
    assert blocked is not None and blocked[511]
    assert state.blocked(target, {"orders@A": 120, "orders#1@A": 0}) is None


def test_route_06_who_appends_knows_the_moves_up_to_the_first_that_waits() -> None:
    eight = expand(FOUR, "orders", 8, AB)
    later = KeysMoved(topic_id="id-1", moves=moves_between(FOUR, eight))
    for events, known in [
        ([], 0),
        ([sealed("orders@A", 5)], 2),
        ([sealed("orders@A", 5), later], 2),
        ([later, sealed("orders@A", 9, epoch=3)], 0),
        ([later, sealed("orders@A", 9, epoch=3), sealed("orders@A", 5)], 3),
    ]:
        assert moved(*events).sealed_up_to("orders@A") == known, events
    assert moved(sealed("orders@A", 5)).sealed_up_to("orders#1@A") == 0
    assert MovedKeys().sealed_up_to("orders@A") == 0


def test_route_06_sealing_twice_changes_nothing() -> None:
    state = moved()
    (event,) = decide_seal(state, "id-1", "orders@A", 2, 120)
    state = state.apply_all([event])
    assert decide_seal(state, "id-1", "orders@A", 2, 125) == ()
    assert decide_seal(state, "id-1", "orders#1@A", 2, 0) == ()
    assert (state.unsealed("orders@A"), state.unsealed("orders@B")) == ((), (2,))


@pytest.mark.parametrize("event", [KeysMoved(topic_id="id-1", moves=MOVES), sealed("orders@A", 5)])
def test_meta_04_events_survive_the_log(event: MoveEvent) -> None:
    assert event_from_json(event.kind, event_to_json(event)) == event
    with pytest.raises(Corrupt, match=event.kind):
        event_from_json(event.kind, b'{"topic_id": 7}')


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(KeysMoved(topic_id="id-1", moves=MOVES), id="the same expansion again"),
        pytest.param(sealed("orders#1@A", 3), id="a seal of what did not move"),
        pytest.param(sealed("orders@B", 8), id="another end"),
    ],
)
def test_meta_02_a_log_that_contradicts_itself_is_corrupt(event: MoveEvent) -> None:
    with pytest.raises(Corrupt):
        moved(sealed("orders@B", 7)).apply_all([event])


class Topic:
    """A strict topic of a few LPs, and a group that consumes its partitions in order."""

    def __init__(self) -> None:
        self.route: Route = TWO
        self.moved = MovedKeys()
        self.logs: dict[str, list[tuple[int, int]]] = {partition: [] for partition in TWO.partitions}
        self.sent: dict[int, int] = {}
        self.position = dict.fromkeys(TWO.partitions, 0)
        self.got: dict[int, int] = {}

    def send(self, lp: int) -> None:
        number = self.sent[lp] = self.sent.get(lp, -1) + 1
        self.logs[self.route.partitions[self.moved.table(self.route)[lp]]].append((lp, number))

    def expand(self, by: int) -> None:
        after = expand(self.route, "orders", len(self.route.partitions) + by, AB)
        self.moved = self.moved.apply_all([KeysMoved(topic_id="id", moves=moves_between(self.route, after))])
        self.route = after
        for partition in after.partitions:
            self.logs.setdefault(partition, [])
            self.position.setdefault(partition, 0)

    def seal(self, which: int) -> None:
        waiting = [(source, epoch) for source in self.logs for epoch in self.moved.unsealed(source)]
        if waiting:
            source, epoch = waiting[which % len(waiting)]
            self.moved = self.moved.apply_all(decide_seal(self.moved, "id", source, epoch, len(self.logs[source])))

    def consume(self, which: int, count: int) -> int:
        partition = self.route.partitions[which % len(self.route.partitions)]
        at = self.position[partition]
        batch = self.logs[partition][at : at + count]
        lps = np.array([lp for lp, _ in batch], dtype=np.int16)
        blocked = self.moved.blocked(partition, self.position)
        taken = first_blocked(blocked, lps)
        for lp, number in batch[:taken]:
            assert number == self.got.get(lp, -1) + 1, f"LP {lp} came out of order in {partition}"
            self.got[lp] = number
        self.position[partition] += taken
        return taken


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([0, 255, 256, 400, 511, 512, 700, 768, 1023])),
        st.tuples(st.just("consume"), st.integers(0, 9), st.integers(1, 3)),
        st.tuples(st.just("expand"), st.integers(1, 3)),
        st.tuples(st.just("seal"), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(steps=steps)
def test_route_06_keys_stay_in_order_whatever_moves_and_all_arrive(steps: list[tuple[Any, ...]]) -> None:
    topic = Topic()
    for name, *arguments in steps:
        if name != "expand" or len(topic.route.partitions) < 9:
            getattr(topic, name)(*arguments)
    while any(topic.moved.unsealed(source) for source in topic.logs):
        topic.seal(0)
    while any(topic.consume(which, 100) for which in range(len(topic.route.partitions))):
        pass
    assert topic.got == topic.sent


@pytest.mark.parametrize(("strategy", "moved"), [("strict", 1), ("best_tried", 0)])
def test_route_06_only_an_expansion_of_a_strict_topic_moves_keys_in_order(strategy: OrderStrategy, moved: int) -> None:
    def put(state: MetaState, **asked: Any) -> tuple[Event, ...]:
        return decide_put_topic(state, "orders", TopicRequest(**asked), ("a", "b"), "id-1", 0)

    state = MetaState().apply_all(put(MetaState(), partitions=2, order_strategy=strategy))
    assert moves_of(state, put(state, retention_ms=3_600_000)) == [], "the route stays"
    assert len(moves_of(state, put(state, partitions=4))) == moved
