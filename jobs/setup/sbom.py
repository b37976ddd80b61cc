"""`make sbom`: the parts of a release as a CycloneDX document in `dist/`, only from what is locked and pinned.

    requirements.lock          every package with the hashes of its files   -> a component, `required` or `excluded`
    jobs/setup/*.sha256        every jar that is fetched                    -> a component with its hash
    api/console/vendor         the console's libraries                     -> a component with the hashes of its files
    pyproject.toml             DeltaMQ's own requirements                  -> which packages are only for tests

The same files give the same document, byte for byte. The requirements of packages come from the installed ones, so
the command needs the environment that `make setup` makes. Standard library only.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires
from typing import Any, Final

from deltamq.jobs.setup.jars import AVRO, DELTA, PROJECT_FOLDER, S3A, JarSet

Json = dict[str, Any]

_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME: Final = re.compile(r"^[A-Za-z0-9._-]+")
#: A row of the console's libraries: package, version, file, SHA-256.
_SCRIPT: Final = re.compile(r"^\| (\S+) \| (\S+) \| \S+ \| `(\S+)` \| `([0-9a-f]{64})` \|$", re.MULTILINE)
_EXTRA: Final = re.compile(r"extra\s*==")
#: Extras that users install; the others are for developers.
_EXTRAS: Final = ("connect", "postgres", "service", "spark")
#: The namespace of serial numbers, so that equal contents have equal numbers.
_NAMESPACE: Final = uuid.UUID("8a0f5a3e-6d55-5f3c-9a58-2f6f0c1d7e11")


def normal(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield name, version and hashes of each package of a lock; raise `ValueError` for a package without a hash."""
    entries = list(_LOCKED.finditer(text))
    ends = [entry.start() for entry in entries[1:]] + [len(text)]
    for entry, end in zip(entries, ends, strict=True):
        hashes = _HASH.findall(text, entry.end(), end)
        if not hashes:
            raise ValueError(f"{entry[1]} {entry[2]} is locked without a hash")
        yield normal(entry[1]), entry[2], hashes


def shipped(wanted: Iterable[str], required_by: Callable[[str], Iterable[str]]) -> set[str]:
    """Return the wanted packages and all that they require."""
    packages: set[str] = set()
    open_ = [normal(package) for package in wanted]
    while open_:
        name = open_.pop()
        if name not in packages:
            packages.add(name)
            open_ += [normal(requirement) for requirement in required_by(name)]
    return packages


def _required_by(name: str) -> list[str]:
    """Requirements without extras; none for a package of another platform."""
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return []
    return [name_match[0] for line in lines if not _EXTRA.search(line) and (name_match := _NAME.match(line))]


def document(
    project: Mapping[str, Any],
    lock: str,
    jars: Iterable[JarSet],
    required_by: Callable[[str], Iterable[str]],
    scripts: str = "",
) -> Json:
    """Return the CycloneDX document of a release."""
    extras = project.get("optional-dependencies", {})
    wanted = [*project["dependencies"], *(package for extra in _EXTRAS for package in extras.get(extra, []))]
    names = [match[0] for package in wanted if (match := _NAME.match(package))]
    kept = shipped(names, required_by)
    components = [_package(name, version, hashes, name in kept) for name, version, hashes in locked(lock)]
    components += [
        _jar(line) for jar_set in jars for line in jar_set.pins.read_text(encoding="utf-8").splitlines() if line
    ]
    components += _scripts(scripts)
    components.sort(key=lambda component: str(component["bom-ref"]))
    reference = f"pkg:pypi/{project['name']}@{project['version']}"
    main = {"type": "application", "bom-ref": reference, "name": project["name"], "version": project["version"]}
    main |= {"purl": reference, "licenses": [{"license": {"id": project["license"]}}]}
    body = json.dumps(components, sort_keys=True)
    known = {str(component["bom-ref"]) for component in components}
    depends = sorted(ref for ref in known if any(ref.startswith(f"pkg:pypi/{normal(name)}@") for name in names))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, reference + body)}",
        "version": 1,
        "metadata": {"component": main},
        "components": components,
        "dependencies": [{"ref": reference, "dependsOn": depends}],
    }


def _package(name: str, version: str, hashes: list[str], required: bool) -> Json:
    reference = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
        "scope": "required" if required else "excluded",
        # one for each file of the package, of which an installation takes one
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in sorted(set(hashes))],
    }


def _jar(line: str) -> Json:
    content, file = line.split()
    name, _, version = file.removesuffix(".jar").rpartition("-")
    return {
        "type": "library",
        "bom-ref": f"jar:{file}",
        "name": name,
        "version": version,
        "scope": "required" if file.startswith("delta-") else "optional",
        "hashes": [{"alg": "SHA-256", "content": content}],
    }


def _scripts(table: str) -> Iterator[Json]:
    """Yield the libraries of the console; what only tests use lies in their folder."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, version, file, digest in _SCRIPT.findall(table):
        found.setdefault((name, version), []).append((file, digest))
    for (name, version), files in found.items():
        is_required = not files[0][0].startswith("tests/")
        reference = dict.fromkeys(("bom-ref", "purl"), f"pkg:npm/{name}@{version}")
        yield _package(name, version, [digest for _, digest in files], is_required) | reference


def main() -> int:
    """Write the document into `dist/`."""
    project = tomllib.loads((PROJECT_FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (PROJECT_FOLDER / "requirements.lock").read_text(encoding="utf-8")
    scripts = (PROJECT_FOLDER / "api" / "console" / "vendor" / "README.md").read_text(encoding="utf-8")
    made = document(project, lock, (DELTA, AVRO, S3A), _required_by, scripts)
    target = PROJECT_FOLDER / "dist" / f"{project['name']}-{project['version']}.cdx.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    required = sum(component["scope"] == "required" for component in made["components"])
    print(f"{target.relative_to(PROJECT_FOLDER)}: {len(made['components'])} components, {required} of them required")
    return 0


if __name__ == "__main__":
    sys.exit(main())
