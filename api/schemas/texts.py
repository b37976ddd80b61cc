"""A schema's text: checked, in the form that is stored, and compared with others (SPEC TYPE-21, TYPE-24).

    Version and what it refers to -> Texts -> parsed by its type -.
    the same of an earlier version ------------------------------+-> what a reader of one cannot read of the other

Each type has a module with `parsed` and `differences`; a module is loaded when its type is first used.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.avro_form import avro_form
from deltamq.mq.schemas.limits import SCHEMA_FIELDS_MAX
from deltamq.mq.schemas.registry import Basis, RegistryState, Version

#: Differences that are listed of one comparison.
DIFFERENCES_MAX: Final = 20
#: Values in the text of a JSON document: more than SCHEMA_FIELDS_MAX fields have.
_VALUES_MAX: Final = 20 * SCHEMA_FIELDS_MAX
_JSON: Final = ("AVRO", "JSON")


class Texts(NamedTuple):
    """A schema's text with the texts of all that it refers to."""

    schema: str
    #: The texts that it refers to, directly or not, by the names that schemas have for them; a text comes behind all
    #: that it refers to.
    references: Mapping[str, str]


class Rules(Protocol):
    """What is particular to one type of schema."""

    def parsed(self, texts: Texts) -> Any:
        """Return a schema as `differences` takes it; raise `Unprocessable` (`invalid_schema`) if it is none."""

    def differences(self, reader: Any, writer: Any) -> list[str]:
        """Return what a reader of one schema cannot read of what was written with another; few, each with its place."""


def rules_of(schema_type: str) -> Rules:
    """Return the rules of a type of schema."""
    module: Any = importlib.import_module(f"deltamq.api.schemas.{schema_type.lower()}_rules")
    rules: Rules = module
    return rules


def texts_of(state: RegistryState, version: Version) -> Texts:
    """Return the text of a version, with the texts of what it refers to."""
    every = state.with_references(version)
    named = {(used.name, used.subject, used.version) for one in every for used in one.references}
    texts = {
        name: one.schema
        for one in every[:-1]
        for name, subject, number in sorted(named)
        if (subject, number) == (one.subject, one.version)
    }
    return Texts(version.schema, texts)


def stored_form(schema_type: str, text: str, *, normalize: bool) -> str:
    """Return the text that is stored, so that equal schemas are equal texts: JSON without spaces, and Avro in its form.

    With `normalize` the attributes of JSON's objects are sorted as well, those of Avro as `avro_form` says. Other texts
    are stored as they are, without space around them.

    Raises
    ------
    Unprocessable
        `invalid_schema`: it is not JSON, though the type is written in JSON.
    """
    if schema_type not in _JSON:
        return text.strip()
    document = json_of(text)
    if schema_type != "AVRO":
        return _written(document, sort_keys=normalize)
    try:
        return _written(avro_form(document, normalize=normalize))
    except RecursionError:
        raise invalid("it is nested too deeply") from None


def given_form(schema_type: str, text: str) -> str:
    """Return a text without the spaces of JSON, and else as it was given."""
    return _written(json_of(text)) if schema_type in _JSON else text.strip()


def _written(document: Any, sort_keys: bool = False) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, sort_keys=sort_keys)


def json_of(text: str) -> Any:
    """Return a JSON document; raise `Unprocessable` (`invalid_schema`) with where it is wrong."""
    try:
        value = json.loads(text, parse_constant=_number, parse_float=_number, object_pairs_hook=_once_each)
        text.encode()
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise invalid(f"not JSON: {why[:500]}") from None
    if text.count(",") > _VALUES_MAX:
        raise invalid(f"it has more than {_VALUES_MAX} values")
    return value


def _number(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word[:40]} is no number of JSON, or too large")
    return number


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {twice[:100]!r} twice")
    return value


def incompatible(state: RegistryState, version: Version, basis: Basis) -> list[str]:
    """Return why a schema is not compatible with the versions of a basis, at its level; an empty list if it is."""
    if not basis.versions or basis.compatibility == "NONE":
        return []
    rules = rules_of(version.schema_type)
    new = rules.parsed(texts_of(state, version))
    level = basis.compatibility.removesuffix("_TRANSITIVE") if version.schema_type != "COLUMNS" else "BACKWARD"
    found: list[str] = []
    for place in reversed(basis.versions):
        old = state.version(*place)
        assert old is not None, "a basis names versions of its state"
        if old.schema_type != version.schema_type:
            found.append(f"version {old.version} is of type {old.schema_type}, not {version.schema_type}")
            continue
        before = rules.parsed(texts_of(state, old))
        if level in ("BACKWARD", "FULL"):
            found += _said(rules.differences(new, before), f"the new schema cannot read version {old.version}")
        if level in ("FORWARD", "FULL"):
            found += _said(rules.differences(before, new), f"version {old.version} cannot read the new schema")
        if len(found) >= DIFFERENCES_MAX:
            break
    return found


def _said(differences: Sequence[str], what: str) -> list[str]:
    return [f"{what}: {one[:500]}" for one in differences[:DIFFERENCES_MAX]]


def invalid(why: str) -> Unprocessable:
    """Return the error of a text that is no schema."""
    return Unprocessable(f"schema: {why}", code="invalid_schema", field="schema")
