"""User code with the SDK passes mypy and pyright, both strict, as it does beside an installed package."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import deltamq

HERE = Path(__file__).parent
PROGRAM, ARROW = "program.py", "arrow_program.py"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of a user, where no settings of this project apply."""
    folder = tmp_path_factory.mktemp("user")
    for name in (PROGRAM, ARROW):
        shutil.copy(HERE / name, folder)
    return folder


def test_the_programs_have_every_name_that_users_import() -> None:
    trees = [ast.parse((HERE / name).read_text(encoding="utf-8")) for name in (PROGRAM, ARROW)]
    named = {
        alias.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "deltamq"
        for alias in node.names
    }
    assert named == set(dir(deltamq))


@pytest.mark.long
def test_user_code_passes_mypy_strict(project: Path) -> None:
    """`make lint` checks the programs with mypy as modules of this project on every change."""
    (project / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-pyarrow.*]\nignore_missing_imports = True\n")
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--cache-dir=cache", PROGRAM, ARROW]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="pyright runs in node, which is not there")
def test_user_code_passes_pyright(project: Path) -> None:
    """The program with Arrow, too, whose package has no types, so that this one is not strict."""
    settings = {"include": [PROGRAM, ARROW], "strict": [PROGRAM], "typeCheckingMode": "standard"}
    (project / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings" in done.stdout
