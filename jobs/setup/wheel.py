"""`make wheel`: the project's packages for other machines, in `dist/`.

    deltamq-0.1.0-py3-none-any.whl                the package
    deltamq-0.1.0.zip                             the same for spark-submit --py-files, which takes no .whl
    databricks/deltamq-0.1.0+databricks-py3-none-any.whl
                                                  without its dependencies Spark and Delta: the platform has its own,
                                                  and a second Spark beside it breaks both. In a folder of its own:
                                                  `pip install dist/*.whl` has one wheel to install

Standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from deltamq.jobs.setup.jars import PROJECT_FOLDER

#: Packages that a platform with Spark brings itself.
BROUGHT: Final = ("pyspark", "delta-spark")
_LABEL: Final = "databricks"
#: What the build reads.
_SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "conf", "api", "jobs", "mq", "tables")


def build(target: Path) -> list[Path]:
    """Build all three into an empty folder; return their paths."""
    shutil.rmtree(target, ignore_errors=True)
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    # The build leaves files where it runs, and the next one would pack what they still have of deleted modules.
    with tempfile.TemporaryDirectory() as folder:
        for name in _SOURCES:
            _copy(PROJECT_FOLDER / name, Path(folder) / name)
        command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(target.resolve()), folder]
        subprocess.run(command, check=True)
    (wheel,) = target.glob("*.whl")
    name, version, _ = wheel.name.split("-", 2)
    packed = shutil.copy(wheel, target / f"{name}-{version}.zip")
    return [wheel, Path(packed), without_spark(wheel)]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def without_spark(wheel: Path) -> Path:
    """Write a copy of the wheel, under a version of its own, that does not require the packages of the platform."""
    name, version, tags = wheel.name.split("-", 2)
    labelled = f"{version}+{_LABEL}"
    target = wheel.parent / _LABEL / f"{name}-{labelled}-{tags}"
    target.parent.mkdir(exist_ok=True)
    before, after = f"{name}-{version}.", f"{name}-{labelled}."
    record = f"{after}dist-info/RECORD"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        lines = [f"{record},,"]
        for entry in source.infolist():
            path = entry.filename.replace(before, after, 1) if entry.filename.startswith(before) else entry.filename
            if path == record or entry.is_dir():
                continue
            content = source.read(entry)
            if path == f"{after}dist-info/METADATA":
                content = _metadata(content.decode(), version, labelled).encode()
            made.writestr(zipfile.ZipInfo(path, entry.date_time), content, zipfile.ZIP_DEFLATED)
            lines.append(f"{path},sha256={_digest(content)},{len(content)}")
        made.writestr(record, "\n".join(lines) + "\n")
    return target


def _metadata(text: str, version: str, labelled: str) -> str:
    kept = [line for line in text.split("\n") if not _needs_spark(line)]
    return "\n".join(f"Version: {labelled}" if line == f"Version: {version}" else line for line in kept)


def _needs_spark(line: str) -> bool:
    return any(line.startswith(f"Requires-Dist: {package}==") for package in BROUGHT)


def _digest(content: bytes) -> str:
    """Return the hash as a wheel's RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    for built in build(PROJECT_FOLDER / "dist"):
        print(built.relative_to(PROJECT_FOLDER))
