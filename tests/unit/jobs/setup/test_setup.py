"""`make setup` says what is there and what is missing, and a second run does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltamq.jobs.setup import __main__ as setup
from deltamq.jobs.setup.jars import AVRO, DELTA, pinned_jars


def test_a_project_that_is_set_up_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["--check"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["ok", "python:"],
        ["ok", "java:"],
        ["ok", "packages:"],
        ["ok", "jars:"],
    ]


def test_spark_submit_is_told_the_paths_of_the_jars(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["--jars"]) == 0
    paths = [Path(path) for path in capsys.readouterr().out.strip().split(",")]
    assert sorted(path.name for path in paths) == sorted({**pinned_jars(DELTA), **pinned_jars(AVRO)})
    assert all(path.is_file() for path in paths)


def test_a_second_run_does_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main([]) == 0
    capsys.readouterr()
    assert setup.main([]) == 0
    assert capsys.readouterr().out == ""


def test_what_builds_packages_is_locked_and_comes_first() -> None:
    block = setup._locked_block("setuptools").splitlines()
    assert block[0].startswith("setuptools==")
    assert len(block) > 1
    assert all(line.strip().startswith("--hash=sha256:") for line in block[1:])


def test_a_failure_is_one_line_and_no_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert setup.main([]) == 1
    assert capsys.readouterr().err.startswith("setup failed: JAVA_HOME is /nowhere")
