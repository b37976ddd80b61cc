"""A plugin of pytest that tells the runner of each test's end; it is loaded in the suite's own environment."""

from __future__ import annotations

import os

import pytest

_RESULTS = os.fdopen(int(os.environ["SUITE_RESULTS_FD"]), "w", buffering=1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a line when a test has passed, and when one of its phases failed or skipped it."""
    if report.when == "call" or not report.passed:
        _RESULTS.write(f"{report.outcome} {report.nodeid}\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be read has failed."""
    if report.failed:
        _RESULTS.write(f"failed {report.nodeid}\n")
