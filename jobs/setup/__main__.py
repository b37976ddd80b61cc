"""`make setup`: everything that the project needs, from a clone with Python 3.11, Java 17 and make.

    python ok? -> java ok? -> .venv with the locked packages -> the project itself -> the native part -> .jars

Each step prints what it does; if it fails, one line names the remedy. A step whose result exists is not repeated (a
stamp in .venv holds the hash of its input): a second run needs no network. Two runs at once wait for each other.
Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from deltamq.jobs.setup.jars import (
    AVRO,
    DELTA,
    PROJECT_FOLDER,
    S3A,
    JarSet,
    JarsUnusable,
    fetch_jars,
    jars_folder,
    pinned_jars,
    wrong_jars,
)
from deltamq.jobs.setup.java import Java, JavaMissing, find_java
from deltamq.jobs.setup.native import SOURCES, build_library, find_compiler, is_built, library_path

PYTHON_VERSION_MIN = (3, 11)
LOCK_FILE = PROJECT_FOLDER / "requirements.lock"
PROJECT_FILE = PROJECT_FOLDER / "pyproject.toml"
VENV = PROJECT_FOLDER / ".venv"
STAMP_OF_PACKAGES = VENV / ".locked-packages"
STAMP_OF_PROJECT = VENV / ".project"
#: Holds what could not be compiled, and with which compiler: it is not tried, and told, again and again.
STAMP_OF_NATIVE = VENV / ".native"
BUILDER = "setuptools"


class SetupFailed(Exception):
    """A step failed; the message names the step and the remedy."""


def main(arguments: list[str] | None = None) -> int:
    """Set up what is missing, or with `--check` only report it; return the exit code."""
    parser = argparse.ArgumentParser(prog="make setup", description="Set up .venv and .jars.")
    parser.add_argument("--check", action="store_true", help="change nothing, only report what is missing")
    parser.add_argument("--s3", action="store_true", help="also fetch what Spark needs for a warehouse on S3")
    parser.add_argument("--jars", action="store_true", help="only print the paths of the jars, for spark-submit")
    options = parser.parse_args(arguments)
    asked = [DELTA, AVRO, S3A] if options.s3 else [DELTA, AVRO]
    try:
        if options.jars:
            return print_jars(asked)
        return check(asked) if options.check else set_up(asked)
    except (SetupFailed, JavaMissing, JarsUnusable) as error:
        print(f"setup failed: {error}", file=sys.stderr)
        return 1


def set_up(jars: Sequence[JarSet] = (DELTA, AVRO)) -> int:
    """Do every step whose result does not exist yet."""
    started = time.monotonic()
    _check_python()
    java = find_java()
    with _one_at_a_time():
        changed = [_packages(), _project(), _native(), *(_jars(java, one) for one in jars)]
    if any(changed):
        _say(f"ready in {time.monotonic() - started:.0f} s (Java {java.version} at {java.path})")
    return 0


def check(jars: Sequence[JarSet] = (DELTA, AVRO)) -> int:
    """Print one line for each requirement and whether it is met; return 0 if all are."""
    needs: list[tuple[str, Callable[[], str]]] = [
        ("python", _check_python),
        ("java", lambda: f"{find_java().version} at {find_java().path}"),
        ("packages", lambda: _stamped(STAMP_OF_PACKAGES, _packages_key(), "run make setup")),
        ("jars", lambda: _jars_there(jars)),
    ]
    failed = 0
    for name, need in needs:
        try:
            print(f"ok      {name}: {need()}")
        except (SetupFailed, JavaMissing, JarsUnusable) as error:
            failed += 1
            print(f"MISSING {name}: {error}")
    return 1 if failed else 0


def print_jars(jars: Sequence[JarSet]) -> int:
    """Check the jars and print their paths."""
    folder = Path(_jars_there(jars))
    print(",".join(str(folder / name) for one in jars for name in pinned_jars(one)))
    return 0


def _check_python() -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_VERSION_MIN:
        raise SetupFailed(f"this is Python {version}; 3.11 or newer is needed: make setup PYTHON=/path/to/python3.11")
    return version


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    with (PROJECT_FOLDER / ".setup.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another make setup is running: waiting for it", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _packages() -> bool:
    """Install exactly the packages of the lock file into .venv; return False if they are installed already."""
    if _read(STAMP_OF_PACKAGES) == _packages_key() and _venv_python().exists():
        return False
    if not _venv_python().exists():
        _make_venv()
    _say(f"installing the {_locked_count()} packages of {LOCK_FILE.name} into .venv (takes minutes)")
    with tempfile.TemporaryDirectory() as folder:
        builder = Path(folder) / "builder.lock"
        builder.write_text(_locked_block(BUILDER), encoding="utf-8")
        # some packages come as source: their build tool is locked, too, and is installed first
        _pip("--require-hashes", "--requirement", str(builder), step=f"installing {BUILDER}")
    # Python compiles what is imported; pip would compile all of it, which takes as long as the rest.
    _pip(
        *("--no-compile", "--require-hashes", "--no-build-isolation", "--requirement", str(LOCK_FILE)),
        step=f"installing {LOCK_FILE.name}",
    )
    STAMP_OF_PACKAGES.write_text(_packages_key(), encoding="ascii")
    return True


def _make_venv() -> None:
    _say(f"creating .venv with Python {_check_python()}")
    shutil.rmtree(VENV, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        told = (done.stdout + done.stderr).strip()
        raise SetupFailed(f"python -m venv failed (Debian, Ubuntu: apt-get install python3.11-venv): {told}")


def _project() -> bool:
    """Install the project itself, editable; return False if it is installed with the same metadata."""
    key = _sha256(PROJECT_FILE)
    if _read(STAMP_OF_PROJECT) == key and (VENV / "bin" / "deltamq").exists():
        return False
    _say("installing deltamq itself (editable)")
    _pip(
        *("--no-deps", "--no-build-isolation", "--quiet", "--editable", str(PROJECT_FOLDER)),
        step="installing deltamq itself",
    )
    STAMP_OF_PROJECT.write_text(key, encoding="ascii")
    return True


def _native() -> bool:
    """Compile the native parts if a C compiler is there; return False if that is done, or was tried in vain before."""
    compiler = find_compiler()
    missing = [source for source in SOURCES if not is_built(source)]
    key = f"{' '.join(library_path(source).name for source in missing)} {compiler!a}"
    if not missing or _read(STAMP_OF_NATIVE) == key:
        return False
    if compiler is None:
        told: list[str] = ["there is no C compiler (Debian, Ubuntu: apt-get install gcc)"]
    else:
        told = [said for source in missing if (said := build_library(compiler, source)) is not None]
    if not told:
        _say(f"compiled {', '.join(library_path(source).name for source in missing)}")
    else:
        STAMP_OF_NATIVE.write_text(key, encoding="ascii")
        _say(f"{'; '.join(told)}: DeltaMQ works without, small commits are slower under load")
    return not told


def _jars(java: Java, jars: JarSet) -> bool:
    """Fetch the jars; return False if all of them are present and right."""
    folder = jars_folder()
    wrong = wrong_jars(folder, jars)
    if not wrong:
        return False
    name, what = next(iter(wrong.items()))
    others = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    _say(f"{name} {what}{others}: fetching")
    fetch_jars(folder, jars, python=_venv_python(), java=java.path)
    return True


def _jars_there(asked: Sequence[JarSet]) -> str:
    folder = jars_folder()
    for jars in asked:
        wrong = wrong_jars(folder, jars)
        if wrong:
            raise JarsUnusable("; ".join(f"{name} {what}" for name, what in wrong.items()) + f": run {jars.remedy}")
    return str(folder)


def _pip(*arguments: str, step: str) -> None:
    command = [str(_venv_python()), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env={**os.environ, "PYTHONNOUSERSITE": "1"}, check=False)
    if done.returncode != 0:
        raise SetupFailed(f"{step}: pip ended with {done.returncode}; see its message above, then run make setup again")


def _venv_python() -> Path:
    return VENV / "bin" / "python"


def _packages_key() -> str:
    return f"{_sha256(LOCK_FILE)} python{sys.version_info[0]}.{sys.version_info[1]}"


def _locked_count() -> int:
    return sum(1 for line in _lock_lines() if "==" in line)


def _locked_block(package: str) -> str:
    """Return the lock's lines for one package: its pin and its hashes."""
    block: list[str] = []
    for line in _lock_lines():
        if line.startswith(f"{package}==") or (block and line.startswith(" ")):
            block.append(line)
        elif block:
            break
    return "\n".join(block) + "\n"


def _lock_lines() -> list[str]:
    return LOCK_FILE.read_text(encoding="ascii").splitlines()


def _stamped(stamp: Path, key: str, remedy: str) -> str:
    if _read(stamp) != key:
        raise SetupFailed(f"{stamp.parent} does not match {LOCK_FILE.name}: {remedy}")
    return str(stamp.parent)


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.exists() else ""


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _say(line: str, *, file: TextIO | None = None) -> None:
    print(f"setup: {line}", file=file, flush=True)


if __name__ == "__main__":
    sys.exit(main())
