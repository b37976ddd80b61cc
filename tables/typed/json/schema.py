"""A JSON Schema as a tree of nodes (drafts 4 to 2020-12): what becomes a column of a type, and what a text (TYPE-13).

What restricts values without giving them another type (`minimum`, `pattern`, `enum`, ...): constraints.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from deltamq.tables.typed.json.constraints import constrained, starts_of
from deltamq.tables.typed.json.whole import WholeJudge, pointed
from deltamq.tables.typed.node import (
    ANY,
    NUMBER,
    SIMPLE,
    TIMESTAMP,
    Child,
    Growth,
    Node,
    check_columns,
    invalid_schema,
    list_of,
    map_of,
    struct,
    with_constraints,
)

_NULL: Final = "null"
#: Words about values as a whole, and those that ask for nothing.
_OF_BODIES: Final = frozenset(
    [
        "if",
        "not",
        "contains",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "propertyNames",
        "patternProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
    ]
)
_SAYS_NOTHING: Final = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "format",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$id",
        "id",
        "$schema",
        "definitions",
        "$defs",
        "then",
        "else",
        "$ref",
    ]
)
_STRINGS: Final = {"date": SIMPLE[pa.date32()], "date-time": SIMPLE[TIMESTAMP]}
_TYPES: Final = {
    "boolean": SIMPLE[pa.bool_()],
    "integer": SIMPLE[pa.int64()],
    "number": NUMBER,
    "string": SIMPLE[pa.string()],
}


def parse_json_schema(text: str, references: Mapping[str, str]) -> tuple[Node, WholeJudge | None]:
    """Return the tree of a JSON Schema, and what judges bodies as a whole; None: columns show all that it asks.

    `references` are the texts of other schemas by their names in `$ref`.

    Raises
    ------
    Unprocessable
        `invalid_schema`: the text is no JSON Schema, or its values have no columns.
    """
    documents = {"": _document(text, "the schema")}
    documents |= {name: _document(other, name) for name, other in references.items()}
    reader = _Reader(documents)
    try:
        node, _ = reader.node(documents[""], "", "", 0, ())
    except RecursionError:
        raise invalid_schema("is nested too deeply") from None
    root = check_columns(node)
    return root, WholeJudge(documents, reader.names) if reader.asks_more else None


def _document(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise invalid_schema(f"{name[:100]} is not JSON") from None


class _Reader:
    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self._growth = Growth()
        #: Whether something is asked that columns do not show.
        self.asks_more = False
        #: The document of each name that a reference may have.
        self.names = {name: name for name in documents}
        for name, document in documents.items():
            id_ = document.get("$id", document.get("id")) if isinstance(document, dict) else None
            if isinstance(id_, str):
                self.names.setdefault(id_, name)

    def node(
        self, schema: Any, document: str, at: str, depth: int, seen: tuple[tuple[str, str], ...]
    ) -> tuple[Node, bool]:
        """Return the node of a schema and whether it allows null; `seen` are the references that led here."""
        if schema is True:
            return ANY, True
        if not isinstance(schema, dict):
            raise invalid_schema(f"{at or 'it'} is neither an object nor true")
        depth = self._growth.deeper(depth, at)
        self.asks_more |= not _OF_BODIES.isdisjoint(schema)
        if "allOf" in schema:
            own = {word: value for word, value in schema.items() if word != "allOf"}
            return self._all([*_schemas(schema["allOf"], at, "allOf"), own], document, at, depth, seen)
        node, nullable = self._of_any_type(schema, document, at, depth, seen)
        allowed = schema.get("enum", [schema["const"]] if "const" in schema else [None])
        self.asks_more |= _asks_more(node, schema)
        return constrained(node, schema, at), nullable and (not isinstance(allowed, list) or None in allowed)

    def _of_any_type(
        self, schema: dict[str, Any], document: str, at: str, depth: int, seen: tuple[tuple[str, str], ...]
    ) -> tuple[Node, bool]:
        if "$ref" in schema:
            return self._referred(schema["$ref"], document, at, depth, seen)
        for word in ("oneOf", "anyOf"):
            if word in schema:
                return self._choice(_schemas(schema[word], at, word), document, at, depth, seen)
        kinds = _types(schema, at)
        nullable = _NULL in kinds
        named = [kind for kind in kinds if kind != _NULL]
        if len(named) != 1:
            return ANY, nullable or not kinds
        return self._typed(named[0], schema, document, at, depth, seen), nullable

    def _typed(
        self, kind: str, schema: dict[str, Any], document: str, at: str, depth: int, seen: tuple[tuple[str, str], ...]
    ) -> Node:
        if kind == "object":
            return self._object(schema, document, at, depth, seen)
        if kind == "array":
            items = schema.get("items", True)
            if isinstance(items, list) or "prefixItems" in schema or items is False:
                return ANY
            item, nullable = self.node(items, document, f"{at}[]", depth, seen)
            return list_of(item, nullable=nullable)
        if kind == "string" and isinstance(schema.get("format"), str):
            return _STRINGS.get(schema["format"], _TYPES[kind])
        if kind not in _TYPES:
            raise invalid_schema(f"{at or 'it'} has the type {kind[:100]!r}, which JSON Schema does not have")
        return _TYPES[kind]

    def _object(
        self, schema: dict[str, Any], document: str, at: str, depth: int, seen: tuple[tuple[str, str], ...]
    ) -> Node:
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        required = schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise invalid_schema(f"{at or 'it'} has `properties` that are no object, or `required` that is no list")
        if not properties:
            if not isinstance(others, dict) or not others or "patternProperties" in schema:
                return ANY
            item, nullable = self.node(others, document, f"{at}[]", depth, seen)
            return map_of(item, nullable=nullable)
        children = []
        for name, inner in properties.items():
            node, nullable = self.node(inner, document, f"{at}.{name}" if at else name, depth, seen)
            children.append(Child(name, node, required=name in required, nullable=nullable or name not in required))
        return struct(children, closed=others is False and "patternProperties" not in schema)

    def _all(
        self, parts: list[Any], document: str, at: str, depth: int, seen: tuple[tuple[str, str], ...]
    ) -> tuple[Node, bool]:
        """What one of the schemas is, and all of them allow, or objects with the fields of all."""
        nodes = [(self.node(part, document, at, depth, seen), part) for part in parts]
        typed = [(node, nullable) for (node, nullable), _ in nodes if node.form != ANY.form]
        if not typed or (len(typed) > 1 and any(node.form != "struct" for node, _ in typed)):
            self.asks_more = True
            return ANY, True
        others = [part for (node, _), part in nodes if node.form == ANY.form and isinstance(part, dict)]
        node, nullable = typed[0]
        if len(typed) > 1:
            objects = [node for node, _ in typed]
            joined = _joined(objects)
            self.asks_more |= joined is None or _is_more_than(objects)
            if joined is None:
                return ANY, True
            node, nullable = joined, False
        for part in others:
            node = constrained(node, part, at)
            if node.form == "struct" and isinstance(part.get("required"), list):
                node = struct(
                    [_as_required(child) if child.name in part["required"] else child for child in node.children],
                    closed=node.closed,
                )
        return node, nullable

    def _choice(
        self, schemas: list[Any], document: str, at: str, depth: int, seen: tuple[tuple[str, str], ...]
    ) -> tuple[Node, bool]:
        others = [one for one in schemas if not (isinstance(one, dict) and one.get("type") == _NULL)]
        if len(others) != 1:
            return ANY, len(others) < len(schemas)
        node, nullable = self.node(others[0], document, at, depth, seen)
        return node, nullable or len(others) < len(schemas)

    def _referred(
        self, target: Any, document: str, at: str, depth: int, seen: tuple[tuple[str, str], ...]
    ) -> tuple[Node, bool]:
        if not isinstance(target, str):
            raise invalid_schema(f"{at or 'it'} has a $ref that is no text")
        name, _, pointer = target.partition("#")
        known = self.names.get(name) if name else document
        if known is None:
            raise invalid_schema(f"{at or 'it'} refers to {name[:100]}, which is not among the schema's references")
        place = (known, pointer)
        if place in seen:
            raise invalid_schema(f"{at or 'it'} contains itself ({target[:100]}); use a string with JSON in its place")
        return self.node(self._at(known, pointer, target), known, at, depth, (*seen, place))

    def _at(self, document: str, pointer: str, target: str) -> Any:
        schema = pointed(self._documents[document], pointer, target)
        if pointer and not pointer.startswith("/"):
            raise invalid_schema(f"{target[:100]}: a reference has the form #/$defs/NAME here")
        return schema


def _asks_more(node: Node, schema: dict[str, Any]) -> bool:
    """Whether a schema asks more of values than the node's columns and constraints show."""
    words = {word for word, value in schema.items() if word not in _SAYS_NOTHING and value is not True}
    if node.form == ANY.form:
        return bool(words if starts_of(schema) is None else words - {"type"})
    if node.form != "struct":
        return node.form in ("list", "map") and not words.isdisjoint(("enum", "const"))
    fields, required = schema.get("properties"), schema.get("required")
    names = fields if isinstance(fields, dict) else {}
    return (
        not words.isdisjoint(("enum", "const", "minProperties", "maxProperties"))
        or isinstance(schema.get("additionalProperties"), dict)
        or (isinstance(required, list) and not all(isinstance(name, str) and name in names for name in required))
    )


