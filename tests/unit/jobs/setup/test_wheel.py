"""What `make wheel` builds: alone it is the client, and installed elsewhere it has its profiles and commands."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from deltamq.jobs.setup.jars import PROJECT_FOLDER
from deltamq.jobs.setup.wheel import build
from deltamq.tables.compiled import SOURCES, find_compiler, library_path

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    left = {"build", "deltamq.egg-info"}.difference(path.name for path in PROJECT_FOLDER.iterdir())
    built = build(tmp_path_factory.mktemp("wheel") / "dist")
    assert not any((PROJECT_FOLDER / name).exists() for name in left), "the build leaves files in the project's folder"
    return built


def _needs(wheel: Path, extra: str | None = None) -> set[str]:
    with zipfile.ZipFile(wheel) as read:
        (name,) = [name for name in read.namelist() if name.endswith(".dist-info/METADATA")]
        lines = [line.partition(": ")[2] for line in read.read(name).decode().splitlines() if "Requires-Dist" in line]
    marker = "" if extra is None else f"extra == '{extra}'"
    return {re.split(r"[^a-z0-9_-]", line)[0] for line in lines if line.partition("; ")[2] == marker}


def test_the_wheel_alone_is_the_client_and_extras_bring_service_and_spark(built: Sequence[Path]) -> None:
    wheel, source, packed = built
    assert packed.read_bytes() == wheel.read_bytes()
    assert list(wheel.parent.glob("*.whl")) == [wheel], "pip install dist/*.whl has one to install"
    assert source.name.endswith(".tar.gz")
    assert _needs(wheel) == {"click", "msgspec", "numpy", "pyarrow", "rich", "urllib3"}
    assert {"fastapi", "uvicorn", "obstore"} <= _needs(wheel, "service")
    assert {"pyspark", "delta-spark", "obstore"} <= _needs(wheel, "spark")


def test_a_wheel_has_the_compiled_parts_if_there_is_a_compiler(built: Sequence[Path]) -> None:
    with zipfile.ZipFile(built[0]) as read:
        libraries = {name for name in read.namelist() if name.endswith(".so")}
    if find_compiler() is None:
        assert not libraries and built[0].name.endswith("-py3-none-any.whl")
        return
    expected = {library_path(PROJECT_FOLDER / source).relative_to(PROJECT_FOLDER).as_posix() for source in SOURCES}
    assert libraries == {f"deltamq/{path}" for path in expected}
    assert re.search(r"-py3-none-manylinux_2_\d+_\w+\.whl$", built[0].name)


def test_a_wheel_has_the_modules_that_are_there(built: Sequence[Path]) -> None:
    with zipfile.ZipFile(built[0]) as read:
        packed = {name for name in read.namelist() if name.endswith(".py")}
        marked = [name for name in read.namelist() if name.endswith("py.typed")]
    there = {
        f"deltamq/{path.relative_to(PROJECT_FOLDER).as_posix()}"
        for layer in ("api", "jobs", "mq", "tables")
        for path in (PROJECT_FOLDER / layer).rglob("*.py")
    }
    there ^= {"deltamq/__init__.py", "deltamq/mq/client/deltamq.py"}  # the latter is the former
    assert packed == there
    assert marked == ["deltamq/py.typed"], "type checkers look for it at the top"


def test_spark_06_it_installs_and_has_its_profiles_and_commands(built: Sequence[Path], tmp_path: Path) -> None:
    target = tmp_path / "libraries"
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(target))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(built[0])], check=True)
    code = (
        "from importlib.metadata import distribution; from deltamq.tables.config import load;"
        "import deltamq; print(deltamq.__file__, load('databricks', environ={}).jobs.engine.value);"
        "print(distribution('deltamq').version, "
        "[one.value for one in distribution('deltamq').entry_points if one.name == 'deltamq-jobs'])"
    )
    # the packages that it needs, but not the project's own editable install, which -S leaves out
    path = [str(target), str(Path(msgspec.__file__).parents[1])]
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {path!r}; {code}"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.stdout.splitlines() == [
        f"{target}/deltamq/__init__.py spark",
        "0.1.0 ['deltamq.jobs.submit.task:main']",
    ], told.stderr
