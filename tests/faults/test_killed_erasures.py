"""kill -9 of an erasure at each of its steps: a repeat finishes what it left (SPEC ERASE-4)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.erasures import ask, read_erasure
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.settings import LogSettings
from tests.faults.erase_process import conf_of, run
from tests.rows import REF, all_rows, next_millisecond
from tests.unit.jobs.upkeep.test_erase import ADA, BODY, holding, typed
from tests.unit.jobs.warehouses import rows

_ROOT: Final = Path(__file__).parents[2]
POINTS: Final = (
    "erase.before_put@2",
    "commit.after_data_fsync@2",
    "commit.after_link@2",
    "erase.after_commit@2",
    "erase.before_state@1",
    "erase.before_state@2",
    "erase.after_checkpoints@1",
    "erase.before_gone@1",
    "erase.before_done@1",
    "erase.after_done@1",
)
#: `make faults` alone kills at the others.
_SHORT: Final = ("commit.after_link@2", "erase.before_state@1", "erase.before_gone@1")


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in _SHORT else pytest.mark.long) for point in POINTS]
)
def test_erase_4_a_kill_at_any_step_leaves_what_a_repeat_finishes(tmp_path: Path, point: str) -> None:
    warehouse = Warehouse.open(str(tmp_path), settings=LogSettings(log_keep_ms=1_000))
    log = warehouse.create(REF)
    for _ in range(3):
        log.append([Batch(rows([BODY, b"kept"], key=ADA)), typed([BODY], ADA), Batch(rows([b"others"], key="eve"))])
    next_millisecond()
    erasure = ask(warehouse.store, REF.topic, (ADA,), time.time_ns() // 1_000)
    name, _, nth = point.partition("@")
    command = [sys.executable, "-m", "tests.faults.erase_process", str(tmp_path), f"{name}=kill@{nth}"]
    assert subprocess.run(command, cwd=_ROOT, timeout=60, check=False).returncode == -signal.SIGKILL

    # The writer goes on, and the next run does the rest.
    log.append([Batch(rows([b"goes on"], key="eve"))])
    run(conf_of(str(tmp_path)))
    close_warehouses()
    assert read_erasure(warehouse.store, erasure.id).state == "gone"
    log.refresh()
    shown = all_rows(log).to_pylist()
    assert [row["offset"] for row in shown] == list(range(13))
    assert [row["body"] for row in shown] == [*[None, None, None, b"others"] * 3, b"goes on"]
    assert [finding for finding in verify(warehouse) if finding.gravity is not Gravity.NOTE] == []
    warehouse.close()
    assert holding(tmp_path, b"SECRET-of-ada", ADA.encode()) == []
