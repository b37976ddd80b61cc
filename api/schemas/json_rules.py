"""JSON Schema: whether a schema accepts every document that another one accepts, by Confluent's published rules.

A schema is what all its parts ask for (`allOf`, `$ref`, and its own keywords), and a part is one of:

    plain      keywords about one type, or about any
    choice     `anyOf`, `oneOf`, or several types: one of its branches
    not        the opposite of a schema

    reader accepts what writer does:  each part of the reader is met by a part of the writer
        a choice of the writer        each of its branches is met
        a choice of the reader        one of its branches meets
        plain with plain              keyword by keyword; objects and arrays member by member

What an object may have beside its named properties is its content model, and so for arrays: open (anything), partly
open (another schema), or closed. A property that is added to an open model changes what was written before, in any
form; hence it is refused, as there. The comparison is cautious: it may refuse what a proof would allow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.api.schemas.texts import DIFFERENCES_MAX, Texts, invalid, json_of
from deltamq.mq.schemas.limits import SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX

_PAIRS_MAX: Final = 20 * SCHEMA_FIELDS_MAX
_TYPES: Final = ("null", "boolean", "object", "array", "number", "string", "integer")
#: Keywords with schemas: one, several in a list, or several by name.
_ONE: Final = (
    *("additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "propertyNames"),
    *("not", "contains", "if", "then", "else"),
)
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas")
_NUMBERS: Final = (
    *("maxLength", "minLength", "maxProperties", "minProperties", "maxItems", "minItems"),
    *("maximum", "minimum", "minContains", "maxContains"),
)
#: The least that the greater of two bounds allows; the others allow at most so much.
_LOWEST: Final = ("minLength", "minimum", "exclusiveMinimum", "minProperties", "minItems", "minContains")
_HIGHEST: Final = ("maxLength", "maximum", "exclusiveMaximum", "maxProperties", "maxItems", "maxContains")
#: Keywords that say nothing about which documents are valid.
_SILENT: Final = frozenset(
    (
        *("$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default"),
        *("examples", "example", "readOnly", "writeOnly", "deprecated", "format", "contentEncoding"),
        *("contentMediaType", "$vocabulary"),
    )
)
_COMBINING: Final = ("allOf", "anyOf", "oneOf", "not", "$ref", "$dynamicRef", "$recursiveRef")
#: The schemas that describe schemas: they are accepted without being read.
_ABOUT_SCHEMAS: Final = re.compile(r"https?://json-schema\.org/")


class Document(NamedTuple):
    """A schema with all that it refers to."""

    root: Any
    #: Schemas by what `$ref` calls them: names of references, `$id`s, and `#anchor`s behind them.
    known: Mapping[str, Any]
    #: The `$id` around each schema that has a `$ref`, by its identity.
    bases: Mapping[int, str]

    def resolve(self, schema: Any) -> Any:
        """Return the schema that a `$ref` means; raise `Unprocessable` (`invalid_schema`) if there is none."""
        ref = next((schema[name] for name in ("$ref", "$dynamicRef", "$recursiveRef") if name in schema), None)
        if not isinstance(ref, str):
            raise invalid("$ref must be a text")
        if _ABOUT_SCHEMAS.match(ref):
            return True
        base = self.bases.get(id(schema), "")
        for whole in (urljoin(base, ref), ref):
            name, fragment = urldefrag(whole)
            if f"{name}#{fragment}" in self.known and fragment:
                return self.known[f"{name}#{fragment}"]
            if name in self.known:
                return _pointed(self.known[name], fragment, ref)
        raise invalid(f"$ref {ref[:200]!r} leads nowhere: give a reference with this name")


def _pointed(schema: Any, fragment: str, ref: str) -> Any:
    for part in fragment.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
            schema = schema[int(key)]
        elif isinstance(schema, dict) and key in schema:
            schema = schema[key]
        else:
            raise invalid(f"$ref {ref[:200]!r} leads nowhere")
    if not isinstance(schema, dict | bool):
        raise invalid(f"$ref {ref[:200]!r} leads to something that is no schema")
    return schema


def parsed(texts: Texts) -> Document:
    """Return a checked schema with all that it refers to."""
    roots = {"": json_of(texts.schema)} | {name: json_of(text) for name, text in texts.references.items()}
    known: dict[str, Any] = dict(roots)
    bases: dict[int, str] = {}
    referring: list[Any] = []
    for name, root in roots.items():
        _Walk(known, bases, referring).visit(root, name, name, 0)
    document = Document(roots[""], known, bases)
    for schema in referring:
        document.resolve(schema)
    return document


class _Walk(msgspec.Struct):
    """Checks the keywords of all schemas in a document, and notes their names."""

    known: dict[str, Any]
    bases: dict[int, str]
    referring: list[Any]
    count: int = 0

    def visit(self, schema: Any, base: str, at: str, depth: int) -> None:
        self.count += 1
        if depth > SCHEMA_DEPTH_MAX or self.count > SCHEMA_FIELDS_MAX:
            raise invalid(
                f"it is nested more than {SCHEMA_DEPTH_MAX} levels deep, or has more than {SCHEMA_FIELDS_MAX} schemas"
            )
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise invalid(f"{at or 'the schema'}: a schema is an object, true or false")
        _check_keywords(schema, at)
        own = schema.get("$id", schema.get("id"))
        if isinstance(own, str):
            base = urljoin(base, urldefrag(own)[0]) if urldefrag(own)[0] else base
            self.known.setdefault(f"{base}#{urldefrag(own)[1]}" if urldefrag(own)[1] else base, schema)
        if isinstance(schema.get("$anchor"), str):
            self.known[f"{base}#{schema['$anchor']}"] = schema
        if any(name in schema for name in ("$ref", "$dynamicRef", "$recursiveRef")):
            self.bases[id(schema)] = base
            self.referring.append(schema)
        for name, inner in _inner(schema):
            self.visit(inner, base, f"{at}/{name}", depth + 1)


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas in a schema, each with its place."""
    for name in _ONE:
        if name in schema:
            yield name, schema[name]
    for name in _LISTS:
        yield from ((f"{name}/{at}", one) for at, one in enumerate(schema.get(name, ())))
    for name in _NAMED:
        yield from ((f"{name}/{key}", one) for key, one in schema.get(name, {}).items())
    items = schema.get("items", ())
    yield from ((f"items/{at}", one) for at, one in enumerate(items if isinstance(items, list) else ()))
    if not isinstance(items, list | tuple):
        yield "items", items
    for key, one in schema.get("dependencies", {}).items():
        if not isinstance(one, list):
            yield f"dependencies/{key}", one


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


