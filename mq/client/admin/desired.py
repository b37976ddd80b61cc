"""Files that say what a warehouse should hold: topics, groups, principals with rules and quotas (SPEC LOOK-14).

    [topics.orders]                [principals.reports]
    partitions = 4                 note = "nightly, team blue"
    retention_ms = 86_400_000      rules = [{ resource = "topic", pattern = "orders.*", verbs = ["subscribe"] }]
    [groups.billing]               quota = { requests_per_s = 100 }
    max_attempts = 5

A setting that a file leaves out stays as it is. Keys are not said here: they are secrets.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from deltamq.mq.errors import Refused
from deltamq.mq.meta.desired import Desired

_YAML: Final = (".yaml", ".yml")
#: Values that a file need not say.
_LEFT_OUT: Final[tuple[object, ...]] = (None, "", [], False)
_ENDINGS: Final = (".toml", *_YAML)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Desired)}


def read_files(path: Path) -> Desired:
    """Read a file, or all files of a folder that end in .toml, .yaml or .yml.

    Raises
    ------
    Refused
        A file cannot be read as what its name says, or has what is not known: `field` names the place. Or two files
        say the same name.
    """
    files = sorted(one for one in path.iterdir() if one.suffix in _ENDINGS) if path.is_dir() else [path]
    if not files:
        raise Refused(f"{path} has no file that ends in {', '.join(_ENDINGS)}", code="nothing_desired", field=str(path))
    return _merged((file, desired_of(_parsed(file), str(file))) for file in files)


def desired_of(document: object, source: str) -> Desired:
    """Return what a document says; raise `Refused` with the place in it."""
    try:
        return msgspec.convert(document, Desired)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$.").replace("[...]", ".*")
        raise Refused(f"{source}: {where or 'the document'}: {what}", code="desired_invalid", field=where) from error


def _parsed(file: Path) -> object:
    try:
        text = file.read_text(encoding="utf-8")
        return _yaml(text) if file.suffix in _YAML else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise Refused(f"{file}: {error}", code="desired_invalid", field=str(file)) from error


def _yaml(text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise Refused(
            "YAML needs a library: `pip install pyyaml`, or write TOML", code="yaml_missing", field="FILE"
        ) from None
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise Refused(f"not YAML: {error}", code="desired_invalid", field="FILE") from error


def _merged(parts: Iterable[tuple[Path, Desired]]) -> Desired:
    whole, sources = Desired(), dict[tuple[str, str], Path]()
    for file, part in parts:
        for kind, named in (("topics", part.topics), ("groups", part.groups), ("principals", part.principals)):
            for name, wanted in named.items():
                other = sources.setdefault((kind, name), file)
                if other != file:
                    where = f"{kind}.{name}"
                    raise Refused(f"{file}: {where} is in {other}, too", code="desired_twice", field=where)
                getattr(whole, kind)[name] = wanted
    return whole


def to_toml(desired: Desired) -> str:
    """Return the file that says this; what is left out or as it is by default is not in it."""
    lines = []
    for kind, named in (
        ("topics", desired.topics),
        ("groups", desired.groups),
        ("principals", desired.principals),
    ):
        for name, wanted in sorted(named.items()):
            lines.append(f"[{kind}.{_text(name)}]")
            given = {field: value for field, value in msgspec.to_builtins(wanted).items() if value not in _LEFT_OUT}
            lines += [f"{field} = {_toml(value)}" for field, value in given.items()]
            lines.append("")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        fields = (f"{name} = {_toml(one)}" for name, one in value.items() if one not in (None, ""))
        return f"{{ {', '.join(fields)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)


def _text(text: str) -> str:
    """Return a text as TOML has it: as JSON has it, but for one character."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
