"""Import all modules of some folders where only an extra is installed: `python -m tests.extras spark jobs tables`.

Packages that neither the client nor the extra asks for cannot be imported here, whatever is installed. It prints
the name of each that a module misses, and the module.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def asked_for(extra: str) -> set[str]:
    """Return the names of the distributions that `pip install deltamq[EXTRA]` brings, as far as they are here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    todo = [Requirement(one) for one in (*project["dependencies"], *project["optional-dependencies"][extra])]
    known: set[tuple[str, frozenset[str]]] = set()
    while todo:
        asked = todo.pop()
        key = (canonicalize_name(asked.name), frozenset(asked.extras))
        if key not in known:
            known.add(key)
            for one in map(Requirement, metadata.requires(asked.name) or ()):
                if one.marker is None or any(one.marker.evaluate({"extra": name}) for name in ("", *asked.extras)):
                    todo.append(one)
    return {name for name, _ in known}


class Absent:
    """Finds nothing, and says so, for packages of other distributions."""

    def __init__(self, names: set[str]) -> None:
        packages = metadata.packages_distributions()
        self._absent = {package for package, of in packages.items() if names.isdisjoint(map(canonicalize_name, of))}
        # Several distributions share the package `google`.
        self._absent -= {"deltamq", "tests", "google"}
        self._absent |= {"google.protobuf"} if "protobuf" not in names else set()

    def find_spec(self, name: str, *_: object) -> None:
        """Raise `ModuleNotFoundError` if the module is absent."""
        if not self._absent.isdisjoint((name, name.partition(".")[0])):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main(extra: str, *folders: str) -> None:
    """Print what is missed."""
    sys.meta_path.insert(0, Absent(asked_for(extra)))
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        module = ".".join(("deltamq", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        if path.name in ("__main__.py", "deltamq.py"):
            continue
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            print(error.name, module)


if __name__ == "__main__":
    main(*sys.argv[1:])
