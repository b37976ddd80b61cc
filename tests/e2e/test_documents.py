"""What the README tells people to type is typed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.main_job import ROOT, MainJob

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```(bash|python)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8080"


def title(example: tuple[str, str]) -> str:
    """The heading above an example."""
    return re.findall(r"^### (.+)$", README[: README.index(example[1])], re.MULTILINE)[-1]


@pytest.mark.parametrize("example", EXAMPLES, ids=title)
def test_an_example_of_the_readme_works(example: tuple[str, str], served: MainJob) -> None:
    language, text = example
    text = text.replace(ADDRESS, served.url)
    command = ["bash", "-euo", "pipefail", "-c", text] if language == "bash" else [sys.executable, "-c", text]
    environ = {**os.environ, "DELTAMQ_URL": served.url, "DELTAMQ_WAREHOUSE_URI": str(served.warehouse)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_the_readme_has_an_example_of_each_door() -> None:
    assert [title(example) for example in EXAMPLES] == [
        "REST",
        "Python",
        "Groups",
        "Order",
        "Spark SQL",
        "Streams",
        "Writing, typed tables, a catalog",
        "Command line",
    ]


def test_the_readmes_first_commands_are_targets_of_make() -> None:
    told = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert told == ["setup", "run"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in told if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_every_option_of_make_run_in_the_readme_is_one() -> None:
    options = re.findall(r"^\| `([A-Z]+)=\S+` \|", README, re.MULTILINE)
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nrun:")[2].partition("\n\n")[0]
    assert options == ["ONCE", "PORT", "EVENTS", "RATE", "WAREHOUSE"]
    assert [name for name in options if f"$({name})" not in recipe] == []


def test_every_file_that_the_readme_points_to_is_there() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert targets
    assert [target for target in targets if not Path(ROOT / target).exists()] == []
