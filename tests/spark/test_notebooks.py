"""The notebooks run as they are, from the first cell to the last, against a service of their own (SPEC SPARK-5)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from tests.e2e.service_process import ServiceProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NOTEBOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.py"))
#: CI has not the time for all of them.
_LONG = ("02", "03", "04", "05", "06", "07")


#: The plots of the notebooks and colours that stand for their data: three partitions, three reasons.
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c")
PLOTS = {"05_lag_and_dead_letters": {"lag.png": COLOURS, "dead-letters.png": COLOURS}}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceProcess]:
    # The notebook of dead workers waits for it.
    monkeypatch.setenv("DELTAMQ_QUEUE_INVISIBLE_MS_MIN", "2000")
    service = ServiceProcess(tmp_path / "warehouse")
    yield service
    service.close()


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == [
        "01_quick_start.py",
        "02_queue_in_sql.py",
        "03_ordered_pipeline.py",
        "04_pop_workers.py",
        "05_lag_and_dead_letters.py",
        "06_replay_and_time_travel.py",
        "07_streaming_medallion.py",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_in_databricks_source_format(path: Path) -> None:
    cells = path.read_text(encoding="utf-8").split("\n# COMMAND ----------\n")
    assert cells[0].startswith("# Databricks notebook source\n# MAGIC %md\n")
    for cell in cells[1:]:
        lines = [line for line in cell.splitlines() if line]
        marked = [line.startswith("# MAGIC") for line in lines]
        assert lines
        assert all(marked) or not any(marked), "a cell is text or code"


def _by_length(path: Path) -> object:
    """A notebook, and whether it is run by `make faults` alone: each costs a minute of two cores."""
    marks = [pytest.mark.long] if path.name[:2] in _LONG else []
    return pytest.param(path, marks=marks, id=path.stem)


@pytest.mark.promise("STATE-7")
@pytest.mark.parametrize("path", [_by_length(path) for path in NOTEBOOKS])
def test_spark_5_a_notebook_runs(path: Path, service: ServiceProcess, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "DELTAMQ_CLIENT_URL": service.url,
        "DELTAMQ_WAREHOUSE_URI": str(service.warehouse),
        "PYTHONPATH": str(path.parents[1]),
        "NOTEBOOK_PLOTS": str(tmp_path / "plots"),
        "MPLBACKEND": "agg",
    }
    ran = subprocess.run([sys.executable, str(path)], env=environ, capture_output=True, text=True, timeout=870)
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-4_000:]
    assert "left=0, lost=0" in ran.stdout
    wanted = PLOTS.get(path.stem, {})
    assert {plot.name for plot in tmp_path.glob("plots/*")} == set(wanted)
    for name, colours in wanted.items():
        assert set(colours) <= colours_of(tmp_path / "plots" / name), "the data is in the plot"


def colours_of(plot: Path) -> set[str]:
    """The colours of an image that cover at least a hundred of its points."""
    pixels = (imread(plot)[:, :, :3] * 255).round().astype(int).reshape(-1, 3)
    found, counts = np.unique(pixels, axis=0, return_counts=True)
    return {"#{:02x}{:02x}{:02x}".format(*colour) for colour, count in zip(found, counts, strict=True) if count >= 100}
