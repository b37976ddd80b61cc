"""Samples in bounded space, and their sums over processes (SPEC CONS-13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Corrupt
from deltamq.mq.history import (
    KEPT_MS,
    POINTS_MAX,
    SAMPLE_MS,
    SERIES_MAX,
    History,
    HistoryRecord,
    Ring,
    Series,
    default_step_ms,
    merged,
    stepped,
)
from deltamq.mq.statistics import MINUTE_MS

NOW = 1_700_000_040_000
LAG = Series("lag", "billing", "orders")


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1e12)), min_size=1), st.integers(1, 8))
def test_a_ring_has_the_last_value_of_each_of_the_last_steps(steps: list[tuple[int, float]], kept: int) -> None:
    """As a dictionary would, of which all is dropped that is older than the ring is long, the moment that it is."""
    ring, known, newest = Ring(kept, 10), dict[int, float](), 0
    for step, value in steps:
        ring.put(step * 10 + 3, value)
        newest = max(newest, step)
        if step > newest - kept:
            known[step] = value
        known = {at: one for at, one in known.items() if at > newest - kept}
    assert list(ring.between(0, 1_000)) == [(at * 10, known[at]) for at in sorted(known)]
    assert list(ring.between(newest * 10 + 1, 1_000)) == []
    assert ring.newest_ms == newest * 10


def test_cons_13_samples_of_an_hour_and_minutes_of_a_day_are_kept() -> None:
    history = History()
    for time_ms in range(NOW - KEPT_MS - 60 * MINUTE_MS, NOW, SAMPLE_MS):
        history.put("a", LAG, time_ms, time_ms / 1_000)
    (_, series, kept), *others = history.of("lag", "billing", None)
    assert (series, others) == (LAG, [])
    hour, day = NOW - 60 * MINUTE_MS, NOW - KEPT_MS
    assert stepped(kept, hour, NOW, SAMPLE_MS) == {at: at / 1_000 for at in range(hour, NOW, SAMPLE_MS)}
    last = MINUTE_MS - SAMPLE_MS
    assert stepped(kept, day, NOW, SAMPLE_MS) == {at: (at + last) / 1_000 for at in range(day, NOW, MINUTE_MS)}
    assert not list(history.of("lag", "other", None)) and not list(history.of("sent", None, None))
    history.forget_old(NOW + KEPT_MS + MINUTE_MS)
    assert not list(history.of("lag", None, None))


def test_cons_13_what_is_stored_is_loaded_as_the_samples_of_its_process() -> None:
    history = History()
    for minute in (0, 1, 3):
        history.put("a", LAG, NOW + minute * MINUTE_MS, float(minute))
        history.put("b", LAG, NOW + minute * MINUTE_MS, 100.0)
    (record,) = history.records("a", NOW, NOW + 4 * MINUTE_MS)
    assert record == HistoryRecord("lag", "billing", "orders", "a", NOW, MINUTE_MS, [0.0, 1.0, None, 3.0])
    assert history.records("a", NOW + 4 * MINUTE_MS, NOW + 5 * MINUTE_MS) == []
    read = History()
    read.load([HistoryRecord.from_json(record.to_json()), *history.records("b", NOW, NOW + 4 * MINUTE_MS)], but="b")
    ((origin, series, kept),) = read.of("lag", None, None)
    assert (origin, series) == ("a", LAG)
    later = History()
    later.put("a", LAG, NOW + 4 * MINUTE_MS, 4.0)
    read.add(later)
    assert stepped(kept, NOW, NOW + KEPT_MS, MINUTE_MS) == {NOW + m * MINUTE_MS: float(m) for m in (0, 1, 3, 4)}
    with pytest.raises(Corrupt):
        HistoryRecord.from_json(b'{"metric": 5}')


def test_cons_13_values_of_processes_are_summed_and_ages_are_not() -> None:
    parts = [(LAG, {0: 1.0, 10: 2.0}), (LAG, {10: 5.0, 20: 7.0}), (Series("lag", "other"), {0: 3.0})]
    assert merged("lag", parts) == {LAG: [(0, 1.0), (10, 7.0), (20, 7.0)], Series("lag", "other"): [(0, 3.0)]}
    assert merged("oldest_s", parts[:2])[LAG] == [(0, 1.0), (10, 5.0), (20, 7.0)]


def test_cons_13_the_series_are_bounded_and_so_are_answers() -> None:
    history = History()
    for number in range(SERIES_MAX + 5):
        history.put("a", Series("lag", f"g{number}"), NOW, 1.0)
    assert len(list(history.of("lag", None, None))) == SERIES_MAX
    for span_ms in (SAMPLE_MS, 60 * MINUTE_MS, 61 * MINUTE_MS, 7 * 60 * MINUTE_MS, KEPT_MS):
        step_ms = default_step_ms(NOW - span_ms, NOW)
        assert step_ms % SAMPLE_MS == 0 and span_ms // step_ms <= 240 <= POINTS_MAX
