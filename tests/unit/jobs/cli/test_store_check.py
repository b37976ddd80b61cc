"""The doctor's look at an object store (SPEC LOOK-23): the real servers are in tests/e2e."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from deltamq.jobs.cli.store_check import store_checks, within
from deltamq.mq.client.cli.doctor import Subject
from deltamq.mq.errors import Unavailable
from deltamq.tables.ops.store_speed import measure
from deltamq.tables.store.store import MemoryStore


def test_look_23_a_folder_is_not_measured(tmp_path: Path) -> None:
    assert list(store_checks(Subject(url="u", warehouse=str(tmp_path)))) == []
    assert list(store_checks(Subject(url="u", warehouse=f"file://{tmp_path}"))) == []


def test_look_23_each_kind_of_call_is_measured_and_nothing_is_left() -> None:
    store, ticks = MemoryStore(), itertools.count()
    speeds = measure(store, calls=7, seconds=1_000, clock=lambda: next(ticks) / 1_000)
    assert {kind: speed.calls for kind, speed in speeds.items()} == dict.fromkeys(
        ("put", "put_if_absent", "get", "list", "commit"), 7
    )
    assert (speeds["put"].p50_ms, speeds["commit"].p99_ms) == pytest.approx((1.0, 2.0))
    assert store.folders("") == [] and store.names("") == []


def test_look_23_the_time_of_the_measurement_is_bounded() -> None:
    ticks = itertools.count()
    speeds = measure(MemoryStore(), calls=1_000, seconds=45, clock=lambda: next(ticks))
    assert speeds["put"].calls < 10


def test_look_23_a_store_that_does_not_answer_is_given_up() -> None:
    answers = threading.Event()
    with pytest.raises(Unavailable, match="did not answer in 0 s"):
        within(0.05, answers.wait)
    answers.set()
    assert within(60, answers.wait) is True
