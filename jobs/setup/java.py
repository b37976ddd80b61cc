"""The Java that Spark will start: found as Spark finds it, and checked first, because Spark's own errors are obscure.

Spark starts `$JAVA_HOME/bin/java`, else the `java` on PATH. It must be 17 or newer and have the module
`jdk.incubator.vector`, without which Spark 4.2 cannot start. Standard library only: `make setup` begins with this file.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

JAVA_VERSION_MIN = 17
VECTOR_MODULE = "jdk.incubator.vector"
PROBE_TIMEOUT_S = 60


class JavaMissing(Exception):
    """There is no Java that Spark can start; the message has the remedy."""


class Java(NamedTuple):
    """A usable Java: its executable and its major version."""

    path: Path
    version: int


def find_java(environ: dict[str, str] | None = None) -> Java:
    """Return the Java that Spark will start; raise JavaMissing, with the remedy, if it cannot run Spark."""
    environ = dict(os.environ) if environ is None else environ
    path, source = _executable(environ)
    version = _major_version(path, source)
    if version < JAVA_VERSION_MIN:
        raise JavaMissing(f"{source} is Java {version}; Spark needs {JAVA_VERSION_MIN} or newer. {_remedy()}")
    if VECTOR_MODULE not in _probe(path, "--list-modules"):
        raise JavaMissing(f"{source} has no module {VECTOR_MODULE}, which Spark 4.2 needs. {_remedy()}")
    return Java(path=path, version=version)


def java_path(environ: dict[str, str] | None = None) -> Path:
    """Return the path of the Java that Spark will start, untried; raise JavaMissing if there is none."""
    return _executable(dict(os.environ) if environ is None else environ)[0]


def _executable(environ: dict[str, str]) -> tuple[Path, str]:
    home = environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not os.access(path, os.X_OK):
            raise JavaMissing(f"JAVA_HOME is {home}, but there is no {path}. Correct or unset it. {_remedy()}")
        return path, f"{path} (from JAVA_HOME)"
    executable = shutil.which("java", path=environ.get("PATH"))
    if executable is None:
        raise JavaMissing(f"no java on PATH and JAVA_HOME is not set. {_remedy()}")
    return Path(executable), f"{executable} (from PATH)"


def _major_version(path: Path, source: str) -> int:
    output = _probe(path, "-version")
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output)
    if match is None:
        raise JavaMissing(f"{source} does not say its version: {output.strip()[:200]!r}. {_remedy()}")
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major  # Java 8 calls itself 1.8


def _probe(path: Path, flag: str) -> str:
    try:
        done = subprocess.run([str(path), flag], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(f"{path} {flag} failed: {error}. {_remedy()}") from error
    return done.stderr + done.stdout  # -version goes to stderr, --list-modules to stdout


def _remedy() -> str:
    install = {
        "Darwin": "brew install openjdk@17, then export JAVA_HOME=$(brew --prefix openjdk@17)",
        "Linux": (
            "apt-get install openjdk-17-jre-headless (Debian, Ubuntu) or "
            "dnf install java-17-openjdk-headless (Fedora, RHEL)"
        ),
    }.get(platform.system(), "a Java 17 or 21 runtime")
    return f"Install: {install}; or set JAVA_HOME to a complete Java {JAVA_VERSION_MIN}+."


if __name__ == "__main__":
    try:
        find_java()
    except JavaMissing as error:
        sys.exit(f"setup failed: {error}")
