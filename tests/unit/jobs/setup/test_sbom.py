from __future__ import annotations

import json
import tomllib
from importlib.metadata import version
from typing import Any

import pytest

from deltamq.jobs.setup.jars import AVRO, DELTA, PROJECT_FOLDER, S3A
from deltamq.jobs.setup.sbom import _required_by, document, locked, shipped

PROJECT = tomllib.loads((PROJECT_FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCRIPTS = (PROJECT_FOLDER / "api" / "console" / "vendor" / "README.md").read_text(encoding="utf-8")
LOCK = (PROJECT_FOLDER / "requirements.lock").read_text(encoding="utf-8")


def made() -> Any:
    return document(PROJECT, LOCK, (DELTA, AVRO, S3A), _required_by, SCRIPTS)


def test_sec_39_every_locked_package_is_a_component_with_its_hashes() -> None:
    found = made()
    components = {one["bom-ref"]: one for one in found["components"] if one["bom-ref"].startswith("pkg:pypi/")}
    lines = [line for line in LOCK.splitlines() if "==" in line and not line.startswith(" ")]
    assert len(components) == len({line.split(" ")[0] for line in lines}) > 50
    assert sum(len(one["hashes"]) for one in components.values()) == LOCK.count("--hash=sha256:")
    pyarrow = components[f"pkg:pypi/pyarrow@{version('pyarrow')}"]
    assert pyarrow["purl"] == pyarrow["bom-ref"] and pyarrow["version"] == version("pyarrow")


def test_sec_39_packages_for_tests_are_told_from_those_that_run() -> None:
    scopes = {one["name"]: one["scope"] for one in made()["components"]}
    runs = ("pyarrow", "urllib3", "starlette", "pydantic-core", "py4j", "psycopg")
    assert {scopes[name] for name in runs} == {"required"}
    assert {scopes[name] for name in ("pytest", "mypy", "deltalake", "schemathesis")} == {"excluded"}


def test_sec_39_jars_are_components_with_their_hashes() -> None:
    jars = [one for one in made()["components"] if one["bom-ref"].startswith("jar:")]
    pins = DELTA.pins.read_text() + AVRO.pins.read_text() + S3A.pins.read_text()
    assert {one["hashes"][0]["content"] for one in jars} == {line.split()[0] for line in pins.splitlines() if line}


def test_sec_39_libraries_of_the_console_are_components_with_their_hashes() -> None:
    found = {one["name"]: one for one in made()["components"] if one["bom-ref"].startswith("pkg:npm/")}
    scopes = {name: one["scope"] for name, one in found.items()}
    assert scopes == {"preact": "required", "htm": "required", "uplot": "required", "axe-core": "excluded"}
    assert len(found["preact"]["hashes"]) == 2 and found["htm"]["purl"] == f"pkg:npm/htm@{found['htm']['version']}"


def test_sec_39_the_same_files_give_the_same_document() -> None:
    found = made()
    assert json.dumps(found) == json.dumps(made())
    assert found["bomFormat"] == "CycloneDX" and str(found["serialNumber"]).startswith("urn:uuid:")
    references = [one["bom-ref"] for one in found["components"]]
    assert len(references) == len(set(references)), "each component is named once"
    assert set(found["dependencies"][0]["dependsOn"]) <= set(references)
    other = document({**PROJECT, "version": "9"}, LOCK, (DELTA,), _required_by)
    assert other["serialNumber"] != found["serialNumber"]


def test_sec_39_a_package_without_a_hash_is_refused() -> None:
    text = "a==1 \\\n    --hash=sha256:" + "0" * 64 + "\nb==2\n"
    with pytest.raises(ValueError, match="b 2 is locked without a hash"):
        list(locked(text))
    assert list(locked("A_b==1 ; sys_platform == 'win32' \\\n    --hash=sha256:" + "0" * 64)) == [
        ("a-b", "1", ["0" * 64])
    ]


def test_sec_39_what_is_shipped_is_followed_through_circles() -> None:
    needs = {"a": ["B"], "b": ["c", "a"], "c": [], "d": ["a"]}
    assert shipped(["A"], lambda name: needs[name]) == {"a", "b", "c"}
