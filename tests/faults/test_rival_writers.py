"""Processes that all append to one partition, held apart by the fence alone (RELIABILITY F4)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.conftest import Judge, judged
from tests.faults.zygote import Order, Zygote, acks_of

BUSY = {"rollup_files": 8, "checkpoint_commits": 32, "log_keep_ms": 500, "file_keep_ms": 500}


def _race(folder: Path, writers: Zygote, judge: Judge, processes: int, appends: int) -> float:
    """Let so many processes make so many appends together; return appends a second."""
    folder.mkdir(exist_ok=True)
    notes = [folder / f"w{i}.acks" for i in range(processes)]
    pids = [
        writers.start(
            Order(folder=str(folder), producer=p.stem, acks=str(p), count=appends // processes, settings=BUSY)
        )
        for p in notes
    ]
    began = None
    while began is None:
        if any(p.exists() and p.stat().st_size for p in notes):
            began = time.monotonic()
        time.sleep(0.001)
    assert [writers.wait(pid) for pid in pids] == [0] * processes
    took = time.monotonic() - began
    found = judge(notes)
    assert found.end_offset == appends // processes * processes
    assert sum(len(acks_of(p)) for p in notes) == found.end_offset
    return found.end_offset / took


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_f4_rival_processes_lose_and_repeat_nothing(
    tmp_path: Path, writers: Zygote, judge: Judge, processes: int
) -> None:
    rate = _race(tmp_path, writers, judge, processes, 160)
    print(f"{processes} processes: {rate:.0f} appends/s together")


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_f4_fifty_thousand_contested_commits(tmp_path: Path, writers: Zygote) -> None:
    """Also how much the fence alone costs, against one process by itself."""
    rates = {}
    for processes in (1, 2, 4, 8):
        folder = tmp_path / str(processes)
        rates[processes] = _race(folder, writers, judged(folder), processes, 12_000)
        print(f"{processes} processes: {rates[processes]:.0f} appends/s together")
    assert min(rates.values()) >= 0.3 * rates[1], "the fence alone keeps a third of one process's rate"
