"""A streaming query whose driver is killed with SIGKILL at every step of a commit: each row once (SPARK-3)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deltamq.tables.store.local import LocalStore
from tests.faults.sink_process import ROWS
from tests.unit.jobs.sink.sinks import Sink

STEPS = (
    "sink.before_manifest",
    "sink.after_manifest",
    "sink.before_append",
    "sink.after_append",
    "commit.after_data_write",
    "commit.after_link",
    "sink.before_done",
    "sink.after_done",
)
#: One more than the latest hit below: what is done is not done again, so the second kill is in the batch behind it.
_BATCHES = 5


def _run(folder: Path, first: int, seed: int, failpoints: str) -> tuple[int, int]:
    """Return how the process ended, and the batch with which Spark would start it again."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.sink_process", str(folder), str(first), str(_BATCHES), str(seed)],
        env={**os.environ, "DELTAMQ_FAILPOINTS": failpoints},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    told = done.stdout.split()
    return done.returncode, int(told[-1]) + 1 if told else first


def _killed_and_checked(folder: Path, steps: list[str]) -> None:
    sink = Sink(LocalStore(folder))
    sink.put_topic()
    first = 0
    for seed, step in enumerate(steps):
        ended, first = _run(folder, first, seed, step)
        assert ended == -signal.SIGKILL, f"{step} was not reached"
    ended, first = _run(folder, first, 999, "")
    assert (ended, first) == (0, _BATCHES)
    assert sink.bodies() == [f"m{number:06d}" for number in range(_BATCHES * ROWS)]


@pytest.mark.promise("PIPE-5")
def test_spark_03_a_query_that_is_killed_three_times_at_different_steps_stores_each_row_once(tmp_path: Path) -> None:
    _killed_and_checked(tmp_path, ["sink.after_append=kill@1", "sink.after_manifest=kill", "sink.before_done=kill"])


@pytest.mark.long
@pytest.mark.parametrize("hit", [1, 2, 3, 4])
@pytest.mark.parametrize("step", STEPS)
def test_spark_03_a_query_that_is_killed_at_any_step_stores_each_row_once(tmp_path: Path, step: str, hit: int) -> None:
    _killed_and_checked(tmp_path, [f"{step}=kill@{hit}", f"{step}=kill@1"])
