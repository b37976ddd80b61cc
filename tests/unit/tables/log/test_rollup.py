"""The plan of roll-ups, by properties: what it may choose, and what follows from following it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltamq.tables.delta.actions import DataFile
from deltamq.tables.log.upkeep import RUN_FACTOR, final_end, plan_rollup


def files_of(sizes: Sequence[tuple[int, int]]) -> list[DataFile]:
    """Adjacent files of (rows, bytes)."""
    found, start = [], 0
    for count, size in sizes:
        found.append(
            DataFile(
                path=f"{start:020d}-x.parquet",
                size=size,
                start=start,
                count=count,
                modified_ms=0,
                append_min_us=0,
                append_max_us=0,
                stats="",
                crc="",
            )
        )
        start += count
    return found


SIZES = st.lists(st.tuples(st.integers(1, 2_000), st.integers(1, 2_000)), max_size=80)


@given(SIZES, st.integers(2, 8), st.integers(1_000, 100_000))
@settings(max_examples=settings.default.max_examples * 2)
def test_a_plan_is_adjacent_small_files_that_fit_together(
    sizes: list[tuple[int, int]], fanout: int, bytes_max: int
) -> None:
    files = files_of(sizes)
    plan = list(plan_rollup(files, fanout=fanout, bytes_max=bytes_max))
    if not plan:
        return
    at = files.index(plan[0])
    assert plan == files[at : at + len(plan)], "adjacent, in order"
    assert len(plan) >= 2, "one file is never rewritten into one"
    assert all(f.size < bytes_max // 2 for f in plan), "final files stay"
    assert sum(f.size for f in plan) <= bytes_max or len(plan) == 2


@given(SIZES, st.integers(2, 8))
def test_no_plan_when_every_run_is_short(sizes: list[tuple[int, int]], fanout: int) -> None:
    assert not plan_rollup(files_of(sizes)[: fanout - 1], fanout=fanout, bytes_max=10**9)


def follow(
    appends: Sequence[int], fanout: int, bytes_max: int, row_bytes: int
) -> tuple[list[DataFile], dict[int, int]]:
    """Append files of so many rows, roll up whatever is due after each, count how often each row was written again."""
    files: list[DataFile] = []
    rewrites: dict[int, int] = {}
    since = 0
    for rows in appends:
        start = files[-1].end if files else 0
        files.append(_file(start, rows, row_bytes))
        for _ in range(100):
            plan = plan_rollup(files, fanout=fanout, bytes_max=bytes_max)
            assert plan == plan_rollup(files, fanout=fanout, bytes_max=bytes_max, since=since), "what is done stays so"
            if not plan:
                since = final_end(files, bytes_max=bytes_max)
                break
            at = files.index(plan[0])
            count = sum(f.count for f in plan)
            for file in plan:
                for offset in range(file.start, file.end):
                    rewrites[offset] = rewrites.get(offset, 0) + 1
            files[at : at + len(plan)] = [_file(plan[0].start, count, row_bytes)]
        else:
            raise AssertionError("roll-ups never end")
    return files, rewrites


def _file(start: int, count: int, row_bytes: int) -> DataFile:
    return files_of([(count, count * row_bytes)])[0].__class__(
        path=f"{start}-{count}",
        size=count * row_bytes,
        start=start,
        count=count,
        modified_ms=0,
        append_min_us=0,
        append_max_us=0,
        stats="",
        crc="",
    )


def classes_of(rows: int, fanout: int) -> int:
    found = 1
    while fanout**found <= rows:
        found += 1
    return found


@given(st.lists(st.integers(1, 50), min_size=1, max_size=150), st.integers(2, 6))
@example([1] * 150, 2)
@example([1, 40] * 75, 2)
@example([1, 1, 1, 40] * 37, 4)
def test_files_stay_few_and_rows_are_seldom_rewritten(appends: list[int], fanout: int) -> None:
    files, rewrites = follow(appends, fanout, bytes_max=10**9, row_bytes=10)
    classes = classes_of(sum(appends), fanout)
    assert len(files) <= max(RUN_FACTOR * fanout, fanout * classes) + 2 * fanout
    assert max(rewrites.values(), default=0) <= 2 * classes + sum(appends).bit_length()
    assert [f.start for f in files] == [0, *(f.end for f in files[:-1])]


@pytest.mark.parametrize("fanout", [2, 4, 8, 32])
def test_single_messages_are_rewritten_once_a_class(fanout: int) -> None:
    """The commonest load. If small files counted, each would have the large one before it written again."""
    appends = min(fanout**3, 3_000)
    files, rewrites = follow([1] * appends, fanout, bytes_max=10**9, row_bytes=100)
    classes = classes_of(appends, fanout)
    assert len(files) <= (fanout - 1) * classes + 1
    assert sum(rewrites.values()) / appends <= classes


@pytest.mark.parametrize("seed", range(2))
def test_batches_of_all_sizes_are_rewritten_a_few_times(seed: int) -> None:
    drawn = random.Random(seed)
    appends = [int(10 ** drawn.uniform(0, 3)) for _ in range(1_500)]
    files, rewrites = follow(appends, 32, bytes_max=10**9, row_bytes=100)
    assert len(files) <= RUN_FACTOR * 32 + 64
    assert sum(rewrites.values()) / sum(appends) <= 4


@given(st.lists(st.integers(1, 50), min_size=1, max_size=150), st.integers(2, 6), st.integers(200, 5_000))
def test_roll_ups_end_and_respect_the_size_bound(appends: list[int], fanout: int, bytes_max: int) -> None:
    files, _ = follow(appends, fanout, bytes_max, row_bytes=10)
    for file in files:
        assert file.size <= max(bytes_max, 2 * bytes_max // 2, 500)


@given(st.lists(st.integers(1, 49), min_size=1, max_size=300))
def test_a_run_that_fills_a_file_becomes_a_final_one_at_once(sizes: list[int]) -> None:
    bytes_max = 100
    files = files_of([(1, size) for size in sizes])
    plan = plan_rollup(files, fanout=1_000, bytes_max=bytes_max)
    assert bool(plan) == (sum(sizes) >= bytes_max)
    assert not plan or bytes_max // 2 <= sum(f.size for f in plan) <= bytes_max


def test_busy_producers_rows_are_rewritten_twice_and_leave_few_files() -> None:
    """Commits of 750 rows of 100 bytes, each rolled up as soon as it may be: 32 of them, and then seven of those."""
    files, rewrites = follow([750] * 2_000, 32, bytes_max=16 << 20, row_bytes=100)
    final = [f for f in files if f.size >= 8 << 20]
    assert len(files) - len(final) <= 32 + 7
    assert max(rewrites.values()) == 2
