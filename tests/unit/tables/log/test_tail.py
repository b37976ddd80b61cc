"""The tail in memory: bounded by bytes, never wrong, replaced rather than changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deltamq.tables.delta.stamped import RowsPart, Stamped
from deltamq.tables.log.fetch import weight_of
from deltamq.tables.log.tail import Tail, TailBudget
from deltamq.tables.schema import DELTA_SCHEMA
from deltamq.tables.typed_row import picked


def rows(start: int, count: int, size: int = 8) -> Stamped:
    bodies = pa.array([b"%d" % i + b"x" * size for i in range(start, start + count)], pa.binary())
    batch = pa.RecordBatch.from_arrays([bodies], names=["body"])
    return Stamped(batch, [RowsPart(count)], batch_id=f"{start:032x}", append_us=start, start=start)


def add(tail: Tail, start: int, count: int, size: int = 8) -> None:
    added = rows(start, count, size)
    tail.add(added, added.rows.nbytes)


def offsets(found: pa.Table | None) -> list[int] | None:
    return None if found is None else found.column("offset").to_pylist()


def filled(bytes_max: int, counts: list[int], size: int = 8) -> Tail:
    tail, at = Tail(bytes_max, TailBudget(1 << 40)), 0
    for count in counts:
        add(tail, at, count, size)
        at += count
    return tail


def test_rows_that_are_all_there_are_found_across_pieces() -> None:
    tail = filled(1 << 20, [3, 1, 4])
    for start in range(8):
        for stop in range(start + 1, 9):
            assert offsets(tail.rows(start, stop)) == list(range(start, stop))


def test_rows_that_are_not_all_there_are_not_found() -> None:
    tail = Tail(1 << 20, TailBudget(1 << 40))
    assert tail.rows(0, 1) is None
    add(tail, 5, 3)
    assert tail.rows(4, 6) is None
    assert tail.rows(7, 9) is None
    assert offsets(tail.rows(5, 8)) == [5, 6, 7]


def test_a_gap_starts_the_tail_anew() -> None:
    """Another writer's rows came between: only what is adjacent to the end is kept."""
    tail = filled(1 << 20, [3])
    add(tail, 10, 2)
    assert tail.rows(0, 3) is None
    assert offsets(tail.rows(10, 12)) == [10, 11]
    assert len(tail.pieces) == 1


def test_the_tail_stays_within_its_bytes_and_keeps_the_newest() -> None:
    tail = Tail(100_000, TailBudget(1 << 40))
    for i in range(500):
        add(tail, i, 1, size=5_000)
        assert tail.bytes <= 100_000 or len(tail.pieces) == 1
        assert offsets(tail.rows(i, i + 1)) == [i]
    assert tail.rows(400, 401) is None


def test_one_piece_over_the_bound_is_kept_while_it_is_the_newest() -> None:
    """Those who wait for it are about to ask for it."""
    tail = filled(1_000, [1], size=100_000)
    assert offsets(tail.rows(0, 1)) == [0]
    add(tail, 1, 1)
    assert tail.rows(0, 1) is None
    assert offsets(tail.rows(1, 2)) == [1]


def test_a_roll_up_replaces_the_pieces_that_it_covers() -> None:
    tail = filled(1 << 20, [2, 2, 2, 2])
    before = tail.bytes
    tail.merge(rows(2, 4).table())
    assert [p.start for p in tail.pieces] == [0, 2, 6]
    assert offsets(tail.rows(0, 8)) == list(range(8))
    assert tail.bytes < before


def test_a_roll_up_of_pieces_that_are_partly_gone_changes_nothing() -> None:
    tail = filled(1 << 20, [2, 2, 2])
    pieces = tail.pieces
    for start, count in ((1, 3), (0, 3), (4, 4), (9, 2)):
        tail.merge(rows(start, count).table())
        assert tail.pieces is pieces


def test_readers_keep_what_they_took() -> None:
    tail = filled(1 << 20, [2, 2])
    taken = tail.pieces
    tail.merge(rows(0, 4).table())
    tail.clear()
    assert [p.start for p in taken] == [0, 2]
    assert tail.bytes == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "add", "gap", "merge", "clear"]), st.integers(1, 5), st.integers(0, 4_000)),
        max_size=60,
    ),
    st.integers(10_000, 80_000),
)
def test_what_the_tail_holds_is_always_right_and_bounded(steps: list[tuple[str, int, int]], bytes_max: int) -> None:
    tail, end = Tail(bytes_max, TailBudget(1 << 40)), 0
    for step, count, size in steps:
        if step == "clear":
            tail.clear()
        elif step == "merge" and len(tail.pieces) >= count:
            covered = tail.pieces[-count:]
            tail.merge(rows(covered[0].start, covered[-1].end - covered[0].start, size).table())
        else:
            end += count if step == "gap" else 0
            add(tail, end, count, size)
            end += count
        assert tail.bytes == sum(p.bytes for p in tail.pieces)
        assert tail.bytes <= bytes_max or len(tail.pieces) == 1
        for before, after in zip(tail.pieces, tail.pieces[1:], strict=False):
            assert before.end == after.start
        if tail.pieces:
            first = tail.pieces[0].start
            assert tail.pieces[-1].end == end
            assert offsets(tail.rows(first, end)) == list(range(first, end))
            assert tail.rows(first - 1, end) is None


