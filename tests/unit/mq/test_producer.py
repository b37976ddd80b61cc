"""The duplicate window of idempotent producers (SPEC SEND-5), against a plain model."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.producer import Part, ProducerWindow, part_from_json, part_to_json

REQUESTS, PRODUCERS, WINDOW_MS = 3, 4, 100


def part(producer: str, seq: int, *, base: int = 0, time_ms: int = 0) -> Part:
    return Part(producer_id=producer, seq=seq, base_offset=base, count=1, total=1, time_ms=time_ms)


def window() -> ProducerWindow:
    return ProducerWindow(producers_max=PRODUCERS, requests_kept=REQUESTS, window_ms=WINDOW_MS)


@given(
    st.builds(
        Part,
        producer_id=st.text(max_size=20),
        seq=st.integers(0, 2**62),
        base_offset=st.integers(0, 2**62),
        count=st.integers(1, 10**6),
        total=st.integers(1, 10**6),
        time_ms=st.integers(0, 2**52),
        indexes=st.none() | st.lists(st.integers(0, 10**6), unique=True, max_size=30).map(lambda x: tuple(sorted(x))),
    )
)
def test_a_part_survives_json(found: Part) -> None:
    import json

    assert part_from_json(json.loads(json.dumps(part_to_json(found)))) == found


def test_runs_of_positions_are_short() -> None:
    long = Part(
        producer_id="p", seq=1, base_offset=0, count=10_000, total=10_001, time_ms=0, indexes=tuple(range(10_000))
    )
    assert len(str(part_to_json(long))) < 60


def test_send_05_the_last_requests_of_a_producer_are_remembered() -> None:
    found = window()
    for seq in range(10):
        found.add(part("p", seq, base=seq))
    assert [found.find("p", seq) is not None for seq in range(10)] == [False] * 7 + [True] * 3
    seen = found.seen("p")
    assert seen is not None and seen.last_seq == 9


def test_send_05_parts_of_one_request_with_different_messages_are_apart() -> None:
    found = window()
    one, two = (replace(part("p", 1, base=base), total=9, indexes=at) for base, at in ((0, (1, 4)), (5, (2, 3))))
    found.extend([one, two])
    assert [found.find("p", 1, at) for at in ((4,), (3, 8), (0,))] == [one, two, None]
    assert found.find("p", 1) is one, "the whole request has messages of each"
    seen = found.seen("p")
    assert seen is not None and seen.parts == {1: (one, two)}
    found.add(replace(two, base_offset=7))
    assert found.find("p", 1, (2,)) == replace(two, base_offset=7), "a part that is there again is no third one"


def test_a_request_that_comes_late_is_remembered_unless_newer_ones_fill_the_window() -> None:
    found = window()
    found.extend([part("p", 5), part("p", 3), part("p", 4)])
    assert all(found.find("p", seq) for seq in (3, 4, 5))
    found.add(part("p", 1))
    assert found.find("p", 1) is None
    assert all(found.find("p", seq) for seq in (3, 4, 5))


def test_the_producers_that_were_silent_longest_are_forgotten_first() -> None:
    found = window()
    for name in "abcd":
        found.add(part(name, 1))
    found.add(part("a", 2))
    found.add(part("e", 1))
    assert [found.seen(name) is not None for name in "abcde"] == [True, False, True, True, True]


def test_producers_are_forgotten_after_the_window() -> None:
    found = window()
    found.add(part("a", 1, time_ms=0))
    found.add(part("b", 1, time_ms=50))
    found.add(part("c", 1, time_ms=101))
    assert [found.seen(name) is not None for name in "abc"] == [False, True, True]
    assert len(found) == 2


def test_what_is_asked_for_is_a_copy() -> None:
    found = window()
    found.add(part("p", 1))
    seen = found.seen("p")
    assert seen is not None
    seen.parts.clear()
    assert found.find("p", 1) is not None


PARTS = st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(0, 12), st.integers(0, 60)), min_size=1, max_size=60)


@given(PARTS)
@settings(max_examples=settings.default.max_examples * 2)
def test_the_window_is_the_newest_of_everything_and_bounded(steps: list[tuple[str, int, int]]) -> None:
    """A model that keeps all, and is asked what a bounded window must still know."""
    found, now = window(), 0
    history: list[Part] = []
    for base, (producer, seq, wait) in enumerate(steps):
        if found.find(producer, seq) is not None:
            continue  # it would not have been stored again
        now += wait
        stored = part(producer, seq, base=base, time_ms=now)
        found.add(stored)
        history.append(stored)
        assert len(found) <= PRODUCERS
    order: list[str] = []
    for stored in history:
        if stored.producer_id in order:
            order.remove(stored.producer_id)
        order.append(stored.producer_id)
    for producer in order[-PRODUCERS:]:
        mine = [p for p in history if p.producer_id == producer]
        newest = mine[-1]
        if newest.time_ms < now - WINDOW_MS or any(
            b.time_ms - a.time_ms > WINDOW_MS for a, b in itertools.pairwise(mine)
        ):
            continue
        highest = sorted({p.seq for p in mine}, reverse=True)[:REQUESTS]
        if newest.seq in highest:
            assert found.find(producer, newest.seq) is not None, "the newest request of a live producer"
    for producer in "abcdefg":
        seen = found.seen(producer)
        assert seen is None or len(seen.parts) <= REQUESTS


@given(PARTS)
def test_the_window_depends_only_on_the_order_of_the_parts(steps: list[tuple[str, int, int]]) -> None:
    """A process that reads the parts back gets the state of the one that wrote them."""
    one, two = window(), window()
    parts, now = [], 0
    for base, (producer, seq, wait) in enumerate(steps):
        now += wait
        parts.append(part(producer, seq, base=base, time_ms=now))
    for each in parts:
        one.add(each)
    two.extend(parts)
    assert [one.seen(p) for p in "abcdefg"] == [two.seen(p) for p in "abcdefg"]


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 5), st.integers(0, 30)), max_size=40))
def test_send_05_a_window_says_from_when_on_it_remembers_all(sent: list[tuple[str, int, int]]) -> None:
    """What it forgot for lack of room was seen before; what has become too old is another matter."""
    found, now_ms, last_ms = window(), 0, dict[str, int]()
    for producer, seq, later_ms in sent:
        now_ms += later_ms
        last_ms[producer] = now_ms
        found.add(part(producer, seq, time_ms=now_ms))
        for name, time_ms in last_ms.items():
            if time_ms >= max(found.whole_since_ms, now_ms - WINDOW_MS):
                assert found.seen(name) is not None
    if len(last_ms) < PRODUCERS:
        assert found.whole_since_ms == 0