def _joined(nodes: list[Node]) -> Node | None:
    """An object with the fields of some; None: a field has two types."""
    children: dict[str, Child] = {}
    for child in (child for node in nodes for child in node.children):
        known = children.setdefault(child.name, child)
        if known.node.arrow != child.node.arrow:
            return None
        if known is not child:
            children[child.name] = known._replace(
                node=with_constraints(known.node, child.node.constraints),
                required=known.required or child.required,
                nullable=known.nullable and child.nullable,
            )
    return struct(list(children.values()))


def _is_more_than(nodes: list[Node]) -> bool:
    """Whether objects ask more together than their joined fields do: of a nested field of two, or of other fields."""
    nested = [child.name for node in nodes for child in node.children if child.node.children]
    return len(set(nested)) < len(nested) or any(node.closed for node in nodes)


def _as_required(child: Child) -> Child:
    return child._replace(required=True)


def _schemas(value: Any, at: str, word: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise invalid_schema(f"{at or 'it'} has `{word}` that is no list of schemas")
    return value


def _types(schema: dict[str, Any], at: str) -> list[str]:
    """The types that a schema allows; none: any."""
    kind = schema.get("type")
    if kind is None:
        if "properties" in schema:
            return ["object"]
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list) and values and all(isinstance(value, str | None) for value in values):
            return ["string", *([_NULL] if None in values else [])]
        return []
    kinds = kind if isinstance(kind, list) else [kind]
    if not all(isinstance(name, str) for name in kinds):
        raise invalid_schema(f"{at or 'it'} has a type that is no text")
    return kinds
