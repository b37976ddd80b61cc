"""A message of Protobuf as a tree of nodes (SPEC TYPE-18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from deltamq.mq.schemas.proto_file import built, message_of
from deltamq.tables.typed.node import TIMESTAMP, Child, Growth, Node, check_columns, invalid_schema, list_of, struct

_UINT64: Final = pa.decimal128(20, 0)
#: The form and the column of each type without parts.
SCALARS: Final[dict[str, pa.DataType]] = {
    "bool": pa.bool_(),
    **dict.fromkeys(("int32", "int64", "uint32", "sint32", "sint64", "fixed32", "sfixed32", "sfixed64"), pa.int64()),
    "uint64": _UINT64,
    "fixed64": _UINT64,
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_NAMES: Final = {getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name for name in SCALARS}
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def parse_protobuf(text: str, references: Mapping[str, str], message: str) -> Node:
    """Return the tree of a message, the first one if `message` is empty; `references` are imported texts by name.

    Raises
    ------
    Unprocessable
        `invalid_schema`: the text is no file of Protobuf, has no such message, or its values have no columns.
    """
    growth = Growth()
    return check_columns(_message(message_of(built(text, references), message), "", 0, (), growth))


def message_indexes(text: str, references: Mapping[str, str], message: str) -> tuple[int, ...]:
    """Return where a message is in its file, from the outside in, as Confluent's header names it."""
    descriptor = message_of(built(text, references), message)
    indexes = []
    while descriptor is not None:
        outer = descriptor.containing_type
        siblings = descriptor.file.message_types_by_name.values() if outer is None else outer.nested_types
        indexes.append([one.full_name for one in siblings].index(descriptor.full_name))
        descriptor = outer
    return tuple(indexes[::-1])


def _message(descriptor: Any, at: str, depth: int, seen: tuple[str, ...], growth: Growth) -> Node:
    name = descriptor.full_name
    depth = growth.deeper(depth, at)
    if name in seen:
        raise invalid_schema(f"{at} contains itself ({name[:100]}); use bytes or a string in its place")
    children = []
    for field in descriptor.fields:
        path = f"{at}.{field.name}" if at else field.name
        node = _field(field, path, depth, (*seen, name), growth)
        oneof = field.containing_oneof
        children.append(
            Child(
                field.name,
                node,
                required=field.is_required,
                nullable=field.has_presence,
                number=field.number,
                # An optional field of proto3 is in a group of its own.
                group=0 if oneof is None or len(oneof.fields) == 1 else oneof.index + 1,
            )
        )
    if not children:
        raise invalid_schema(f"{at or name} has no fields, and no column can be empty; give it a field")
    return struct(children)


def _field(field: Any, at: str, depth: int, seen: tuple[str, ...], growth: Growth) -> Node:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        item = _value(value, f"{at}[]", depth, seen, growth)
        name = Child("key", _value(key, at, depth, seen, growth), number=1)
        children = Child("", item, nullable=False, number=2), name
        return Node("map", pa.map_(pa.string(), item.arrow), children, leaves=item.leaves + 1)
    node = _value(field, f"{at}[]" if field.is_repeated else at, depth, seen, growth)
    if field.is_repeated:
        listed = list_of(node, nullable=False)
        return Node("list", listed.arrow, listed.children, size=field.is_packed, leaves=listed.leaves)
    return node


def _value(field: Any, at: str, depth: int, seen: tuple[str, ...], growth: Growth) -> Node:
    growth.deeper(depth, at)
    if field.type in _NAMES:
        name = _NAMES[field.type]
        return Node(name, SCALARS[name])
    if field.type == FieldDescriptor.TYPE_ENUM:
        names: dict[int, str] = {}
        for value in field.enum_type.values:
            names.setdefault(value.number, value.name)
        return Node("enum", pa.string(), symbols=tuple(names.values()), numbers=tuple(names))
    if field.type == FieldDescriptor.TYPE_GROUP:
        raise invalid_schema(f"{at} is a group of proto2; use a message")
    message = field.message_type
    if message.full_name == "google.protobuf.Timestamp":
        return Node("timestamp", TIMESTAMP)
    if message.full_name in _WRAPPERS:
        inner = _value(message.fields_by_name["value"], at, depth, seen, growth)
        return Node("wrapper", inner.arrow, (Child("", inner, number=1),))
    return _message(message, at, depth, seen, growth)
