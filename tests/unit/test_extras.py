"""Each extra brings what the folders that it is for import."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: What no extra of a process brings, and the modules that say so when they are used.
_OTHERS = {
    "hatchling deltamq.jobs.setup.build_hook",
    "opentelemetry deltamq.api.spans",
    "opentelemetry deltamq.jobs.run.traces",
}


@pytest.mark.parametrize(("extra", "folders"), [("spark", ("jobs", "tables")), ("service", ("api", "tables"))])
def test_an_extra_brings_what_its_folders_import(extra: str, folders: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.extras", extra, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) - _OTHERS == set()
