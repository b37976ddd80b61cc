"""An Avro schema as a tree of nodes (SPEC TYPE-14)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from deltamq.tables.typed.node import (
    TIMESTAMP,
    Child,
    Growth,
    Node,
    check_columns,
    invalid_schema,
    list_of,
    map_of,
    struct,
)

#: The form and the column of each type without parts.
PRIMITIVE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: The column of each logical type, by it and the type that it annotates; any other is what it annotates.
LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("date", "int"): pa.date32(),
    ("time-millis", "int"): pa.int64(),
    ("time-micros", "long"): pa.int64(),
    ("timestamp-millis", "long"): TIMESTAMP,
    ("timestamp-micros", "long"): TIMESTAMP,
    ("local-timestamp-millis", "long"): pa.int64(),
    ("local-timestamp-micros", "long"): pa.int64(),
}
_DURATION: Final = tuple(Child(name, Node("uint32", pa.int64())) for name in ("months", "days", "millis"))


def parse_avro(text: str, references: Sequence[str]) -> Node:
    """Return the tree of an Avro schema; `references` are the texts of the schemas whose types it names, in order.

    Raises
    ------
    Unprocessable
        `invalid_schema`: the text is no Avro schema, or its values have no columns.
    """
    reader = _Reader()
    try:
        for reference in references:
            reader.define(_document(reference))
        node = reader.node(_document(text), "", "", 0, ())
    except RecursionError:
        raise invalid_schema("is nested too deeply") from None
    whole = node.children[0].node if node.form == "nullable" else node
    check_columns(whole)
    return node


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # A name is a schema as well, and some registries keep it without quotes.
        if text.strip().replace(".", "").replace("_", "").isalnum():
            return text.strip()
        raise invalid_schema("is not JSON") from None


class _Reader:
    def __init__(self) -> None:
        self._growth = Growth()
        self._named: dict[str, tuple[dict[str, Any], str]] = {}

    def define(self, schema: Any, space: str = "") -> None:
        """Remember the named types of a schema."""
        if isinstance(schema, list):
            for branch in schema:
                self.define(branch, space)
        if not isinstance(schema, dict):
            return
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            name, space = _full_name(schema, space)
            self._named[name] = (schema, space)
        for inner in (kind, schema.get("items"), schema.get("values")):
            if isinstance(inner, dict | list):
                self.define(inner, space)
        for field in schema.get("fields", ()) if isinstance(schema.get("fields"), list) else ():
            if isinstance(field, dict):
                self.define(field.get("type"), space)

    def node(self, schema: Any, at: str, space: str, depth: int, seen: tuple[str, ...]) -> Node:
        """Return the node of a schema; `space` is the namespace there, `seen` the records that it is in."""
        if depth == 0 and not seen:
            self.define(schema)
        if isinstance(schema, list):
            return self._union(schema, at, space, depth, seen)
        if isinstance(schema, str):
            if schema in PRIMITIVE:
                return Node(schema, PRIMITIVE[schema])
            return self._named_node(schema, at, space, depth, seen)
        if not isinstance(schema, dict) or "type" not in schema:
            raise invalid_schema(f"{at or 'it'} has no type")
        kind = schema["type"]
        depth = self._growth.deeper(depth, at)
        if isinstance(kind, list | dict):
            return self.node(kind, at, space, depth, seen)
        if kind in ("record", "error"):
            return self._record(schema, at, space, depth, seen)
        if kind == "array":
            return list_of(self.node(schema.get("items"), f"{at}[]", space, depth, seen))
        if kind == "map":
            return map_of(self.node(schema.get("values"), f"{at}[]", space, depth, seen))
        return self._leaf(schema, kind, at, space, depth, seen)

    def _leaf(self, schema: dict[str, Any], kind: Any, at: str, space: str, depth: int, seen: tuple[str, ...]) -> Node:
        logical = schema.get("logicalType", "")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _decimal(schema, at)
        if isinstance(logical, str) and isinstance(kind, str) and (logical, kind) in LOGICAL:
            return Node(logical, LOGICAL[logical, kind])
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
                raise invalid_schema(f"{at or 'it'}: an enum has a list of symbols")
            return Node("enum", pa.string(), symbols=tuple(symbols))
        if kind == "fixed":
            if logical == "duration" and schema.get("size") == 12:
                return struct(list(_DURATION))
            return Node("fixed", pa.binary(), size=_size(schema, at))
        if not isinstance(kind, str):
            raise invalid_schema(f"{at or 'it'} has a type that is no name")
        return self.node(kind, at, space, depth, seen)

    def _named_node(self, name: str, at: str, space: str, depth: int, seen: tuple[str, ...]) -> Node:
        full = name if "." in name or not space else f"{space}.{name}"
        full = full if full in self._named else name
        if full == "null":
            raise invalid_schema(f"{at or 'it'} is always null, which no column can be; leave it out")
        if full not in self._named:
            raise invalid_schema(f"{at or 'it'} names the type {name[:100]}, which neither it nor a reference defines")
        schema, outer = self._named[full]
        return self.node(schema, at, outer, self._growth.deeper(depth, at), seen)

    def _record(self, schema: dict[str, Any], at: str, space: str, depth: int, seen: tuple[str, ...]) -> Node:
        name, space = _full_name(schema, space)
        if name in seen:
            raise invalid_schema(f"{at} contains itself ({name[:100]}); use a string with JSON in its place")
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise invalid_schema(f"{at or 'it'}: a record has a list of fields")
        children = []
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise invalid_schema(f"{at or 'it'}: a field of a record has a name and a type")
            path = f"{at}.{field['name']}" if at else field["name"]
            aliases = field.get("aliases", [])
            if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
                raise invalid_schema(f"{path}: aliases are a list of names")
            node = self.node(field["type"], path, space, depth, (*seen, name))
            children.append(Child(field["name"], node, aliases=tuple(aliases)))
        if not children:
            raise invalid_schema(f"{at or 'it'} has no fields, and no column can be empty; give it a field")
        return struct(children)

    def _union(self, branches: list[Any], at: str, space: str, depth: int, seen: tuple[str, ...]) -> Node:
        null = next((n for n, branch in enumerate(branches) if _is_null(branch)), -1)
        others = [branch for branch in branches if not _is_null(branch)]
        if not others or len(branches) - len(others) > 1:
            raise invalid_schema(f"{at or 'it'} is a union without a type beside null, or with null twice")
        if len(others) == 1:
            inner = self.node(others[0], at, space, depth, seen)
            return Node("nullable", inner.arrow, (Child("", inner),), size=null, leaves=inner.leaves)
        depth = self._growth.deeper(depth, at)
        names = [self._branch_name(branch, at, space) for branch in others]
        children = []
        for branch, (full, short) in zip(others, names, strict=True):
            # Two types of one name in different namespaces have their whole names.
            name = short if [other for _, other in names].count(short) == 1 else full.replace(".", "_")
            children.append(Child(name, self.node(branch, f"{at}.{name}" if at else name, space, depth, seen)))
        return struct(children, form="union", size=null)

    def _branch_name(self, branch: Any, at: str, space: str) -> tuple[str, str]:
        name = branch
        if isinstance(branch, dict):
            name = branch.get("type")
            if name in ("record", "error", "enum", "fixed"):
                name, _ = _full_name(branch, space)
        if not isinstance(name, str):
            raise invalid_schema(f"{at or 'it'} has a union within a union")
        return name, name.rpartition(".")[2]


def _is_null(branch: Any) -> bool:
    return bool(branch == "null" or (isinstance(branch, dict) and branch.get("type") == "null"))


def _full_name(schema: dict[str, Any], space: str) -> tuple[str, str]:
    """The whole name of a type, and the namespace within it."""
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise invalid_schema(f"a type of the kind {str(schema.get('type'))[:100]} has no name")
    if "." in name:
        return name, name.rpartition(".")[0]
    space = schema.get("namespace", space)
    space = str(schema.get("namespace", space) or "")
    return (f"{space}.{name}", space) if space else (name, "")


def _size(schema: dict[str, Any], at: str) -> int:
    size = schema.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= 1 << 20:
        raise invalid_schema(f"{at or 'it'}: a fixed type has a size of 1 to {1 << 20} bytes")
    return size


def _decimal(schema: dict[str, Any], at: str) -> Node:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        raise invalid_schema(f"{at or 'it'}: a decimal has a precision, and a scale between 0 and it")
    if precision > 38:
        raise invalid_schema(f"{at or 'it'}: a decimal of {precision} digits; a column has 38 at most")
    size = _size(schema, at) if schema["type"] == "fixed" else 0
    return Node("decimal", pa.decimal128(precision, scale), size=size)
