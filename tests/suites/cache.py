"""A folder with what suites need: fetched from registries by their own clients, pinned, and never in the repository."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["PINS", "Cache", "CannotRun"]

PINS: Final = Path(__file__).parent / "pins"
#: Longest time of one fetch or build, on a slow network or a busy machine.
_FETCH_S: Final = 1_800


class CannotRun(Exception):
    """A suite is not available here, or cannot be built; the text says what is missing and the remedy."""


class Cache(msgspec.Struct, frozen=True):
    """The folder, and how to bring things into it."""

    folder: Path

    def place(self, *names: str) -> Path:
        """Return a folder of the cache; it is made if need be."""
        path = self.folder.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def fresh(self, *names: str) -> Path:
        """Return a folder of the cache that is empty."""
        path = self.folder.joinpath(*names)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def copy(self, source: Path, name: str) -> Path:
        """Return a copy of a folder that a suite may change."""
        folder = self.fresh("play", name)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        return folder

    def python(self) -> Path:
        """Return the Python of an environment with what the Python suites need, made if it is not there."""
        pins = PINS / "python.txt"
        folder = self.folder / "python"
        mark, wanted = folder / "pins.sha256", _sha256(pins)
        if not mark.exists() or mark.read_text() != wanted:
            print("  an environment for the Python suites is made", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            run([sys.executable, "-m", "venv", str(folder)])
            run([str(folder / "bin/python"), *_PIP, "install", "--require-hashes", "--requirement", str(pins)])
            mark.write_text(wanted)
        return folder / "bin/python"

    def gssapi(self) -> Path:
        """Return a folder with the package gssapi, which is built against the machine's MIT Kerberos."""
        pins = PINS / "gssapi.txt"
        folder = self.folder / f"gssapi-{_sha256(pins)[:12]}"
        if not folder.exists():
            print("  gssapi is built", flush=True)
            uv, new = str(Path(sys.executable).with_name("uv")), self.fresh("new")
            pinned = ["--require-hashes", "--build-constraints", str(pins), "--requirement", str(pins)]
            run([uv, "pip", "install", "--quiet", "--python", str(self.python()), "--target", str(new), *pinned])
            new.rename(folder)
        return folder

    def sdist(self, pin: str) -> Path:
        """Return the unpacked source of a Python package; a file of pins has its version and checksum."""
        pins = PINS / f"{pin}.txt"
        folder = self.folder / f"{pin}-{_sha256(pins)[:12]}"
        if not folder.exists():
            print(f"  the source of {pin} is fetched", flush=True)
            kept = self.fresh("sdists", pin)
            pinned = ["--require-hashes", "--requirement", str(pins)]
            whole = ["--no-deps", "--no-binary", pin, "--dest", str(kept)]
            run([sys.executable, *_PIP, "download", *whole, *pinned])
            self.unpack(next(kept.glob("*.tar.gz")), folder)
        return folder

    def unpack(self, archive: Path, folder: Path) -> None:
        """Unpack the only folder within an archive."""
        new = self.fresh("new")
        with tarfile.open(archive) as tar:
            tar.extractall(new, filter="data")
        next(new.iterdir()).rename(folder)

    def npm(self, package: str, version: str, integrity: str) -> Path:
        """Return the folder of a package of npm that needs no other."""
        folder = self.folder / f"{package}-{version}"
        if not folder.exists():
            print(f"  {package} {version} is fetched", flush=True)
            npm, kept = tool("npm", "Node.js and npm (Debian: apt-get install nodejs npm)"), self.fresh("npm", package)
            answer = json.loads(run([npm, "pack", f"{package}@{version}", "--json"], cwd=kept))[0]
            if answer["integrity"] != integrity:
                raise CannotRun(f"{package} {version} has {answer['integrity']}, and {integrity} is pinned")
            self.unpack(kept / answer["filename"], folder)
        return folder

    def npm_locked(self, pins: Path) -> Path:
        """Return a copy of a folder with the packages of npm that its lock pins; none runs a script of its own."""
        folder = self.folder / f"{pins.name}-{_sha256(pins / 'package-lock.json')[:12]}"
        if not folder.exists():
            print(f"  the packages of {pins.name} are fetched", flush=True)
            npm, new = tool("npm", "Node.js and npm (Debian: apt-get install nodejs npm)"), self.fresh("new")
            shutil.copytree(pins, new, dirs_exist_ok=True)
            run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=new)
            new.rename(folder)
        return folder

    def go_module(self, module: str, version: str, checksum: str) -> Path:
        """Return the source of a Go module that can be built in; its own go.sum pins what it needs."""
        folder = self.folder / f"{module.rsplit('/', 1)[-1]}-{version}"
        if not folder.exists():
            print(f"  {module} {version} is fetched", flush=True)
            answer = json.loads(run([self.go(), "mod", "download", "-json", f"{module}@{version}"], env=self.go_env()))
            if answer["Sum"] != checksum:
                raise CannotRun(f"{module} {version} has the checksum {answer['Sum']}, and {checksum} is pinned")
            shutil.copytree(answer["Dir"], self.fresh("new") / "module")
            run(["chmod", "-R", "u+w", str(self.folder / "new")])
            (self.folder / "new" / "module").rename(folder)
        return folder

    def go(self) -> str:
        """Return the path of Go."""
        return tool(
            "go", "Go 1.21 or newer (Debian: apt-get install golang-go); it fetches a newer one if a suite asks"
        )

    def go_env(self) -> dict[str, str]:
        """Return the environment for Go, with its own caches within this one; kafka-go's go.mod is not complete."""
        caches = {"GOMODCACHE": str(self.place("go", "mod")), "GOCACHE": str(self.place("go", "build"))}
        return {**os.environ, **caches, "GOTOOLCHAIN": "auto", "GOFLAGS": "-mod=mod -modcacherw -buildvcs=false"}

    def maven_archive(self, artifact: str, version: str, classifier: str, checksum: str) -> Path:
        """Return the folder of a `tar.gz` of Maven Central without a folder of its own; an artifact is GROUP:NAME."""
        name = artifact.rsplit(":", 1)[-1]
        folder = self.folder / f"{name}-{version}"
        if not folder.exists():
            print(f"  {name} {version} is fetched", flush=True)
            mvn, new = tool("mvn", "Maven (Debian: apt-get install maven)"), self.fresh("new")
            wanted = f"{artifact}:{version}:tar.gz:{classifier}"
            run([mvn, "-B", "-q", "dependency:get", "-Dtransitive=false", f"-Dartifact={wanted}", *self._maven()])
            archive = next(self.place("maven").rglob(f"{name}-{version}-{classifier}.tar.gz"))
            if (found := _sha256(archive)) != checksum:
                raise CannotRun(f"{archive.name} has sha256 {found}, and {checksum} is pinned")
            with tarfile.open(archive) as tar:
                tar.extractall(new, filter="data")
            new.rename(folder)
        return folder

    def _maven(self) -> list[str]:
        """Return what makes Maven keep its files within this folder."""
        return [f"-Dmaven.repo.local={self.place('maven')}"]

    def debian_source(self, package: str, version: str, sums: Mapping[str, str]) -> Path:
        """Return the folder with the files of a Debian source package, checked by the sums of their names."""
        kept = self.folder / f"{package}_{version}"
        if not kept.exists():
            print(f"  Debian's source of {package} {version} is fetched", flush=True)
            new = self.fresh("new")
            options = self._apt_options()
            run(["apt-get", *options, "update"])
            run(["apt-get", *options, "source", "--download-only", f"{package}={version}"], cwd=new)
            for name, wanted in sums.items():
                if not (new / name).exists() or _sha256(new / name) != wanted:
                    raise CannotRun(f"{name} is not the file whose checksum is pinned")
            new.rename(kept)
        return kept

    def _apt_options(self) -> list[str]:
        """Return what makes apt read sources, by a list of its own, so that the machine's stays as it is."""
        tool("apt-get", "a Debian (or a container of it), whose archive has the source")
        machine = Path("/etc/apt/sources.list.d/debian.sources")
        if not machine.exists():
            raise CannotRun(f"{machine} is missing, which names Debian's archive: run this suite in a Debian 12")
        own = self.place("apt") / "src.sources"
        own.write_text(machine.read_text().replace("Types: deb\n", "Types: deb-src\n"))
        self.place("apt", "lists", "partial")
        places = {"Dir::Etc::sourcelist": own, "Dir::Etc::sourceparts": "/dev/null"}
        places |= {"Dir::State::lists": self.place("apt", "lists"), "Dir::Cache": self.place("apt", "cache")}
        return [part for name, value in places.items() for part in ("-o", f"{name}={value}")]


_PIP: Final = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def tool(name: str, remedy: str) -> str:
    """Return the path of a program; raise `CannotRun` if there is none."""
    path = shutil.which(name)
    if path is None:
        raise CannotRun(f"{name} is missing: install {remedy}")
    return path


def run(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, stdin: str = ""
) -> str:
    """Run a fetch or a build; return what it printed; raise `CannotRun` with the end of its output if it fails."""
    done = subprocess.run(
        [*_nice(), *command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=_FETCH_S,
        check=False,
        input=stdin,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-15:]
        raise CannotRun("\n  ".join([f"`{' '.join(command)}` failed:", *said]))
    return done.stdout


def _nice() -> list[str]:
    return ["nice", "-n", "10"]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
