"""`deltamq setup` checks Java and fetches what Spark needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from deltamq.jobs.cli.setup_command import setup_command
from deltamq.jobs.setup.jars import AVRO, DELTA, pinned_jars


def test_spark_submit_is_told_the_paths_of_the_jars() -> None:
    done = CliRunner().invoke(setup_command, ["--jars"])
    assert done.exit_code == 0
    paths = [Path(path) for path in done.output.strip().split(",")]
    assert sorted(path.name for path in paths) == sorted({**pinned_jars(DELTA), **pinned_jars(AVRO)})
    assert all(path.is_file() for path in paths)


def test_what_is_there_is_not_fetched_again() -> None:
    assert CliRunner().invoke(setup_command, ["--quiet"]).output == ""
    assert CliRunner().invoke(setup_command, []).output.startswith("ready: Java ")


def test_a_failure_is_one_line_and_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    done = CliRunner().invoke(setup_command, [])
    assert done.exit_code == 1
    assert done.output.startswith("Error: JAVA_HOME is /nowhere") and len(done.output.splitlines()) == 1