# All tails together.


def test_the_tail_that_was_quiet_longest_gives_way() -> None:
    budget = TailBudget(100_000)
    quiet, busy = Tail(1 << 20, budget), Tail(1 << 20, budget)
    for i in range(8):
        add(quiet, i, 1, size=5_000)
    for i in range(16):
        add(busy, i, 1, size=5_000)
        assert budget.bytes == quiet.bytes + busy.bytes
        assert budget.bytes <= 100_000 or not quiet.pieces
    assert not quiet.pieces and offsets(busy.rows(0, 16)) == list(range(16))
    add(quiet, 8, 1, size=5_000)
    assert offsets(quiet.rows(8, 9)) == [8] and budget.bytes <= 100_000


def test_a_tail_gives_its_oldest_rows_first() -> None:
    budget = TailBudget(60_000)
    quiet, busy = Tail(1 << 20, budget), Tail(1 << 20, budget)
    for i in range(4):
        add(quiet, i, 1, size=5_000)
    add(busy, 0, 1, size=30_000)
    assert quiet.rows(0, 1) is None and offsets(quiet.rows(3, 4)) == [3]


def test_a_cleared_tail_counts_no_more() -> None:
    budget = TailBudget(100_000)
    tail = Tail(1 << 20, budget)
    add(tail, 0, 10)
    tail.clear()
    assert budget.bytes == 0


def test_tails_of_many_threads_stay_within_their_budget() -> None:
    budget = TailBudget(200_000)
    tails = [Tail(1 << 20, budget) for _ in range(6)]

    def work(tail: Tail) -> None:
        for i in range(300):
            add(tail, i, 1, size=2_000)
            if i % 50 == 49:
                tail.merge(rows(i - 9, 10, 2_000).table())

    with ThreadPoolExecutor(len(tails)) as pool:
        list(pool.map(work, tails))
    assert budget.bytes == sum(tail.bytes for tail in tails)
    assert budget.bytes <= 200_000 + max(tail.bytes for tail in tails)
    for tail in tails:
        assert tail.bytes == sum(piece.bytes for piece in tail.pieces)
        assert not tail.pieces or offsets(tail.rows(299, 300)) == [299]


def test_rows_that_retention_removed_are_forgotten() -> None:
    budget = TailBudget(1 << 40)
    tail, at = Tail(1 << 20, budget), 0
    for count in (3, 4, 5):
        add(tail, at, count)
        at += count
    for offset, first in ((2, 0), (3, 3), (6, 3), (7, 7), (7, 7)):
        tail.drop_below(offset)
        assert tail.pieces[0].start == first
        assert budget.bytes == tail.bytes == sum(piece.bytes for piece in tail.pieces)
    tail.drop_below(12)
    assert not tail.pieces and budget.bytes == 0
    add(tail, 12, 1)
    assert offsets(tail.rows(12, 13)) == [12]


def test_rows_end_with_the_piece_that_makes_them_heavier_than_wanted() -> None:
    tail = Tail(1 << 30, TailBudget(1 << 30))
    for start in range(0, 30, 3):
        add(tail, start, 3)
    assert offsets(tail.rows(1, 30)) == list(range(1, 30))
    one = weight_of(rows(0, 1).table())
    assert offsets(tail.rows(1, 30, 0)) == [1, 2]
    assert offsets(tail.rows(1, 30, 2 * one)) == [1, 2, 3, 4, 5]
    assert offsets(tail.rows(1, 4, 100 * one)) == [1, 2, 3]


# Columns that are made when they are read.


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.data())
def test_rows_whose_columns_were_not_made_are_read_as_if_they_were(counts: list[int], data: st.DataObject) -> None:
    tail, end = filled(1 << 20, counts), sum(counts)
    whole = pa.concat_tables([rows(piece.start, piece.end - piece.start).table() for piece in tail.pieces])
    for _ in range(4):
        start = data.draw(st.integers(0, end - 1))
        stop = data.draw(st.integers(start + 1, end))
        columns = data.draw(st.sampled_from([None, ["offset", "key", "body"], ["offset", "body", "append_time"]]))
        found = tail.rows(start, stop, wanted=picked(DELTA_SCHEMA, None if columns is None else tuple(columns)))
        expected = whole if columns is None else whole.select(columns)
        assert found is not None and found.equals(expected.slice(start, stop - start))


def test_the_columns_of_one_append_are_kept_and_of_several_made_together() -> None:
    tail = filled(1 << 20, [2, 2, 2])
    first = tail.rows(0, 2)
    again = tail.rows(0, 2)
    assert first is not None and again is not None
    assert first.column("offset").chunk(0).buffers()[1].address == again.column("offset").chunk(0).buffers()[1].address
    several = tail.rows(2, 6)
    assert several is not None and several.column("offset").num_chunks == 1


def test_the_rows_whose_columns_a_read_makes_are_counted() -> None:
    tail = filled(1 << 20, [3, 4, 5])
    assert [tail.unmade(0, rows_max) for rows_max in (1, 3, 4, 8, 99)] == [3, 3, 7, 12, 12]
    assert [tail.unmade(offset, 1) for offset in (2, 3, 11)] == [3, 4, 5]
    tail.rows(4, 5)
    assert tail.unmade(0, 99) == 8
