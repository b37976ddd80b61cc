"""Group offsets: start, commit, reset, position, lag (SPEC CONS-2, CONS-4, POP-7, POP-12, POP-18)."""

from __future__ import annotations

import json
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Corrupt, Refused, Unprocessable
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import (
    Bounds,
    CommitNote,
    Committed,
    Delivered,
    OffsetRecord,
    Position,
    Start,
    StartKind,
    check_metadata,
    committed_of,
    decide_commit,
    first_position,
    lag_messages,
    read_position,
    reset_position,
)

LANE = LaneKey("id-1", "billing", False, "orders@A")
FIRST, LAST = Start(StartKind.FIRST), Start(StartKind.LAST)
AT_TIME = Start(StartKind.TIME, 5_000)

pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=4)
small = st.integers(0, 30)
committed = st.builds(
    Committed,
    st.integers(1, 3),
    st.integers(0, 30),
    pairs.map(lambda found: tuple((low, low + size) for low, size in found)),
    st.lists(st.builds(Delivered, small, st.integers(1, 3), small, small), max_size=4).map(tuple),
    st.none() | st.builds(CommitNote, st.integers(1, 3), st.text(max_size=2)),
)


@pytest.mark.parametrize(
    ("name", "start", "bounds", "pop", "offset"),
    [
        ("first", FIRST, Bounds(5, 10), True, 5),
        ("last: the last message", LAST, Bounds(5, 10), True, 9),
        ("last of an empty partition", LAST, Bounds(0, 0), True, 0),
        ("last where retention took all", LAST, Bounds(10, 10), True, 10),
        ("last of a pull: the end", LAST, Bounds(5, 10), False, 10),
        ("a time", AT_TIME, Bounds(5, 10, 7), True, 7),
        ("a time after all", AT_TIME, Bounds(5, 10, 10), True, 10),
    ],
)
def test_pop_07_where_a_group_starts(name: str, start: Start, bounds: Bounds, pop: bool, offset: int) -> None:
    assert first_position(start, bounds, pop=pop) == offset


@pytest.mark.parametrize(
    ("target", "offset"), [(FIRST, 5), (LAST, 10), (AT_TIME, 7), (0, 5), (6, 6), (10, 10), (11, 10)]
)
def test_pop_18_where_a_reset_goes(target: Start | int, offset: int) -> None:
    assert reset_position(target, Bounds(5, 10, 7)) == offset


def test_cons_4_the_committed_offset_never_goes_back() -> None:
    records = [Committed(1, 120), Committed(1, 80), Committed(1, 150)]
    for order in permutations(records):
        folded = committed_of({}, [OffsetRecord(lane=LANE, topic="orders", committed=one) for one in order])
        assert folded == {LANE: Committed(1, 150)}


def test_pop_18_a_reset_is_a_new_epoch_whatever_comes_late() -> None:
    records = [Committed(1, 120), Committed(2, 0), Committed(1, 500)]
    for order in permutations(records):
        folded = committed_of({}, [OffsetRecord(lane=LANE, topic="orders", committed=one) for one in order])
        assert folded == {LANE: Committed(2, 0)}


@given(committed, committed, committed)
def test_committed_offsets_are_a_join(one: Committed, two: Committed, three: Committed) -> None:
    assert one.join(two) == two.join(one)
    assert one.join(two).join(three) == one.join(two.join(three))
    joined = one.join(two)
    assert joined.join(one) == joined.join(two) == joined.join(joined) == joined.join(one.join(one))


@given(committed, committed)
def test_a_join_holds_the_progress_of_both(one: Committed, two: Committed) -> None:
    joined = one.join(two)
    assert joined.epoch == max(one.epoch, two.epoch)
    for part in (one, two):
        if part.epoch == joined.epoch:
            assert joined.offset >= part.offset
            for low, high in part.done:
                assert all(at < joined.offset or any(x <= at < y for x, y in joined.done) for at in range(low, high))


