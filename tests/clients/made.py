"""Clients in other languages, made of the service's document by the commands of `api/openapi/README.md`.

`make clients` makes them in `.clients`, and the tests of this folder use them. Packages come from npm, Go's proxy and
Maven Central, each pinned with its checksum: `typescript/package-lock.json`, `go/go.sum`, `generator.sha256`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from deltamq.api.app import create_app
from deltamq.jobs.setup.jars import JarSet, JarsUnusable, fetch_jars
from deltamq.jobs.setup.java import JavaMissing
from deltamq.tables.config import Config
from tests.suites.cache import Cache, CannotRun, run, tool

__all__ = ["ADDRESS", "CLIENTS", "Client", "example"]

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parents[1]
_PAGE: Final = (_ROOT / "api" / "openapi" / "README.md").read_text(encoding="utf-8")
#: Where the page's examples look for the service.
ADDRESS: Final = "http://127.0.0.1:8080"
_JDK: Final = "a JDK (Debian: apt-get install openjdk-17-jdk-headless)"
_GENERATOR: Final = JarSet(
    pins=_HERE / "generator.sha256",
    coordinates=("org.openapitools:openapi-generator-cli:7.25.0",),
    excluded=("none:none",),
)
#: What the Java client needs, of the jars that Spark has.
_JARS: Final = ("jackson-annotations", "jackson-core", "jackson-databind", "jackson-datatype-jsr310", "jakarta.annot")


def example(title: str, language: str, url: str = ADDRESS) -> str:
    """Return what the page has in this language under a title."""
    section = _PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(text).replace(ADDRESS, url)


class Client(NamedTuple):
    """A client in one language: `make` makes it, `run` compiles and runs an example in its folder."""

    title: str
    language: str
    make: Callable[[Cache], Path]
    build: Callable[[Path, str], list[str]]

    def command(self, cache: Cache, text: str) -> tuple[list[str], Path]:
        """Return the command that runs an example, once it is compiled, and the folder where."""
        folder = self.make(cache)
        return self.build(folder, text), folder


def _generated(title: str, folder: Path, env: Mapping[str, str] | None = None) -> Path:
    document = create_app(Config()).fastapi.openapi()
    (folder / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    run(["bash", "-euo", "pipefail", "-c", example(title, "bash")], cwd=folder, env=env)
    return folder


def _make_typescript(cache: Cache) -> Path:
    folder = cache.npm_locked(_HERE / "typescript")
    shutil.copy(_HERE / "typescript" / "tsconfig.json", folder)
    return _generated("TypeScript", folder)


def _build_typescript(folder: Path, text: str) -> list[str]:
    (folder / "example.ts").write_text(text, encoding="utf-8")
    run(["npx", "tsc"], cwd=folder)
    return ["node", "built/example.js"]


def _make_go(cache: Cache) -> Path:
    cache.go()
    folder = cache.fresh("go-client")
    shutil.copytree(_HERE / "go", folder, dirs_exist_ok=True)
    return _generated("Go", folder, cache.go_env())


def _build_go(folder: Path, text: str) -> list[str]:
    (folder / "main.go").write_text(text, encoding="utf-8")
    run(["go", "build", "-o", "example", "."], cwd=folder, env=Cache(folder.parent).go_env())
    return ["./example"]


def _make_java(cache: Cache) -> Path:
    javac, folder = tool("javac", _JDK), cache.fresh("java-client")
    try:
        (jar,) = fetch_jars(cache.place("jars"), _GENERATOR)
    except (JarsUnusable, JavaMissing) as error:
        raise CannotRun(str(error)) from error
    (folder / jar.name).symlink_to(jar)
    _generated("Java", folder)
    sources = [str(path) for path in (folder / "src" / "main").rglob("*.java")]
    run([javac, "-nowarn", "-d", str(folder / "built"), "-cp", _classpath(folder), *sources], cwd=folder)
    return folder


def _build_java(folder: Path, text: str) -> list[str]:
    (folder / "Example.java").write_text(text, encoding="utf-8")
    return ["java", "-cp", _classpath(folder), "Example.java"]


def _classpath(folder: Path) -> str:
    spark = Path(pyspark.__file__).parent / "jars"
    return ":".join([f"{folder}/built", *(str(path) for path in spark.glob("*.jar") if path.name.startswith(_JARS))])


CLIENTS: Final = (
    Client("TypeScript", "typescript", _make_typescript, _build_typescript),
    Client("Go", "go", _make_go, _build_go),
    Client("Java", "java", _make_java, _build_java),
)


def main() -> int:
    """Make all clients; return 1 if one of them cannot be made here."""
    cache, failures = Cache(_ROOT / ".clients"), 0
    for client in CLIENTS:
        try:
            print(f"{client.title}: {client.make(cache).relative_to(_ROOT)}", flush=True)
        except CannotRun as error:
            failures += 1
            print(f"{client.title}: not made: {error}", file=sys.stderr, flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
