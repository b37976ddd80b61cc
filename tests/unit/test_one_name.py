"""Everything is imported as `deltamq.*`: no module has two names, and none takes a name from others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("api", "jobs", "mq", "tables")
_MODULES = """
import importlib, os, sys
import api, jobs, mq, tables
print([one.mine for one in (api, jobs, mq, tables)])
for name in sys.stdin.read().split():
    importlib.import_module(name)
files = {}
for name, module in list(sys.modules.items()):
    path = os.path.relpath(os.path.realpath(getattr(module, "__file__", None) or "/"), sys.argv[1])
    if path.split("/")[0] in ("api", "jobs", "mq", "tables"):
        files.setdefault(path, []).append(name)
assert len(files) > 100, files
print({path: names for path, names in files.items() if len(names) > 1 or not names[0].startswith("deltamq")})
"""


def _run(code: str, *arguments: str, cwd: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, input=given, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("name", [*LAYERS, "deltamq.mq.client.deltamq"])
def test_a_module_cannot_be_loaded_under_a_second_name(name: str) -> None:
    ended = _run(f"import {name}", cwd=ROOT)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("ImportError: import deltamq")


def test_every_module_is_loaded_under_one_name_beside_packages_of_a_project(tmp_path: Path) -> None:
    """The project has packages whose names are those of the layers."""
    for layer in LAYERS:
        (tmp_path / layer).mkdir()
        (tmp_path / layer / "__init__.py").write_text(f"mine = {layer!r}\n")
    names = []
    for path in sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(("deltamq", *(parts[:-1] if parts[-1] == "__init__" else parts))))
    # Airflow has an environment of its own (tests/e2e/test_airflow.py)
    left = ("deltamq.mq.client.deltamq", "airflow.message_queue", "__main__", "sitecustomize", "build_hook")
    ended = _run(_MODULES, str(ROOT), cwd=tmp_path, given="\n".join(name for name in names if not name.endswith(left)))
    assert (ended.stdout, ended.returncode) == ("['api', 'jobs', 'mq', 'tables']\n{}\n", 0), ended.stderr
