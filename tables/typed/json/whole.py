"""What a JSON Schema asks that columns do not show: `if`, `not`, `contains`, which fields are there (SPEC TYPE-50).

Schemas that ask for such things have their bodies judged one by one, by jsonschema-rs; the others do not pay for it.
For that a schema is written in the words of draft 2020-12, in one document. Its own references are followed without
end, so what a body costs is bounded by refusing schemas that contain themselves, or that repeat a part very often.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jsonschema_rs
import msgspec

from deltamq.tables.typed.misfit import Misfit, Reason, place, senders_name
from deltamq.tables.typed.node import invalid_schema

#: Words whose values are no schemas, whose values have schemas by name, and which are not judged.
_DATA: Final = frozenset(("enum", "const", "default", "examples", "example"))
_NAMED: Final = frozenset(("properties", "patternProperties", "definitions", "$defs", "dependentSchemas"))
_UNUSED: Final = frozenset(
    ("$id", "id", "$schema", "$anchor", "$comment", "contentEncoding", "contentMediaType", "contentSchema")
)
_UNBOUNDED: Final = ("$dynamicRef", "$recursiveRef")
_OPEN: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
#: Most schemas that a value can meet in one place of a body.
_PARTS_MAX: Final = 20_000
#: Characters of a schema's place in a reason.
_SHOWN_CHARS: Final = 60


class WholeJudge:
    """Judges bodies by all that a schema asks. Immutable; safe for threads."""

    def __init__(self, documents: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """Take the schema as document "" and those that it refers to; `names` has the document of each name.

        Raises
        ------
        Unprocessable
            `invalid_schema`: it is none, refers to what is not there, or cannot be judged in bounded time.
        """
        strict, lenient = (_Copy(documents, names, lenient=lenient).made() for lenient in (False, True))
        try:
            _Parts(strict).of(strict)
        except RecursionError:
            raise invalid_schema("is nested too deeply") from None
        self._strict, self._lenient = map(_validator, (strict, lenient))

    def misfit(self, body: bytes) -> Misfit | None:
        """Return what of a body of JSON does not fit; None if all does. A field that may be absent may be null."""
        try:
            value = msgspec.json.decode(body)
            if self._strict.is_valid(value) or self._lenient.is_valid(value):
                return None
            # A null in place of an absent field is no error; in the lenient schema others have no exact place.
            first = next((error for error in self._strict.iter_errors(value) if error.instance is not None), None)
            first = first or next(self._lenient.iter_errors(value))
        except (ValueError, RecursionError):
            return Misfit(Reason.CONSTRAINT, "is nested too deeply to be judged by its schema")
        words = "/".join(map(str, first.schema_path))
        shown = words if len(words) <= _SHOWN_CHARS else f"...{words[-_SHOWN_CHARS:]}"
        misfit = Misfit(Reason.CONSTRAINT, f"does not meet `{shown}` of the schema")
        for part in reversed(first.instance_path):
            misfit.within(place(part) if isinstance(part, int) else senders_name(part))
        return misfit


def _validator(schema: Any) -> jsonschema_rs.Draft202012Validator:
    try:
        return jsonschema_rs.Draft202012Validator(
            schema, validate_formats=False, offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
        reason = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
        raise invalid_schema(
            f"what it asks of values cannot be checked: {reason[:200]}; patterns have no look-around"
        ) from None


class _Copy:
    """Writes documents of any draft as one of draft 2020-12."""

    def __init__(self, documents: Mapping[str, Any], names: Mapping[str, str], *, lenient: bool) -> None:
        self._documents = documents
        self._names = names
        self._lenient = lenient
        self._places = {name: f"/$defs/deltamq:{at}" if name else "" for at, name in enumerate(documents)}

    def made(self) -> Any:
        """Return the document; with `lenient`, fields that may be absent may be null."""
        try:
            root, *others = (self._schema(document, name) for name, document in self._documents.items())
        except RecursionError:
            raise invalid_schema("is nested too deeply") from None
        if others:
            _, *places = self._places.values()
            names = [at.rpartition("/")[2] for at in places]
            root["$defs"] = _table(root.get("$defs")) | dict(zip(names, others, strict=True))
        return root

    def _schema(self, schema: Any, document: str) -> Any:
        if isinstance(schema, list):
            return [self._schema(one, document) for one in schema]
        if not isinstance(schema, dict):
            return schema
        made: dict[str, Any] = {}
        for word, value in schema.items():
            if word in _UNBOUNDED:
                raise invalid_schema(f"has a {word}, which cannot be checked; use $ref")
            if word in _DATA:
                made[word] = value
            elif word in _NAMED and isinstance(value, dict):
                made[word] = {name: self._schema(inner, document) for name, inner in value.items()}
            elif word == "$ref" and isinstance(value, str):
                made[word] = self._reference(value, document)
            elif word not in _UNUSED:
                made[word] = self._schema(value, document)
        _modernise(made)
        if self._lenient and isinstance(made.get("properties"), dict):
            required = made.get("required")
            made["properties"] = {
                name: inner if isinstance(required, list) and name in required else {"anyOf": [{"type": "null"}, inner]}
                for name, inner in made["properties"].items()
            }
        return made

    def _reference(self, target: str, document: str) -> str:
        name, _, pointer = target.partition("#")
        known = self._names.get(name) if name else document
        if known is None or (pointer and not pointer.startswith("/")):
            raise invalid_schema(f"{target[:100]}: a reference has the form #/$defs/NAME here")
        return f"#{self._places[known]}{pointer}"


def _modernise(made: dict[str, Any]) -> None:
    """Write words of earlier drafts as today's."""
    for word, bound in _OPEN.items():
        if isinstance(made.get(word), bool) and made.pop(word) and bound in made:
            made[word] = made.pop(bound)
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        if "additionalItems" in made:
            made["items"] = made["additionalItems"]
    made.pop("additionalItems", None)
    for name, need in _table(made.pop("dependencies", None)).items():
        word = "dependentRequired" if isinstance(need, list) else "dependentSchemas"
        made[word] = {**_table(made.get(word)), name: need}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class _Parts:
    """Counts the schemas that a value in one place can meet; what is referred to often counts as often."""

    def __init__(self, root: Any) -> None:
        self._root = root
        #: By reference; None while it is counted.
        self._counts: dict[str, int | None] = {}

    def of(self, schema: Any) -> int:
        """Return the count; raise `Unprocessable` if it is too large, or the schema contains itself."""
        if isinstance(schema, list):
            return sum(map(self.of, schema))
        if not isinstance(schema, dict):
            return 0
        count = 1
        for word, value in schema.items():
            if word == "$ref" and isinstance(value, str):
                count += self._referred(value)
            elif word not in _DATA and word not in ("$defs", "definitions"):
                count += self.of(value)
        if count > _PARTS_MAX:
            raise invalid_schema("repeats its parts too often to be checked in bounded time")
        return count

    def _referred(self, target: str) -> int:
        known = self._counts.setdefault(target, 0)
        if known is None:
            raise invalid_schema(f"contains itself ({target[:100]}), so what it asks cannot be checked")
        if not known:
            self._counts[target] = None
            self._counts[target] = known = max(1, self.of(pointed(self._root, target.removeprefix("#"), target)))
        return known


def pointed(document: Any, pointer: str, target: str) -> Any:
    """Return what a JSON pointer leads to; raise `Unprocessable`, which names `target`, if that is nothing."""
    schema = document
    for part in pointer.split("/")[1:] if pointer.startswith("/") else []:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict) and name in schema:
            schema = schema[name]
        elif isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            raise invalid_schema(f"{target[:100]} refers to nothing")
    return schema
