"""The plan of compaction, by properties: what it may choose, and what following it leads to (SPEC SPARK-8)."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from deltamq.mq.limits import MIB
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.ops.compaction_plan import TAIL_FILES_MAX, CompactionTargets, plan_compaction
from tests.unit.tables.log.test_rollup import files_of

TARGET = CompactionTargets(bytes=1_000, tail_bytes=60)
SIZES = st.lists(st.integers(1, 1_500), max_size=60)
HOUR_US = 3_600_000_000


def of_sizes(sizes: list[int], *, step_us: int = 0) -> list[DataFile]:
    """Adjacent files of so many bytes, one row for each, appended `step_us` after each other."""
    return [
        msgspec.structs.replace(file, append_min_us=at * step_us, append_max_us=(at + 1) * step_us)
        for at, file in enumerate(files_of([(size, size) for size in sizes]))
    ]


def merged(group: list[DataFile]) -> DataFile:
    return msgspec.structs.replace(
        group[0],
        path=f"{group[0].start}-{group[-1].end}",
        size=sum(file.size for file in group),
        count=sum(file.count for file in group),
        append_max_us=group[-1].append_max_us,
    )


def followed(
    files: list[DataFile], target: CompactionTargets, rewrites: dict[int, int] | None = None
) -> list[DataFile]:
    """The files after one run."""
    for group in (list(group) for group in plan_compaction(files, target)):
        at = files.index(group[0])
        files = [*files[:at], merged(group), *files[at + len(group) :]]
        for file in group:
            for row in range(file.start, file.end) if rewrites is not None else ():
                rewrites[row] = rewrites.get(row, 0) + 1
    return files


@given(SIZES)
@settings(max_examples=settings.default.max_examples * 2)
def test_spark_08_a_plan_is_adjacent_files_that_are_not_final_and_fit_together(sizes: list[int]) -> None:
    files = of_sizes(sizes)
    for group in plan_compaction(files, TARGET):
        at = files.index(group[0])
        assert list(group) == files[at : at + len(group)] and len(group) >= 2
        assert all(file.size < TARGET.bytes // 2 for file in group)
        assert sum(file.size for file in group) <= TARGET.bytes


@given(SIZES)
@settings(max_examples=settings.default.max_examples * 2)
def test_spark_08_a_plan_that_is_followed_leaves_nothing_to_do(sizes: list[int]) -> None:
    done = followed(of_sizes(sizes), TARGET)
    assert plan_compaction(done, TARGET) == []


@given(st.lists(st.lists(st.integers(1, 700), max_size=12), max_size=12))
def test_spark_08_whatever_arrives_between_runs_a_row_is_rewritten_once_and_files_stay_few(
    arrivals: list[list[int]],
) -> None:
    files: list[DataFile] = []
    rewrites: dict[int, int] = {}
    for sizes in arrivals:
        start = files[-1].end if files else 0
        files += [msgspec.structs.replace(f, start=f.start + start, path=f"{start}+{f.path}") for f in of_sizes(sizes)]
        files = followed(files, TARGET, rewrites)
        assert [f.start for f in files] == [0, *(f.end for f in files)][: len(files)]
    # a run that a final file ended may be a little one: its two or more files became one
    assert max(rewrites.values(), default=0) <= 1
    settled = [file for file in files if file.size >= TARGET.bytes // 2]
    tail = len(list(itertools.takewhile(lambda f: f.size < TARGET.bytes // 2, reversed(files))))
    assert len(files) <= 2 * len(settled) + 1 + tail


def test_spark_08_10_gb_of_the_service_s_files_lie_in_about_80() -> None:
    target = CompactionTargets(bytes=128 * MIB, tail_bytes=8 * MIB)
    sizes = [8 * MIB + (at * 7_919_993) % (8 * MIB) for at in range(850)]
    files = of_sizes(sizes[: next(n for n in range(850) if sum(sizes[:n]) >= 10 * 10**9)])
    found = followed(files, target)
    assert 75 <= len([file for file in found if file.size >= 64 * MIB]) <= 85
    assert len(found) <= 85 + 16


def test_spark_08_small_files_at_the_end_are_left_to_roll_ups_unless_nobody_does_them() -> None:
    assert plan_compaction(of_sizes([10] * TAIL_FILES_MAX), TARGET) == []
    files = of_sizes([10] * (TAIL_FILES_MAX + 250))
    assert [(group[0].start, len(group)) for group in plan_compaction(files, TARGET)] == [(0, 100), (1_000, 100)]


def test_retry_6_files_whose_ages_differ_by_more_than_a_part_of_the_retention_stay_apart() -> None:
    files = of_sizes([100] * 24, step_us=HOUR_US)
    target = msgspec.structs.replace(TARGET, span_ms=4 * 3_600_000)
    plan = plan_compaction(files, target)
    assert [len(group) for group in plan] == [4] * 5, "the last four wait for more"
    assert all(group[-1].append_max_us - group[0].append_min_us <= 4 * HOUR_US for group in plan)
    assert plan_compaction(followed(files, target), target) == []


@given(SIZES, st.integers(0, 50))
def test_retry_6_no_plan_passes_the_span_whatever_the_sizes(sizes: list[int], span: int) -> None:
    target = msgspec.structs.replace(TARGET, span_ms=span)
    done = of_sizes(sizes, step_us=7_000)
    for group in plan_compaction(done, target):
        assert group[-1].append_max_us - group[0].append_min_us <= span * 1_000
    assert plan_compaction(followed(done, target), target) == []
