"""The notebooks run as they are, from the first cell to the last, against a service of their own (SPEC SPARK-5)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.image import imread

from deltamq.api.first_start import make_administrator
from tests.api.running import config_for
from tests.e2e.service_process import ServiceProcess
from tests.notebook import run_as_notebook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NOTEBOOKS = sorted(Path(__file__).parents[2].glob("notebooks/*.py"))
#: `make test` has the time for one of them, in the session that its tests share.
SHORT = NOTEBOOKS[0]


#: The plots of the notebooks and colours that stand for their data: three partitions, three reasons.
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c")
PLOTS = {"05_lag_and_dead_letters": {"lag.png": COLOURS, "dead-letters.png": COLOURS}}


#: The notebook that needs authentication.
GUARDED = "08_who_did_what"


@pytest.fixture
def service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ServiceProcess]:
    # The notebook of dead workers waits for it.
    monkeypatch.setenv("DELTAMQ_QUEUE_INVISIBLE_MS_MIN", "2000")
    if GUARDED in request.node.name:
        monkeypatch.setenv("DELTAMQ_SERVICE_AUTH", "true")
        _, token = make_administrator(config_for(tmp_path / "warehouse"), "admin")
        monkeypatch.setenv("DELTAMQ_CLIENT_TOKEN", token)
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
        "08_who_did_what.py",
        "09_database_to_table.py",
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


@pytest.mark.promise("STATE-7")
@pytest.mark.long
def test_spark_5_a_notebook_runs_in_the_session_that_is_there(service: ServiceProcess, spark: SparkSession) -> None:
    printed = run_as_notebook(SHORT.read_text(encoding="utf-8"), str(SHORT), spark, environ_of(service))
    assert "left=0, lost=0" in printed


def environ_of(service: ServiceProcess) -> dict[str, str]:
    """Where notebooks find the service and its warehouse."""
    return {"DELTAMQ_CLIENT_URL": service.url, "DELTAMQ_WAREHOUSE_URI": str(service.warehouse)}


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_spark_5_a_notebook_runs(path: Path, service: ServiceProcess, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        **environ_of(service),
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
