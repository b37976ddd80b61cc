"""A schema as a tree of nodes: what a body has, and the column of each part.

All formats are read into this tree, so what becomes of it (columns, values from bodies, bodies from values) is written
once for each encoding. `form` says how the body holds a value:

    all formats    struct, list, map, boolean, string
    Avro           int, long, float, double, binary, fixed, enum, nullable, union, decimal, date, time-millis, ...
    JSON           whole, real, decimal, base64, date, timestamp, local-timestamp, json
    Protobuf       bool, int32, uint64, sfixed32, float, bytes, enum, timestamp, wrapper, ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from deltamq.mq.errors import Unprocessable
from deltamq.mq.schemas.limits import TYPED_COLUMNS_MAX, TYPED_DEPTH_MAX

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

#: What a table without column mapping refuses in a name.
_REFUSED_SIGNS: Final = frozenset(" ,;{}()\n\t=")
#: Some types take several steps to read.
_PARTS_MAX: Final = 8 * TYPED_COLUMNS_MAX


class Child(NamedTuple):
    """A field of a struct, the branch of a union, or the only child of a list, a map or `nullable`."""

    name: str
    node: Node
    #: JSON: whether the field must be there, and whether it may be null.
    required: bool = False
    nullable: bool = True
    #: Other names of the field (Avro).
    aliases: tuple[str, ...] = ()
    #: The field's number (Protobuf).
    number: int = 0
    #: Fields of one group, of which a message has at most one (Protobuf's oneof); 0: none.
    group: int = 0


class Constraint(NamedTuple):
    """What values have to meet beside their type (JSON Schema): the keyword, and what it says."""

    word: str
    value: Any


class Node(msgspec.Struct, frozen=True, eq=False):
    """One part of a schema."""

    form: str
    #: The type of its column; nothing in it is marked as not null.
    arrow: pa.DataType
    children: tuple[Child, ...] = ()
    #: `fixed`: bytes; `nullable` and `union`: the branch that is null, or -1; `real`: whether "NaN" is a number.
    size: int = 0
    #: `enum`: its names.
    symbols: tuple[str, ...] = ()
    #: `enum` of Protobuf: their numbers.
    numbers: tuple[int, ...] = ()
    #: JSON's `struct`: whether other fields are a fault.
    closed: bool = False
    #: Columns below it that are no struct.
    leaves: int = 1
    constraints: tuple[Constraint, ...] = ()
    #: Whether a value of it, or one in it, can break a constraint.
    is_constrained: bool = False


def struct(children: list[Child], *, closed: bool = False, form: str = "struct", size: int = 0) -> Node:
    """Return the node of an object or a record; of a union, with `form`."""
    arrow = pa.struct([pa.field(child.name, child.node.arrow) for child in children])
    leaves = sum(child.node.leaves for child in children)
    return Node(
        form,
        arrow,
        tuple(children),
        size=size,
        closed=closed,
        leaves=leaves,
        is_constrained=any(child.node.is_constrained for child in children),
    )


def list_of(item: Node, *, nullable: bool = True) -> Node:
    """Return the node of an array."""
    arrow, children = pa.list_(item.arrow), (Child("", item, nullable=nullable),)
    return Node("list", arrow, children, leaves=item.leaves, is_constrained=item.is_constrained)


def map_of(item: Node, *, nullable: bool = True) -> Node:
    """Return the node of a map from strings."""
    arrow, children = pa.map_(pa.string(), item.arrow), (Child("", item, nullable=nullable),)
    return Node("map", arrow, children, leaves=item.leaves + 1, is_constrained=item.is_constrained)


def with_constraints(node: Node, more: Iterable[Constraint]) -> Node:
    """Return a node whose values have to meet these, too."""
    constraints = (*node.constraints, *more)
    return replace(node, constraints=constraints, is_constrained=node.is_constrained or bool(constraints))


def invalid_schema(detail: str) -> Unprocessable:
    """Return the error of a schema that a topic cannot have; `detail` names the schema's field and the remedy."""
    return Unprocessable(f"schema: {detail}", code="invalid_schema", field="schema")