def test_pop_17_done_ranges_that_reach_the_offset_move_it() -> None:
    one = Committed(1, 3, ((5, 8),), (Delivered(3, 2, 5, 9), Delivered(4, 1, 5, 9)))
    joined = one.join(Committed(1, 0, ((3, 5), (9, 10)), (Delivered(3, 7, 5, 9), Delivered(8, 1, 5, 9))))
    assert joined == Committed(1, 8, ((9, 10),), (Delivered(8, 1, 5, 9),))


def test_pop_09_of_a_messages_leases_the_newest_counts_in_any_order() -> None:
    leases = [Delivered(3, 1, 50, 90), Delivered(3, 1, 60, 60), Delivered(3, 2, 55, 70)]
    for order in permutations(leases):
        joined = Committed(1, 3)
        for at, lease in enumerate(order):
            joined = joined.join(Committed(1, 0, (), (lease,)))
            assert joined.delivered == (max(order[: at + 1]),)
    assert joined.join(Committed(2, 0)).delivered == (), "a reset is a new epoch"


@given(
    st.builds(
        OffsetRecord,
        lane=st.builds(LaneKey, st.text(), st.text(), st.booleans(), st.text()),
        topic=st.text(),
        committed=committed,
    )
)
def test_offset_records_survive_the_log(record: OffsetRecord) -> None:
    assert OffsetRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    "change", [{"offset": "7"}, {"epoch": None}, {"done": [[1]]}, {"group": 5}, {"note": {"number": 1}}]
)
def test_a_damaged_offset_record_is_corrupt(change: dict[str, object]) -> None:
    body = json.loads(OffsetRecord(lane=LANE, topic="orders", committed=Committed(1, 2)).to_json())
    with pytest.raises(Corrupt) as found:
        OffsetRecord.from_json(json.dumps({**body, **change}).encode())
    assert found.value.code == "offset_record_corrupt"


def test_cons_4_a_clients_commit_moves_forward_only() -> None:
    present, bounds = Committed(3, 7), Bounds(0, 10)
    assert decide_commit(present, 9, bounds) == Committed(3, 9)
    assert decide_commit(present, 2, bounds) == present
    assert decide_commit(present, 10, bounds).offset == 10
    with pytest.raises(Unprocessable):
        decide_commit(present, 11, bounds)


def test_kafka_16_the_offset_that_a_group_has_beyond_the_end_may_be_committed_again() -> None:
    beyond, bounds = Committed(3, 99), Bounds(0, 10)
    assert decide_commit(beyond, 99, bounds, metadata="a").metadata == "a"
    assert decide_commit(beyond, 50, bounds) == beyond
    with pytest.raises(Unprocessable):
        decide_commit(beyond, 100, bounds)


def test_kafka_13_a_text_belongs_to_its_offset_and_the_last_one_counts() -> None:
    bounds, start = Bounds(0, 10), Committed(3, 7)
    first = decide_commit(start, 7, bounds, metadata="a")
    assert first == Committed(3, 7, note=CommitNote(1, "a"))
    second = decide_commit(first, 7, bounds, metadata="b")
    none = decide_commit(second, 7, bounds)
    again = decide_commit(none, 7, bounds, metadata="a")
    steps = [start, first, second, none, again]
    assert [one.metadata for one in steps] == ["", "a", "b", "", "a"]
    assert decide_commit(second, 7, bounds, metadata="b") == second, "the same again is stored as it was"
    assert decide_commit(second, 6, bounds, metadata="c") == second, "an earlier commit changes nothing"
    assert decide_commit(second, 8, bounds) == Committed(3, 8), "a later one without a text has none"
    assert decide_commit(second, 8, bounds, metadata="c") == Committed(3, 8, note=CommitNote(1, "c"))
    for count in range(1, 6):
        for order in permutations(steps[:count]):
            folded = committed_of({}, [OffsetRecord(lane=LANE, topic="orders", committed=one) for one in order])
            assert folded[LANE].metadata == steps[count - 1].metadata
    assert again.join(Committed(3, 7)) == again, "what others record of the same offset leaves the text"
    assert again.join(Committed(3, 6, ((7, 9),))).note is None, "acknowledgements have moved the group on"
    assert again.join(Committed(4, 7)).note is None, "a reset"


