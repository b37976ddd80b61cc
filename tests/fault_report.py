"""The table of faults: what each test of a fault did and found (SPEC FAULTS). `make faults` loads this plugin.

A test belongs to the fault that its name begins with (`test_f1_...`); other tests belong to the model or to the
checker. Figures that a test reports by `record_property` (`faults`, `acknowledged`, `anomalies`, ...) are summed or
shown; the table goes to `out/faults.md`, and to `out/faults.json` for machines.

What each test did is noted at once, in `out/faults/COMMIT.jsonl`. With `--continue` those that passed on the same
commit are not run again, and are in the table: a run of hours may be stopped, and lasts over some nights.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

__all__ = ["FAULTS", "Record", "Row", "Table"]

_ROOT: Final = Path(__file__).parents[1]
#: What each fault is, in the words of SPEC.md.
FAULTS: Final = {
    "F1": "kill -9 of writers and services under load",
    "F2": "kill at named points",
    "F3": "an owner that was stopped and goes on",
    "F4": "processes that fight for one partition",
    "F5": "power loss",
    "F6": "damaged files",
    "F7": "a disk that is full or fails",
    "F8": "clocks that jump and drift",
    "F9": "poison messages",
    "F11": "a storm of crashing consumers",
    "F12": "jobs killed and run twice",
    "F13": "jobs in any order, or skipped",
    "F14": "maintenance under load",
    "F15": "answers lost, late, repeated",
    "F19": "an ordered topic grows, logical queues are remapped under load",
    "F20": "an object store that fails",
    "order": "exclusive clients: handover, crashes, cuts",
    "checker": "the checker: planted faults, broken builds",
    "model": "the log against a list",
}
#: Figures that are summed; of other figures the largest is shown.
_SUMS: Final = ("runs", "faults", "takeovers", "acknowledged", "deliveries", "handled", "anomalies", "redelivered")
_SHOWN: Final = (
    "acknowledged",
    "deliveries",
    "handled",
    "faults",
    "takeovers",
    "redelivered",
    "serving again max s",
    "said",
)


@dataclass
class Row:
    """The row of one fault."""

    fault: str
    tests: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    seeds: set[int] = field(default_factory=set)
    said: list[str] = field(default_factory=list)

    def add(self, name: str, report: pytest.TestReport) -> None:
        """Count one test with its figures."""
        self.tests += 1
        self.seconds += report.duration
        if report.failed:
            self.failed.append(name)
        for key, value in report.user_properties:
            if key == "seed":
                self.seeds.add(int(str(value)))
            elif isinstance(value, int | float):
                before = self.figures.get(key, 0)
                self.figures[key] = before + value if key in _SUMS else max(before, value)
        self.said += [line for line in report.capstdout.splitlines() if line.strip()][-1:]

    @property
    def runs(self) -> int:
        """Number of runs of the system, or of tests if they report no runs."""
        return int(self.figures.get("runs", 0)) or self.tests

    @property
    def words(self) -> str:
        """The figures, as a cell of the table."""
        told = [f"{_number(self.figures[name])} {name}" for name in _SHOWN if self.figures.get(name)]
        return "; ".join(told) if told else "; ".join(dict.fromkeys(self.said[-2:]))


class Table:
    """Collects reports while pytest runs."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Count a test after its call, or after its setup failed."""
        if report.when != "call" and not (report.failed and report.when == "setup"):
            return
        if report.skipped:
            return
        name = report.nodeid.rpartition("::")[2]
        fault = fault_of(report.nodeid)
        self.rows.setdefault(fault, Row(fault)).add(name, report)

    def lines(self) -> list[str]:
        """Return the table as Markdown."""
        lines = [
            "| fault | what | runs | anomalies | failed | seconds | figures | seeds |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for fault, what in FAULTS.items():
            row = self.rows.get(fault)
            if row is None:
                continue
            seeds = ", ".join(map(str, sorted(row.seeds))) or "-"
            anomalies = _number(row.figures.get("anomalies", 0)) if "anomalies" in row.figures else "-"
            failed = ", ".join(row.failed) or "0"
            cells = (fault, what, row.runs, anomalies, failed, f"{row.seconds:.0f}", row.words, seeds)
            lines.append(f"| {' | '.join(map(str, cells))} |")
        return lines


def fault_of(nodeid: str) -> str:
    """Return the row that a test belongs to."""
    path, _, name = nodeid.rpartition("::")
    found = re.match(r"test_f(\d+)_", name)
    if found and f"F{found[1]}" in FAULTS:
        return f"F{found[1]}"
    if re.match(r"test_order_\d+_", name):
        return "order"
    if "tests/history" in path:
        return "checker"
    by_file = {
        "test_killed_jobs": "F12",
        "test_killed_merges": "F12",
        "test_crash_states": "F5",
        "test_damaged_files": "F6",
    }
    return by_file.get(Path(path).stem, "model")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


class Record:
    """What tests did on one commit, a line for each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, report: pytest.TestReport) -> None:
        """Note what a phase of a test did, if it is the one that counts."""
        if report.when == "call" or not report.passed:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            kept = {name: getattr(report, name) for name in ("nodeid", "outcome", "when", "duration")}
            kept |= {"properties": report.user_properties, "said": report.capstdout.splitlines()[-1:]}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(kept, default=str) + "\n")

    def passed(self) -> dict[str, pytest.TestReport]:
        """Return the tests whose last run passed, or was skipped; a line that is cut off counts for nothing."""
        last: dict[str, dict[str, Any]] = {}
        for line in self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else ():
            try:
                kept = json.loads(line)
            except ValueError:
                continue
            last[kept["nodeid"]] = kept
        return {nodeid: _report(kept) for nodeid, kept in last.items() if kept["outcome"] != "failed"}


def _report(kept: dict[str, Any]) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=kept["nodeid"],
        location=("", 0, ""),
        keywords={},
        outcome=kept["outcome"],
        longrepr=None,
        when=kept["when"],
        sections=[("Captured stdout call", "\n".join(kept["said"]))],
        duration=kept["duration"],
        user_properties=[(name, value) for name, value in kept["properties"]],
    )


_table = Table()
_record: Record | None = None
#: Where the tests are named that are not run again: for the processes of pytest-xdist, which must agree.
_DONE: Final = "FAULTS_DONE"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False).stdout.strip()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option; called by pytest."""
    parser.addoption("--continue", action="store_true", help="do not repeat fault tests that passed on this commit")


def pytest_configure(config: pytest.Config) -> None:
    """Find out what was done on this commit; called by pytest."""
    global _record
    if hasattr(config, "workerinput"):
        return
    goes_on, is_changed = config.getoption("--continue"), bool(_git("status", "--porcelain", "--untracked-files=no"))
    if goes_on and is_changed:
        raise pytest.UsageError("--continue: files differ from the commit; commit them, or run the tests anew")
    folder = _ROOT / "out" / "faults"
    path = folder / f"{'changed' if is_changed else _git('rev-parse', 'HEAD') or 'unknown'}.jsonl"
    if not goes_on:
        path.unlink(missing_ok=True)
    _record = Record(path)
    done = _record.passed()
    for report in done.values():
        _table.add(report)
    folder.mkdir(parents=True, exist_ok=True)
    names = folder / "done.json"
    names.write_text(json.dumps(list(done)), encoding="utf-8")
    os.environ[_DONE] = str(names)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was done; called by pytest in each of its processes."""
    done = set(json.loads(Path(os.environ[_DONE]).read_text(encoding="utf-8")))
    left_out = [item for item in items if item.nodeid in done]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in done]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End well if nothing was left to do; called by pytest."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and _table.rows:
        session.exitstatus = pytest.ExitCode.OK


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the report of each phase of a test; called by pytest."""
    _table.add(report)
    if _record is not None:
        _record.add(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table and write it to `out`; called by pytest at the end."""
    if not _table.rows:
        return
    commit = _git("rev-parse", "HEAD")
    lines = _table.lines()
    terminalreporter.section("faults")
    for line in lines:
        terminalreporter.write_line(line)
    out = _ROOT / "out"
    out.mkdir(exist_ok=True)
    head = f"# Faults, commit {commit or 'unknown'}\n\n"
    (out / "faults.md").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    rows = {
        row.fault: {"runs": row.runs, "failed": row.failed, "seconds": round(row.seconds, 1), "figures": row.figures}
        | {"seeds": sorted(row.seeds)}
        for row in _table.rows.values()
    }
    whole = {"commit": commit, "faults": rows}
    (out / "faults.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
