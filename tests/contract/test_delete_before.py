"""Removal of exactly the messages before an offset, on every store (SPEC KAFKA-19)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.rewrite import Removed, delete_before
from deltamq.tables.ops.verification import Gravity, verify
from tests.contract.stores import STORES, OpenAgain, opened_again
from tests.contract.test_delete_below import SETTINGS, Process, Start, numbered, status
from tests.rows import all_bodies, batch
from tests.set_clock import SetClock

# The first run builds the S3 server.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=STORES)
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenAgain]:
    yield from opened_again(request, tmp_path)


@pytest.fixture
def start(open_again: OpenAgain) -> Iterator[Start]:
    """Starts processes on the same files."""
    started: list[Process] = []
    clock = SetClock()

    def one() -> Process:
        started.append(Process(open_again(), clock))
        return started[-1]

    yield one
    for process in started:
        process.warehouse.close()


def before(process: Process, offset: int) -> Removed:
    return delete_before(process.log, offset, now_ms=1, row_group_rows=SETTINGS.row_group_rows)


def test_kafka_19_exactly_what_lies_before_an_offset_is_removed(start: Start) -> None:
    one = start()
    one.fill(3, each=10)
    assert before(one, 14).messages == 14
    assert (one.log.min_offset, one.log.end_offset) == (14, 30)
    for log in (one.log, start().log):
        assert all_bodies(log) == numbered(14, 30)
        assert status(log, 13) == (FetchStatus.OFFSET_TOO_SMALL, 14, 30)
    assert before(one, 14) == before(one, 3) == Removed(), "it is done"
    assert before(one, 31).messages == 16
    assert (one.log.min_offset, one.log.end_offset) == (30, 30)
    one.fill(1)
    assert all_bodies(start().log) == numbered(30, 32)
    assert not [found for found in verify(one.warehouse) if found.gravity is not Gravity.NOTE]


def test_kafka_19_a_file_of_several_row_groups_is_divided(start: Start) -> None:
    one = start()
    one.fill(1, each=5 * SETTINGS.row_group_rows)
    assert before(one, 37).messages == 37
    assert all_bodies(start().log) == numbered(37, 80)


def test_kafka_19_requests_of_producers_behind_the_offset_are_remembered(start: Start) -> None:
    one = start()
    one.fill(1, each=3)
    sent = [batch(*numbered(low, low + 3), producer="p", seq=seq) for seq, low in enumerate((3, 6))]
    one.log.append(sent)
    before(one, 6)
    (again,) = start().log.append(sent[1:])
    assert (again.base_offset, again.duplicate) == (6, True)
    assert all_bodies(start().log) == numbered(6, 9)


def test_kafka_19_processes_that_append_and_remove_at_once_lose_nothing(start: Start) -> None:
    one, two, three = start(), start(), start()
    one.fill(10, each=7)
    with ThreadPoolExecutor(3) as pool:
        for turn in range(1, 9):
            work = [
                pool.submit(before, one, 8 * turn - 3),
                pool.submit(before, two, 8 * turn),
                pool.submit(three.log.maintain),
            ]
            for done in work:
                done.result()
            one.log.refresh()
            assert one.log.min_offset == 8 * turn
    assert all_bodies(start().log) == numbered(64, 70)