class Growth:
    """Counts a tree's parts while it is made: types that name each other can stand for more than memory holds."""

    def __init__(self) -> None:
        self._parts = 0

    def deeper(self, depth: int, at: str) -> int:
        """Return the depth below `depth`; raise `Unprocessable` if a table cannot have that, or so many parts."""
        self._parts += 1
        if self._parts > _PARTS_MAX:
            raise invalid_schema(f"has too many parts; {TYPED_COLUMNS_MAX} columns are the most that a topic may have")
        if depth >= TYPED_DEPTH_MAX:
            raise invalid_schema(f"{at[:200]} is more than {TYPED_DEPTH_MAX} levels deep; make it flatter, or a string")
        return depth + 1


def check_columns(root: Node) -> Node:
    """Return the node of a whole schema, of which every name can be a column's.

    Raises
    ------
    Unprocessable
        `invalid_schema`: it is no struct, has too many columns, or a name that no table can have.
    """
    if root.form not in ("struct", "union"):
        raise invalid_schema(f"the body is a {root.form}; its columns need an object with named fields: use a record")
    if root.leaves > TYPED_COLUMNS_MAX:
        raise invalid_schema(f"has {root.leaves} columns; {TYPED_COLUMNS_MAX} is the most that a topic may have")
    for at, node in _walk(root, ""):
        if node.form in ("struct", "union"):
            _check_names(node, at)
    return root


def _walk(node: Node, at: str) -> Iterator[tuple[str, Node]]:
    yield at, node
    for child in node.children:
        below = f"{at}.{child.name}" if at and child.name else at or child.name
        yield from _walk(child.node, below)


def _check_names(node: Node, at: str) -> None:
    where = at or "the schema"
    if not node.children:
        raise invalid_schema(f"{where} has no fields, and no column can be empty; give it a field, or leave it out")
    seen: dict[str, str] = {}
    for child in node.children:
        name = child.name
        if not name or not _REFUSED_SIGNS.isdisjoint(name):
            raise invalid_schema(
                f"{where} has a field {name[:100]!r}: a column's name has none of ' ,;{{}}()=', tabs or newlines"
            )
        other = seen.setdefault(name.lower(), name)
        if other != name or sum(sibling.name == name for sibling in node.children) > 1:
            raise invalid_schema(
                f"{where} has fields {other[:100]} and {name[:100]}: tables ignore upper and lower case; rename one"
            )


# The JSON of columns (SPEC TYPE-13).

#: The node of each type of a column that JSON has values for.
SIMPLE: Final[dict[pa.DataType, Node]] = {
    pa.bool_(): Node("boolean", pa.bool_()),
    **{kind: Node("whole", kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind: Node("real", kind, size=1) for kind in (pa.float32(), pa.float64())},
    pa.string(): Node("string", pa.string()),
    pa.binary(): Node("base64", pa.binary()),
    pa.date32(): Node("date", pa.date32()),
    TIMESTAMP: Node("timestamp", TIMESTAMP),
    # Not in tables of topics, but in exports.
    pa.timestamp("us"): Node("local-timestamp", pa.timestamp("us"), size=1),
}
#: What JSON Schema calls a number.
NUMBER: Final = Node("real", pa.float64())
#: Any value, kept as JSON text.
ANY: Final = Node("json", pa.string())


def decimal_of(precision: int, scale: int) -> Node:
    """Return the node of a decimal number."""
    return Node("decimal", pa.decimal128(precision, scale))


def json_node(kind: pa.DataType) -> Node:
    """Return the node of a column's values in JSON."""
    if pa.types.is_struct(kind):
        return struct([Child(field.name, json_node(field.type)) for field in kind], closed=True)
    if pa.types.is_list(kind):
        return list_of(json_node(kind.value_type))
    if pa.types.is_map(kind):
        return map_of(json_node(kind.item_type))
    if pa.types.is_decimal(kind):
        return decimal_of(kind.precision, kind.scale)
    return SIMPLE[kind]
