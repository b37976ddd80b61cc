"""Nodes of JSON's values, and the one that each type of a column has (SPEC TYPE-13)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from deltamq.tables.typed.node import TIMESTAMP, Child, Node, list_of, map_of, struct

#: The node of each type of a column that JSON has values for.
SIMPLE: Final[dict[pa.DataType, Node]] = {
    pa.bool_(): Node("boolean", pa.bool_()),
    **{kind: Node("whole", kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind: Node("real", kind) for kind in (pa.float32(), pa.float64())},
    pa.string(): Node("string", pa.string()),
    pa.binary(): Node("base64", pa.binary()),
    pa.date32(): Node("date", pa.date32()),
    TIMESTAMP: Node("timestamp", TIMESTAMP),
}
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
