"""The project's own promises: its door, its layers, its documents, its lock."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.fault_report import FAULTS
from tests.history.checker.anomalies import NAMES
from tests.promises import MADE, promised, proofs, written

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SPEC = (ROOT / "SPEC.md").read_text(encoding="utf-8")
RULES = re.findall(r"^\*\*([A-Z]+)-(\d+)\*\*", SPEC, re.MULTILINE)
FAULT_ROWS = dict(re.findall(r"^\| (F\d+) \| ([^|]+) \|", SPEC, re.MULTILINE))
LOCK = (ROOT / "requirements.lock").read_text(encoding="ascii")
FOLDERS = ("jobs", "tables", "api", "mq", "notebooks", "tests", "conf")
#: Kinds of labels of papers that are not in the repository: nobody could look them up.
ELSEWHERE = re.compile(r"(?<!Cloudflare )\b(RELIABILITY (R?\d|F\d|fact)|REFERENCE \d|R\d{1,3}\b)")
TARGETS = ("setup", "format", "lint", "test", "run", "bench", "faults", "clean")


def _make(*arguments: str) -> str:
    done = subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_make_alone_prints_every_target_with_its_text() -> None:
    printed = _make()
    for target in TARGETS:
        assert re.search(rf"^  make {target} +\S+", printed, re.MULTILINE), printed


def test_every_target_of_the_makefile_has_a_text() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):(.*)$", makefile, re.MULTILINE)
    assert [name for name, rest in targets if "## " not in rest] == []


def test_run_ends_by_itself_only_when_asked() -> None:
    assert "--once" in _make("--dry-run", "run", "ONCE=1")
    assert "--once" not in _make("--dry-run", "run")


def test_ci_runs_make_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [
        line
        for line in script.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == ["make setup", "make --jobs=2 --output-sync=target lint classes compiled", "make test"]


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "conf/local.toml"]
)
def test_a_document_is_there_and_not_empty(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").strip()


def test_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_imports_keep_to_the_layers() -> None:
    tool = ROOT / ".venv" / "bin" / "lint-imports"
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout


def test_lock_pins_with_hashes_and_names_no_address() -> None:
    pins = re.findall(r"^([a-z0-9-]+)==\S+", LOCK, re.MULTILINE)
    assert len(pins) > 40
    assert re.search(r"://|--index|--extra|--find|/home|/root|/work", LOCK) is None
    blocks = re.split(r"^(?=[a-z0-9-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_lock_holds_what_the_project_asks_for() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    # Airflow has an environment of its own, which tests/e2e/airflow_pins.txt pins
    ours = {name: extra for name, extra in extras.items() if name not in ("airflow", "all")}
    asked = [*project["dependencies"], *(one for extra in ours.values() for one in extra)]
    asked += PROJECT["build-system"]["requires"]
    assert extras["all"] == [f"deltamq[{','.join(sorted(ours.keys() - {'dev'}))}]"]
    locked = dict(re.findall(r"^([a-z0-9._-]+)==([^ ]+)", LOCK, re.MULTILINE))
    wanted = [Requirement(line) for line in asked]
    assert [str(one) for one in wanted if not one.specifier.contains(locked.get(one.name.lower(), "0"))] == []


def test_commands_of_other_layers_are_found_by_entry_points() -> None:
    points = PROJECT["project"]["entry-points"]["deltamq.commands"]
    assert points == {
        "backup": "deltamq.jobs.cli.backup_commands:backup_group",
        "serve": "deltamq.api.command:serve_command",
        "setup": "deltamq.jobs.cli.setup_command:setup_command",
        "jobs": "deltamq.jobs.cli.jobs_group:jobs_command",
        "verify": "deltamq.jobs.cli.verify_command:verify_command",
        "cost": "deltamq.jobs.cli.cost_command:cost_command",
    }


def test_every_rule_names_a_test_that_exists() -> None:
    named = re.findall(r"`(test_\w+)`", SPEC)
    tests = (text for path, text in _citing().items() if path.name.startswith("test_"))
    defined = {name for text in tests for name in re.findall(r"def (test_\w+)\(", text)}
    assert len(named) > 20
    assert [name for name in named if name not in defined] == []


def test_every_promise_has_a_test_and_the_list_names_it() -> None:
    """`python -m tests.promises` writes what is missing."""
    ids = promised()
    assert len(ids) == len(set(ids)) > 100
    assert set(proofs()) == set(ids)
    assert MADE.read_text(encoding="utf-8") == written()


def test_an_id_means_one_thing_in_rules_and_promises() -> None:
    assert {f"{section}-{number}" for section, number in RULES} & set(promised()) == set()


def test_every_rule_says_whether_it_works_and_names_its_test() -> None:
    states = r"(partly:[^;]+;\s+|not\s+yet|)(`test_\w+`)?\)"
    rules = re.findall(rf"^\*\*([A-Z]+)-(\d+)\*\* \({states}", SPEC, re.MULTILINE)
    assert len(rules) == len(RULES) > 100
    assert [rule for rule in rules if rule[2].startswith("not") is bool(rule[3])] == []
    numbers: dict[str, list[int]] = {}
    for section, number, *_ in rules:
        numbers.setdefault(section, []).append(int(number))
    whole = {section: found for section, found in numbers.items() if section not in ("SEC", "TYPE")}
    assert [section for section, found in whole.items() if found != list(range(1, len(found) + 1))] == []
    # SEC has two parts, written apart: who may do what, and from 20 on what strangers can do.
    # TYPE, too: typed topics, and from 20 on the registry.
    assert all(numbers[section] == sorted(set(numbers[section])) for section in ("SEC", "TYPE"))


@functools.cache
def _citing() -> dict[Path, str]:
    """Return the files that cite rules and faults, with their texts."""
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found = [*ROOT.glob("*.md"), *(path for path in sources if path.suffix in (".md", ".py", ".sql", ".toml"))]
    return {path: path.read_text(encoding="utf-8") for path in found}


def test_every_rule_that_is_cited_exists() -> None:
    rules = {f"{section}-{number}" for section, number in RULES}
    sections = "|".join(sorted({section for section, _ in RULES}))
    citation = re.compile(rf"\b({sections})-(\d{{1,2}})\b|def test_({sections.lower()})_0*(\d{{1,2}})_")
    cited: dict[str, Path] = {}
    for path, text in _citing().items():
        for name, number, tested, tested_number in citation.findall(text):
            cited[f"{name or tested.upper()}-{number or tested_number}"] = path
    # The rules of typed topics are written with the last part of these.
    assert {rule: path for rule, path in cited.items() if rule not in rules} == {}
    assert len(cited) > 60


def test_every_fault_that_is_cited_or_played_is_in_the_table() -> None:
    citation = re.compile(r"\bfaults? ((?:F\d+(?:, | and | to )?)+)")
    cited: dict[str, Path] = {}
    for path, text in _citing().items():
        found = [fault for named in citation.findall(text) for fault in re.findall(r"F\d+", named)]
        found += [f"F{number}" for number in re.findall(r"def test_f(\d+)_", text)]
        cited.update(dict.fromkeys(found, path))
    assert {fault: path for fault, path in cited.items() if fault not in FAULT_ROWS} == {}
    assert set(cited) == set(FAULT_ROWS)
    assert {fault: what for fault, what in FAULTS.items() if fault in FAULT_ROWS} == {
        fault: what for fault, what in FAULT_ROWS.items() if fault in FAULTS
    }


def test_the_fault_tests_name_every_failpoint_and_no_other() -> None:
    sources = [path for room in ("mq", "tables", "api", "jobs") for path in (ROOT / room).rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "failpoints.py")
    points = set(re.findall(r"(?:failpoint\(|after_append=)\"([a-z_]+\.[a-z_]+)\"", text))
    table = (ROOT / "tests" / "faults" / "README.md").read_text(encoding="utf-8").partition("## Failpoints")[2]
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", "\n".join(line for line in table.splitlines() if line.startswith("|")))
    assert len(named) == len(set(named)) > 50
    assert set(named) == points


def test_the_history_checker_says_what_each_anomaly_is() -> None:
    text = (ROOT / "tests" / "history" / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in text] == []


def test_nothing_cites_what_is_not_in_the_repository() -> None:
    """The reader of a citation can look it up here."""
    assert [path for path, text in _citing().items() if ELSEWHERE.search(text)] == []