#: What the value of a keyword must be.
_FORMS: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys((*_LISTS, "enum"), lambda value: isinstance(value, list)),
    **dict.fromkeys(_NAMED, lambda value: isinstance(value, dict)),
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), lambda value: isinstance(value, int | float)),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "pattern": lambda value: isinstance(value, str),
    "required": lambda value: isinstance(value, bool) or _are_texts(value),  # a bool in draft 3
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_are_texts, value.values())),
    "dependencies": lambda value: (
        isinstance(value, dict) and all(_are_texts(one) or not isinstance(one, list) for one in value.values())
    ),
}


def _check_keywords(schema: Mapping[str, Any], at: str) -> None:
    types = schema.get("type", [])
    for kind in types if isinstance(types, list) else [types]:
        if kind not in _TYPES:
            raise invalid(f"{at}/type: {str(kind)[:100]!r} is none of {', '.join(_TYPES)}")
    for name in _FORMS.keys() & schema.keys():
        if not _FORMS[name](schema[name]):
            raise invalid(f"{at}/{name}: {json.dumps(schema[name])[:100]} is no value of this keyword")


def differences(reader: Document, writer: Document) -> list[str]:
    """Return where documents that `writer` accepts may be refused by `reader`."""
    try:
        return _Comparison(reader, writer).compare(reader.root, writer.root, "#")
    except RecursionError:
        raise invalid("it is nested too deeply") from None


class _Part(NamedTuple):
    """One of the things that a schema asks for."""

    kind: str  # plain, choice or not
    #: Its keywords; of a `not`, the schema that it excludes.
    schema: Any
    #: Of a choice.
    branches: tuple[Any, ...] = ()
    #: What a comparison of its keywords costs.
    size: int = 0