def test_kafka_13_a_commit_without_a_text_is_stored_as_before() -> None:
    record = OffsetRecord(lane=LANE, topic="orders", committed=decide_commit(Committed(3, 7), 9, Bounds(0, 10)))
    assert json.loads(record.to_json()) == {
        "group": "billing",
        "topic": "orders",
        "topic_id": "id-1",
        "retry": False,
        "partition": "orders@A",
        "epoch": 3,
        "offset": 9,
    }


@pytest.mark.parametrize("text", ["", "x" * 4_096, "\N{EURO SIGN}" * 1_365, "\N{GRINNING FACE}" * 1_024])
def test_kafka_13_a_text_has_4096_bytes_at_most(text: str) -> None:
    check_metadata("orders@A", text)
    with pytest.raises(Unprocessable) as refused:
        check_metadata("orders@A", f"{text}xx".ljust(4_097, "x"))
    assert (refused.value.code, refused.value.field) == ("commit_metadata_too_large", "metadata.orders@A")
    assert refused.value.extra == {"limit": 4_096}


def test_order_08_attempts_belong_to_the_message_at_the_committed_offset() -> None:
    present, bounds = Committed(3, 7), Bounds(0, 10)
    tried = decide_commit(present, 7, bounds, attempts=2, now_ms=5)
    assert (tried.offset, tried.attempts, present.attempts) == (7, 2, 0)
    assert decide_commit(tried, 7, bounds, attempts=1, now_ms=9) == tried, "one that came late"
    assert decide_commit(tried, 7, bounds).attempts == 2
    assert decide_commit(tried, 6, bounds, attempts=9).attempts == 2
    assert decide_commit(tried, 8, bounds) == Committed(3, 8)
    assert tried.join(Committed(4, 7)).attempts == 0, "a reset"
    assert Committed(3, 7, (), (Delivered(7, 4, 5, 10),)).attempts == 0, "a lease of a pop in order"


@pytest.mark.parametrize("offset", [-1, 11])
def test_a_commit_outside_the_partition_is_refused(offset: int) -> None:
    with pytest.raises(Unprocessable) as refused:
        decide_commit(Committed(3, 7), offset, Bounds(0, 10))
    assert (refused.value.code, refused.value.field) == ("offset_out_of_range", "offsets")


def test_pop_12_what_retention_took_is_told() -> None:
    nothing = OffsetRanges()
    assert read_position(3, Bounds(5, 10), nothing) == Position(5, ((3, 5),))
    assert read_position(7, Bounds(5, 10), nothing) == Position(7, ())


def test_pop_12_what_is_done_is_not_lost() -> None:
    done = OffsetRanges([(4, 6), (7, 12)])
    position = read_position(3, Bounds(9, 20), done)
    assert position == Position(9, ((3, 4), (6, 7)))
    assert list(position.lost_offsets()) == [3, 6]


@pytest.mark.parametrize(("offset", "lag"), [(None, 5), (0, 5), (5, 5), (6, 4), (10, 0), (12, 0)])
def test_lag_counts_stored_messages(offset: int | None, lag: int) -> None:
    assert lag_messages(offset, Bounds(5, 10)) == lag


@pytest.mark.parametrize("text", ["first", "last", "2026-11-21T12:00:00.123Z"])
def test_a_start_is_written_as_it_was_read(text: str) -> None:
    assert Start.from_json(text, field="consume_from").to_json() == text


def test_a_time_may_have_any_zone() -> None:
    start = Start.from_json("1970-01-01T01:00:05+01:00", field="consume_from")
    assert start == AT_TIME
    assert start.to_json() == "1970-01-01T00:00:05.000Z"


@pytest.mark.parametrize("value", ["", "First", "yesterday", "2026-11-21T12:00:00", "2026-13-01T00:00:00Z"])
def test_an_impossible_start_is_refused(value: str) -> None:
    with pytest.raises(Unprocessable) as refused:
        Start.from_json(value, field="to")
    assert refused.value.field == "to"


@pytest.mark.parametrize("value", [5, None, ["first"], {"first": 1}])
def test_a_start_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(Refused) as refused:
        Start.from_json(value, field="to")
    assert refused.value.code == "invalid_type"
