"""A tree of nodes as the compiled decoders take it: numbers, level by level (`struct node` in columns.h)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from deltamq.tables.typed.json_value import END_US, FIRST_DAY, FIRST_US, LAST_DAY
from deltamq.tables.typed.misfit import place
from deltamq.tables.typed.node import Child, Node

#: Columns without a fixed width, as `enum layout` numbers them.
_STRUCT: Final = 0
_BITS: Final = -1
_TEXT: Final = -2
_LIST: Final = -3
#: `enum flag`.
_NULLABLE: Final = 1
_REQUIRED: Final = 2
_CLOSED: Final = 4
_NO_UNION: Final = -2

_DAY_US: Final = 86_400_000_000
_INT64: Final = (-(2**63), 2**63 - 1, 1)
_TIMES: Final = (FIRST_US, END_US - 1)
#: The first and the last value of a form of whole numbers, and what one of them is in the column.
_RANGES: Final[Mapping[str, tuple[int, int, int]]] = {
    "int": (-(2**31), 2**31 - 1, 1),
    "date": (FIRST_DAY, LAST_DAY, 1),
    "time-millis": (0, _DAY_US - 1, 1_000),
    "time-micros": (0, _DAY_US - 1, 1),
    "timestamp-millis": (*_TIMES, 1_000),
    "timestamp-micros": (*_TIMES, 1),
    "local-timestamp-millis": (*_TIMES, 1_000),
    "local-timestamp-micros": (*_TIMES, 1),
    "timestamp": (*_TIMES, 1),
}
#: The number of each form in `enum form` of the source.
AVRO_FORMS: Final[Mapping[str, int]] = {
    "boolean": 0,
    **dict.fromkeys(("int", "long", *(name for name in _RANGES if name != "timestamp")), 1),
    "float": 2,
    "double": 3,
    "bytes": 4,
    "string": 5,
    "fixed": 6,
    "enum": 7,
    "decimal": 8,
    "uint32": 9,
    "struct": 10,
    "union": 11,
    "list": 12,
    "map": 13,
}
JSON_FORMS: Final[Mapping[str, int]] = {
    "boolean": 0,
    "whole": 1,
    "real": 2,
    "decimal": 3,
    "string": 4,
    "base64": 5,
    "date": 6,
    "timestamp": 7,
    "json": 8,
    "struct": 9,
    "list": 10,
    "map": 11,
}
#: Numbers of `struct node`.
_NUMBERS: Final = 15


class Plan(NamedTuple):
    """A schema as a decoder takes it; all of it has to outlive the calls."""

    nodes: array[int]
    node_count: int
    text_ends: array[int]
    texts: pa.Buffer
    #: For each node the names on the way to it, None for the place of an element.
    paths: list[tuple[str | None, ...]]

    def path(self, node: int, places: list[int]) -> list[str]:
        """Return the parts of the path to a node; `places` are those of elements, the innermost first."""
        left = list(places)
        return [place(left.pop()) if part is None else part for part in self.paths[node]]


class _Part(NamedTuple):
    """A node of the plan before it has a place."""

    child: Child
    node: Node
    path: tuple[str | None, ...]
    is_below_list: bool
    null: int = _NO_UNION


def plan_of(root: Node, forms: Mapping[str, int]) -> Plan:
    """Return the plan of a schema for the source with these forms."""
    nodes, texts, paths = array("q"), [b""], []
    parts = [_part(Child("", root), (), False)]
    for part in parts:
        children = _children(part)
        names = part.node.symbols or tuple(child.child.name for child in children)
        nodes.extend(_numbers(part, forms, len(parts), len(children), len(texts) - 1, len(names)))
        texts += [name.encode() for name in names]
        paths.append(part.path)
        parts += children
    ends = array("i", [0])
    for text in texts[1:]:
        ends.append(ends[-1] + len(text))
    assert len(nodes) == _NUMBERS * len(parts), "a number for each field of the struct"
    return Plan(nodes, len(parts), ends, pa.py_buffer(b"".join(texts)), paths)


def _part(child: Child, path: tuple[str | None, ...], is_below_list: bool) -> _Part:
    node = child.node
    if node.form == "nullable":
        return _Part(child, node.children[0].node, path, is_below_list, node.size)
    return _Part(child, node, path, is_below_list)


def _children(part: _Part) -> list[_Part]:
    node, path = part.node, part.path
    if node.form == "list":
        return [_part(node.children[0], (*path, None), True)]
    if node.form == "map":
        return [_Part(Child("", _entries(node)), _entries(node), path, True)]
    if node.form == "entries":
        return [_part(child, path, True) for child in node.children]
    return [_part(child, (*path, child.name), part.is_below_list) for child in node.children]


def _entries(node: Node) -> Node:
    """The structs of names and values that a map's column has."""
    [value] = node.children
    kind = pa.struct([("key", pa.string()), ("value", value.node.arrow)])
    return Node("entries", kind, (Child("key", Node("string", pa.string())), value._replace(name="value")))


def _numbers(part: _Part, forms: Mapping[str, int], first: int, count: int, text: int, texts: int) -> tuple[int, ...]:
    node, child = part.node, part.child
    flags = _NULLABLE * child.nullable | _REQUIRED * child.required | _CLOSED * node.closed
    low, high, unit = _INT64
    if node.form in _RANGES:
        low, high, unit = _RANGES[node.form]
    elif node.form == "whole":
        low, high = -(1 << node.arrow.bit_width - 1), (1 << node.arrow.bit_width - 1) - 1
    size, scale = node.size, 0
    if node.form == "decimal":
        size, scale = node.size, node.arrow.precision
        if forms is JSON_FORMS:
            size, scale = node.arrow.precision, node.arrow.scale
    form = forms.get(node.form, forms["struct"])
    layout = _layout(node.arrow)
    places = first, count, part.null, size, scale, low, high, unit, text, texts, node.leaves, part.is_below_list
    return form, layout, flags, *places


def _layout(kind: Any) -> int:
    if pa.types.is_struct(kind):
        return _STRUCT
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _LIST
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _TEXT
    return _BITS if pa.types.is_boolean(kind) else int(kind.bit_width) // 8