class _Parts(msgspec.Struct):
    """The parts of each schema of a document; what was made is kept, so that its identity stands for it."""

    document: Document
    made: dict[int, tuple[Any, list[_Part]]] = msgspec.field(default_factory=dict)

    def of(self, schema: Any) -> list[_Part]:
        if id(schema) not in self.made:
            self.made[id(schema)] = (schema, [])  # a schema that refers to itself asks for nothing more
            # A part that is asked for twice counts once: else lists of schemas that double would fill the memory.
            self.made[id(schema)] = (schema, list({id(part): part for part in self._split(schema)}.values()))
        return self.made[id(schema)][1]

    def _split(self, schema: Any) -> Iterator[_Part]:
        if isinstance(schema, bool):
            if not schema:
                yield _Part("choice", {})  # without branches: nothing is accepted
            return
        if self.document.bases.get(id(schema)) is not None:
            yield from self.of(self.document.resolve(schema))
        for one in schema.get("allOf", ()):
            yield from self.of(one)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                yield from self._choice(tuple(schema[name]))
        if "not" in schema:
            yield _Part("not", schema["not"])
        own = {name: value for name, value in schema.items() if name not in _SILENT and name not in _COMBINING}
        types = own.get("type")
        if isinstance(types, list) and len(types) == 1:
            own["type"] = types[0]
        elif isinstance(types, list):
            yield _Part("choice", {}, tuple({**own, "type": one} for one in types))
            return
        if own:
            size = sum(len(value) for value in own.values() if isinstance(value, list | dict | str))
            yield _Part("plain", _normal(own), size=len(own) + size)

    def _choice(self, branches: tuple[Any, ...]) -> Iterator[_Part]:
        if len(branches) == 1:
            yield from self.of(branches[0])
        else:
            yield _Part("choice", {}, branches)


