"""Calls of a store, counted as its bill does (SPEC LOOK-22)."""

from __future__ import annotations

import threading

import pytest

from deltamq.mq.prices import STORE_OPERATIONS, Calls
from deltamq.tables.store.call_counts import CallCounts

_MIB = 1 << 20


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_look_22_calls_and_bytes_are_counted_by_operation() -> None:
    counts = CallCounts()
    counts.count_put(10)
    counts.count("put_if_absent", 5)
    counts.count("get", 7)
    counts.count("get", 3, requests=0)
    calls = counts.so_far().calls
    assert {name: done for name, done in calls.items() if done.requests} == {
        "put": Calls(1, 10),
        "put_if_absent": Calls(1, 5),
        "get": Calls(1, 10),
    }
    assert tuple(calls) == STORE_OPERATIONS


@pytest.mark.parametrize(("nbytes", "requests"), [(0, 1), (5 * _MIB, 1), (5 * _MIB + 1, 4), (20 * _MIB, 6)])
def test_look_22_a_large_put_is_its_parts_and_two_calls_more(nbytes: int, requests: int) -> None:
    counts = CallCounts()
    counts.count_put(nbytes)
    assert counts.so_far().calls["put"] == Calls(requests, nbytes)


@pytest.mark.parametrize(
    ("ranges", "done"),
    [
        ([(0, 10)], Calls(1, 10)),
        ([(20, 30), (0, 10)], Calls(1, 30)),
        ([(0, 10), (5, 8)], Calls(1, 10)),
        ([(0, 10), (10 + _MIB, 20 + _MIB)], Calls(1, 20 + _MIB)),
        ([(0, 10), (11 + _MIB, 20 + _MIB)], Calls(2, 19)),
        ([], Calls(0, 0)),
    ],
)
def test_look_22_near_ranges_are_one_call_with_what_is_between_them(ranges: list[tuple[int, int]], done: Calls) -> None:
    counts = CallCounts()
    counts.count_ranges(ranges)
    assert counts.so_far().calls["get"] == done


@pytest.mark.parametrize(("entries", "requests"), [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (2_500, 3)])
def test_look_22_a_list_comes_in_pages(entries: int, requests: int) -> None:
    counts = CallCounts()
    counts.count_list(entries)
    assert counts.so_far().calls["list"].requests == requests


def test_look_22_the_last_minutes_begin_one_to_two_minutes_ago() -> None:
    clock = _Clock()
    counts = CallCounts(clock)
    seen = []
    for _ in range(20):
        clock.now += 30
        counts.count("get")
        so_far = counts.so_far()
        seen.append((so_far.recent_seconds, so_far.recent["get"].requests))
    assert seen[:3] == [(30.0, 1), (60.0, 2), (90.0, 3)]
    assert set(seen[4:]) == {(60.0, 3), (90.0, 4)}, "the call of the mark's own moment is recent, too"
    assert (so_far.seconds, so_far.calls["get"].requests) == (600.0, 20)
    clock.now += 500
    later = counts.so_far()
    assert later.recent["get"].requests <= 4 and later.recent_seconds >= 500


def test_look_22_threads_lose_no_count() -> None:
    counts = CallCounts()
    threads = [threading.Thread(target=lambda: [counts.count("head") for _ in range(2_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.so_far().calls["head"].requests == 8_000
