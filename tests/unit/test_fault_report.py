"""The table of faults names what ran, what failed, and what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fault_report import Record, Table, fault_of


def report(nodeid: str, outcome: Any = "passed", when: Any = "call", **properties: object) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=nodeid,
        location=("", 0, ""),
        keywords={},
        outcome=outcome,
        longrepr=None,
        when=when,
        sections=[("Captured stdout call", "40 kills\nserving again within 0.2 s\n")],
        duration=1.5,
        user_properties=list(properties.items()),
    )


@pytest.mark.parametrize(
    ("nodeid", "fault"),
    [
        ("tests/history/test_faults.py::test_f1_a_killed_service[True]", "F1"),
        ("tests/faults/test_failpoints.py::test_f3_five_hundred_pauses[1]", "F3"),
        ("tests/history/test_orderly.py::test_order_05_clients_come_and_go", "order"),
        ("tests/history/test_checker.py::test_a_run_that_reached_nothing_is_no_proof", "checker"),
        ("tests/faults/test_killed_jobs.py::test_pop_11_revive_killed_at_a_point[x]", "F12"),
        ("tests/faults/test_long_model.py::test_model_3_the_log_is_a_list", "model"),
    ],
)
def test_a_test_belongs_to_the_fault_that_it_is_named_after(nodeid: str, fault: str) -> None:
    assert fault_of(nodeid) == fault


def test_figures_are_added_up_and_failures_named() -> None:
    table = Table()
    table.add(report("tests/history/a.py::test_f1_x[0]", seed=1, runs=1, anomalies=0, faults=3, acknowledged=1_000))
    table.add(report("tests/history/a.py::test_f1_x[1]", "failed", seed=2, runs=1, anomalies=2, faults=3))
    table.add(report("tests/history/a.py::test_f1_y", "skipped"))
    table.add(report("tests/history/a.py::test_f1_x[1]", when="teardown"))
    head, _, row = table.lines()
    assert head.startswith("| fault | what | runs | anomalies | failed")
    assert row == (
        "| F1 | kill -9 of writers and services under load | 2 | 2 | test_f1_x[1] | 3 | 1,000 acknowledged; 6 faults "
        "| 1, 2 |"
    )


def test_a_test_without_figures_shows_what_it_printed() -> None:
    table = Table()
    table.add(report("tests/faults/test_rival_writers.py::test_f4_rivals[2]"))
    assert table.lines()[2].endswith("| 1 | - | 0 | 2 | serving again within 0.2 s | - |")


def test_what_passed_is_known_after_a_stop_at_any_byte(tmp_path: Path) -> None:
    record = Record(tmp_path / "out" / "commit.jsonl")
    assert record.passed() == {}
    one, two = "tests/history/a.py::test_f1_x[0]", "tests/history/a.py::test_f1_x[1]"
    record.add(report(one, when="setup"))
    record.add(report(one, seed=1, runs=1, acknowledged=1_000))
    record.add(report(two, "failed"))
    record.add(report("tests/history/a.py::test_f1_y", "skipped", when="setup"))
    whole = (tmp_path / "out" / "commit.jsonl").read_bytes()
    assert set(record.passed()) == {one, "tests/history/a.py::test_f1_y"}
    table = Table()
    for kept in record.passed().values():
        table.add(kept)
    assert "1,000 acknowledged | 1 |" in table.lines()[2]
    record.add(report(two))
    assert two in record.passed(), "the last run counts"
    for length in range(len(whole)):
        (tmp_path / "out" / "commit.jsonl").write_bytes(whole[:length])
        assert set(record.passed()) <= {one, "tests/history/a.py::test_f1_y"}