def _normal(own: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of older drafts as those of newer ones."""
    for bound, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        if own.get(exclusive) is True and bound in own:
            own = {**own, exclusive: own[bound]}
            del own[bound]
        elif isinstance(own.get(exclusive), bool):
            own = {name: value for name, value in own.items() if name != exclusive}
    if isinstance(own.get("items"), list):
        own = {**own, "prefixItems": own["items"], "items": own.get("additionalItems", True)}
    if "const" in own:
        own = {**own, "enum": [own["const"]]}
    for name in ("additionalProperties", "items"):
        unevaluated = {"additionalProperties": "unevaluatedProperties", "items": "unevaluatedItems"}[name]
        if unevaluated in own and name not in own:
            own = {**own, name: own[unevaluated]}
    return own


class _Comparison:
    def __init__(self, reader: Document, writer: Document, budget: list[int] | None = None) -> None:
        #: How many pairs of parts may still be compared; a comparison within another one has the same.
        self._budget = [_PAIRS_MAX] if budget is None else budget
        self._readers, self._writers = _Parts(reader), _Parts(writer)
        #: Pairs that were compared, or are: a pair in itself is as good as the rest of it.
        self._seen: dict[tuple[int, int], list[str]] = {}

    def compare(self, reader: Any, writer: Any, at: str) -> list[str]:
        """Return where `writer` accepts what `reader` may not."""
        pair = id(reader), id(writer)
        if pair not in self._seen:
            self._seen[pair] = []
            self._seen[pair] = self._all_parts(self._readers.of(reader), self._writers.of(writer), at)
        return self._seen[pair]

    def _spend(self, cost: int) -> None:
        self._budget[0] -= cost
        if self._budget[0] < 0:
            raise invalid(f"its choices are too large: more than {_PAIRS_MAX} pairs of parts would be compared")

    def _all_parts(self, readers: list[_Part], writers: list[_Part], at: str) -> list[str]:
        if any(part.kind == "choice" and not part.branches for part in writers):
            return []  # nothing was ever written
        return [one for part in readers if not _is_open(part) for one in self._part(part, writers or [_ANY], at)]

    def _part(self, reader: _Part, writers: list[_Part], at: str) -> list[str]:
        """Return why no part of the writer meets a part of the reader."""
        found: list[str] = []
        for writer in writers:
            found = self._pair(reader, writer, at)
            if not found:
                return []
        return found if len(writers) == 1 else [f"{at}: no part of the writer's schema asks for {_named(reader)}"]

    def _pair(self, reader: _Part, writer: _Part, at: str) -> list[str]:
        self._spend(1 + reader.size + writer.size)
        if writer.kind == "choice":
            whole = reader.branches if reader.kind == "choice" else None
            for branch in writer.branches:
                parts = self._writers.of(branch)
                met = self._one_of(whole, branch, at) if whole is not None else self._part(reader, parts or [_ANY], at)
                if met:
                    return met
            return []
        if reader.kind == "choice":
            return self._one_of(reader.branches, writer, at)
        if reader.kind == "not" or writer.kind == "not":
            if reader.kind != writer.kind:
                return [f"{at}: one of the schemas is a `not`, and the other is none"]
            # The other way round: what the reader excludes must be excluded by the writer as well.
            other_way = _Comparison(self._writers.document, self._readers.document, self._budget)
            return other_way.compare(writer.schema, reader.schema, f"{at}/not")
        return self._plain(reader.schema, writer.schema, at)

    def _one_of(self, branches: tuple[Any, ...], writer: Any, at: str) -> list[str]:
        for branch in branches:
            if isinstance(writer, _Part):
                if not self._all_parts(self._readers.of(branch), [writer], at):
                    return []
            elif not self.compare(branch, writer, at):
                return []
        return [f"{at}: no branch accepts what was written"]

    def _plain(self, reader: dict[str, Any], writer: dict[str, Any], at: str) -> list[str]:
        if "type" in reader and writer.get("type") not in (reader["type"], *_narrower(reader["type"])):
            return [f"{at}: type {reader['type']} was {writer.get('type', 'any')}"]
        found = [f"{at}: {why}" for why in _keywords(reader, writer)]
        checks: tuple[Callable[[dict[str, Any], dict[str, Any], str], Iterator[str]], ...] = (
            self._properties,
            self._items,
            self._dependencies,
        )
        for check in checks:
            for one in check(reader, writer, at):
                found.append(one)
                if len(found) >= DIFFERENCES_MAX:
                    return found
        return found

    # Objects.

    def _properties(self, reader: dict[str, Any], writer: dict[str, Any], at: str) -> Iterator[str]:
        ours, theirs = reader.get("properties", {}), writer.get("properties", {})
        required, was_required = _required(reader), _required(writer)
        for name in dict.fromkeys((*theirs, *ours)):
            inner = f"{at}/properties/{name[:100]}"
            if name in ours and name in theirs:
                yield from self.compare(ours[name], theirs[name], inner)
            elif name in theirs:
                yield from self._model(self.compare, self._beside(reader, name), theirs[name], inner, "removed")
            else:
                beside = self._beside(writer, name)
                yield from self._model(self.compare, ours[name], beside, inner, "added")
        for name in required - was_required:
            if not _has_default(ours.get(name)):
                yield f"{at}/required: {name[:100]} is required and has no default"
        if "additionalProperties" in reader or "additionalProperties" in writer:
            pair = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
            yield from self.compare(*pair, f"{at}/additionalProperties")
        for pattern, schema in reader.get("patternProperties", {}).items():
            was = writer.get("patternProperties", {}).get(pattern, writer.get("additionalProperties", True))
            yield from self.compare(schema, was, f"{at}/patternProperties/{pattern[:100]}")
        if "propertyNames" in reader:
            yield from self.compare(reader["propertyNames"], writer.get("propertyNames", True), f"{at}/propertyNames")

    def _beside(self, schema: Mapping[str, Any], name: str) -> Any:
        """Return the schema of a property that is not named: by a pattern, or by what is additional."""
        text = pa.scalar(name)
        for pattern, matched in schema.get("patternProperties", {}).items():
            self._spend(1)
            with suppress(pa.ArrowInvalid):  # RE2, whose time is bounded, does not know all of JavaScript's patterns
                if pc.match_substring_regex(text, pattern).as_py():
                    return matched
        return schema.get("additionalProperties", True)

    @staticmethod
    def _model(
        compare: Callable[[Any, Any, str], list[str]], reader: Any, writer: Any, at: str, how: str
    ) -> Iterator[str]:
        """Compare a member that only one side names with what the other side has beside its named members."""
        if compare(reader, writer, at):
            yield f"{at}: {how}, and what the other schema allows there is not covered"

    # Arrays.

    def _items(self, reader: dict[str, Any], writer: dict[str, Any], at: str) -> Iterator[str]:
        ours, theirs = reader.get("prefixItems", []), writer.get("prefixItems", [])
        rest, was = reader.get("items", True), writer.get("items", True)
        for index in range(max(len(ours), len(theirs))):
            inner = f"{at}/items/{index}"
            if index < min(len(ours), len(theirs)):
                yield from self.compare(ours[index], theirs[index], inner)
            elif index < len(theirs):
                yield from self._model(self.compare, rest, theirs[index], inner, "removed")
            else:
                yield from self._model(self.compare, ours[index], was, inner, "added")
        if "items" in reader or "items" in writer:
            yield from self.compare(rest, was, f"{at}/items")
        if "contains" in reader and _same(reader["contains"]) != _same(writer.get("contains")):
            yield f"{at}/contains: it was added or changed"

    # Conditions.

    def _dependencies(self, reader: dict[str, Any], writer: dict[str, Any], at: str) -> Iterator[str]:
        before = dict(_depending(writer))
        for name, needed in _depending(reader):
            was, inner = before.get(name), f"{at}/dependencies/{name[:100]}"
            if isinstance(needed, list):
                if not isinstance(was, list) or not set(map(str, needed)) <= set(map(str, was)):
                    yield f"{inner}: more is required"
            elif was is None or isinstance(was, list):
                yield f"{inner}: it was added"
            else:
                yield from self.compare(needed, was, inner)
        for name in ("if", "then", "else"):
            if name in reader and _same(reader[name]) != _same(writer.get(name)):
                yield f"{at}/{name}: it was added or changed"


_ANY: Final = _Part("plain", {})


def _is_open(part: _Part) -> bool:
    return part.kind == "plain" and not part.schema


def _named(part: _Part) -> str:
    return f"type {part.schema['type']}" if part.kind == "plain" and "type" in part.schema else f"this {part.kind}"


def _narrower(kind: str) -> tuple[str, ...]:
    return ("integer",) if kind == "number" else ()


def _keywords(reader: dict[str, Any], writer: dict[str, Any]) -> Iterator[str]:
    """Yield the keywords about single values by which the reader takes less."""
    for name in (*_LOWEST, *_HIGHEST):
        if name in reader:
            was, sign = writer.get(name), 1 if name in _LOWEST else -1
            if was is None or sign * reader[name] > sign * was:
                yield f"{name} {reader[name]} was {'not there' if was is None else was}"
    if "multipleOf" in reader and (not writer.get("multipleOf") or writer["multipleOf"] % (reader["multipleOf"] or 1)):
        yield f"multipleOf {reader['multipleOf']} was {writer.get('multipleOf', 'not there')}"
    if "pattern" in reader and reader["pattern"] != writer.get("pattern"):
        yield f"pattern {str(reader['pattern'])[:100]} was {str(writer.get('pattern', 'not there'))[:100]}"
    if reader.get("uniqueItems") and not writer.get("uniqueItems"):
        yield "uniqueItems was not there"
    if "enum" in reader:
        taken, written = set(map(_same, reader["enum"])), set(map(_same, writer.get("enum", ())))
        if "enum" not in writer or not written <= taken:
            yield f"enum lacks {', '.join(sorted(written - taken)[:5])[:200]}" if "enum" in writer else "enum was added"


def _same(value: Any) -> str:
    """Return a text that is equal for equal JSON values."""
    return json.dumps(value, sort_keys=True)


def _required(schema: Mapping[str, Any]) -> set[str]:
    required = schema.get("required", [])
    return set(required) if isinstance(required, list) else set()


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _depending(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        yield from schema.get(keyword, {}).items()
