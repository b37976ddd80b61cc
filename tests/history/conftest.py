"""What runs of the checker share: a red one leaves its history where it can be found."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.history.checker.check import Verdict
from tests.history.runs.nemesis import Fault
from tests.history.runs.run import Plan, Run, System, run

#: Plays a plan, and fails the test unless the verdict is "valid".
Valid = Callable[..., Run]
_OUT: Final = Path(__file__).parents[2] / "out" / "history"


@pytest.fixture
def valid(
    tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[Plan, Callable[[System], Sequence[Fault]]], Run]:
    """Play a plan; what it showed goes into the table of faults, and a red run's history is kept."""

    def play(plan: Plan, hurt: Callable[[System], Sequence[Fault]] = lambda _: ()) -> Run:
        folder = tmp_path / f"run-{plan.seed}"
        try:
            found = run(folder, plan, hurt)
        except BaseException:
            keep(folder, request.node.name)
            raise
        record_property("seed", plan.seed)
        for name, value in (*found.figures.items(), ("runs", 1)):
            record_property(name, value)
        if found.checked.verdict is not Verdict.VALID:
            kept = keep(folder, request.node.name)
            pytest.fail(f"seed {plan.seed}, kept in {kept}\n{found}")
        shutil.rmtree(folder)
        return found

    return play


def keep(folder: Path, test: str) -> Path:
    """Copy a run to where `make clean` finds it; the tables, too."""
    kept = _OUT / f"{test.replace('/', '_')}-{folder.name}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept)
    return kept
