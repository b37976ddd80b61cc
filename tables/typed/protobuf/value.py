"""Protobuf's encoding as values of columns, one body at a time: the plain twin of the compiled decoder (TYPE-18).

As every parser of Protobuf does, it takes the last of several values of a field, joins several parts of a message, and
passes over fields that the schema does not have. A value that the column does not hold exactly is a fault.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from deltamq.tables.typed.avro.value import Input
from deltamq.tables.typed.json.value import END_US, FIRST_US
from deltamq.tables.typed.misfit import Budget, Misfit, Reason, place
from deltamq.tables.typed.node import Child, Node

#: Kinds of values on the wire.
VARINT: Final = 0
EIGHT: Final = 1
BYTES: Final = 2
GROUP: Final = 3
END_GROUP: Final = 4
FOUR: Final = 5
_GROUPS_MAX: Final = 100
#: The kind of each type; any other is `BYTES`.
WIRE: Final = {
    **dict.fromkeys(("bool", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "enum"), VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), EIGHT),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), FOUR),
}
#: The first value of each type of whole numbers, and the one behind its last.
RANGES: Final = {
    **dict.fromkeys(("int32", "sint32", "sfixed32", "enum"), (-(2**31), 2**31)),
    **dict.fromkeys(("uint32", "fixed32"), (0, 2**32)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (-(2**63), 2**63)),
    **dict.fromkeys(("uint64", "fixed64"), (0, 2**64)),
}

#: Reads a value in Arrow's form from its bytes, or from a number of its kind; raises `Misfit`.
Read = Callable[[Any, Budget], Any]


class _Field(NamedTuple):
    name: str
    #: On the wire; of a list, what its elements have.
    kind: int
    read: Read
    child: Child
    #: What a field without presence has that is not there.
    default: Any


def message_reader(node: Node) -> Callable[[bytes, Budget], dict[str, Any]]:
    """Return the function that reads a message."""
    fields = {child.number: _field(child) for child in node.children}
    groups = {
        child.number: [other.number for other in node.children if child.group and other.group == child.group]
        for child in node.children
    }

    def read(data: bytes, budget: Budget) -> dict[str, Any]:
        parts: dict[int, list[Any]] = {}
        for number, kind, value in _wire_values(data):
            field = fields.get(number)
            if field is None or kind not in (field.kind, BYTES if field.child.node.form == "list" else field.kind):
                continue
            for other in groups[number]:
                if other != number:
                    parts.pop(other, None)
            parts.setdefault(number, []).append((kind, value))
        values = {}
        for number, field in fields.items():
            some = parts.get(number, [])
            values[field.name] = budget.field(field.name, partial(_sent, some), _part, field, some, budget)
        return values

    return read


def _wire_values(data: bytes) -> list[tuple[int, int, Any]]:
    source, values = Input(data, 0, Budget(0)), []
    while source.at < len(data):
        tag = source.varint()
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise Misfit(Reason.NO_TAG)
        values.append((number, kind, _wire_value(source, number, kind, 0)))
    return values


def _wire_value(source: Input, number: int, kind: int, depth: int) -> Any:
    if kind == VARINT:
        return source.varint()
    if kind in (EIGHT, FOUR):
        return source.take(8 if kind == EIGHT else 4)
    if kind == BYTES:
        return source.take(source.varint())
    if kind != GROUP or depth == _GROUPS_MAX:
        raise Misfit(Reason.NO_TAG)
    while (tag := source.varint()) != number << 3 | END_GROUP:
        if not 0 < tag >> 3 < 1 << 29:
            raise Misfit(Reason.NO_TAG)
        _wire_value(source, tag >> 3, tag & 7, depth + 1)
    return None


def _field(child: Child) -> _Field:
    node = child.node
    if node.form == "list":
        [item] = node.children
        return _Field(child.name, WIRE.get(item.node.form, BYTES), _value_reader(item.node), child, [])
    if node.form == "map":
        return _Field(child.name, BYTES, _entry_reader(node), child, [])
    default = None if child.nullable else default_of(node)
    return _Field(child.name, WIRE.get(node.form, BYTES), _value_reader(node), child, default)


def default_of(node: Node) -> Any:
    """Return what a scalar without presence has that is not there."""
    if node.form == "enum":
        return node.symbols[node.numbers.index(0)] if 0 in node.numbers else "0"
    if node.form in ("uint64", "fixed64"):
        return Decimal(0)
    return {"bool": False, "string": "", "bytes": b"", "float": 0.0, "double": 0.0}.get(node.form, 0)


def _part(field: _Field, parts: list[tuple[int, Any]], budget: Budget) -> Any:
    """The value of a field from what the message has of it."""
    form = field.child.node.form
    if form in ("list", "map"):
        return (_list if form == "list" else _map)(field, parts, budget)
    if parts:
        return field.read(b"".join(part for _, part in parts) if form in _MESSAGES else parts[-1][1], budget)
    if field.child.required:
        raise Misfit(Reason.MISSING)
    return field.default


def _sent(parts: list[tuple[int, Any]]) -> Any:
    return [part for _, part in parts] if len(parts) > 1 else parts[0][1] if parts else None


def _list(field: _Field, parts: list[tuple[int, Any]], budget: Budget) -> list[Any]:
    values: list[Any] = []
    for kind, part in parts:
        for value in _unpacked(part, field.kind) if kind != field.kind else [part]:
            budget.take(1, field.child.node.leaves)
            values.append(budget.within(place(len(values)), field.read, value, budget))
    return values


def _unpacked(data: bytes, kind: int) -> list[Any]:
    source, values = Input(data, 0, Budget(0)), []
    while source.at < len(data):
        values.append(_wire_value(source, 0, kind, 0))
    return values


def _map(field: _Field, parts: list[tuple[int, Any]], budget: Budget) -> list[tuple[str, Any]]:
    values: dict[str, Any] = {}
    for _, part in parts:
        budget.take(1, field.child.node.leaves)
        key, value = field.read(part, budget)
        values[key] = value
    return list(values.items())


def _entry_reader(node: Node) -> Read:
    value, key = node.children
    value_of, key_of = _field(value), _field(key)

    def read(data: bytes, budget: Budget) -> tuple[str, Any]:
        keys, values = [], []
        for number, kind, part in _wire_values(data):
            if number == 1 and kind == key_of.kind:
                keys.append(part)
            elif number == 2 and kind == value_of.kind:
                values.append(part)
        name = key_of.read(keys[-1], budget) if keys else default_of(key.node)
        text = name if isinstance(name, str) else str(name).lower()
        whole: Any = b"".join(values) if value.node.form in _MESSAGES else values[-1] if values else None
        if whole is None:
            return text, default_of(value.node)
        return text, budget.within(place(text), value_of.read, whole, budget)

    return read


_MESSAGES: Final = frozenset(("struct", "timestamp", "wrapper"))


def _value_reader(node: Node) -> Read:
    if node.form == "struct":
        return message_reader(node)
    if node.form == "wrapper":
        return _wrapper_reader(node)
    if node.form in ("float", "double"):
        unpack = struct.Struct("<f" if node.form == "float" else "<d").unpack
        return lambda data, _budget: float(unpack(data)[0])
    if node.form == "enum":
        return _enum_reader(node)
    if node.form in _READERS:
        return _READERS[node.form]
    return _whole_reader(node.form)


def _wrapper_reader(node: Node) -> Read:
    [child] = node.children
    kind, read_value = WIRE.get(child.node.form, BYTES), _value_reader(child.node)

    def read(data: bytes, budget: Budget) -> Any:
        values = [value for number, of, value in _wire_values(data) if number == 1 and of == kind]
        return read_value(values[-1], budget) if values else default_of(child.node)

    return read


def _whole_reader(form: str) -> Read:
    is_fixed, is_signed = "fixed" in form, not form.startswith(("u", "fixed"))
    low, end = RANGES[form]
    is_wide = form in ("uint64", "fixed64")

    def read(raw: Any, _budget: Budget) -> Any:
        if is_fixed:
            value = int.from_bytes(raw, "little", signed=is_signed)
        elif form.startswith("sint"):
            value = raw >> 1 ^ -(raw & 1)
        else:
            value = raw - (1 << 64) if is_signed and raw >> 63 else raw
        if not low <= value < end:
            raise Misfit(Reason.RANGE)
        return Decimal(value) if is_wide else value

    return read


def _enum_reader(node: Node) -> Read:
    names, whole = dict(zip(node.numbers, node.symbols, strict=True)), _whole_reader("enum")

    def read(raw: int, budget: Budget) -> str:
        number = whole(raw, budget)
        return names.get(number, str(number))

    return read


def _read_bool(raw: int, _budget: Budget) -> bool:
    if raw > 1:
        raise Misfit(Reason.NOT_BOOLEAN)
    return raw == 1


def _read_string(data: bytes, _budget: Budget) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Misfit(Reason.NOT_UTF8) from None


def _read_bytes(data: bytes, _budget: Budget) -> bytes:
    return data


def _read_timestamp(data: bytes, budget: Budget) -> int:
    seconds = nanos = 0
    for number, kind, value in _wire_values(data):
        if number == 1 and kind == VARINT:
            seconds = _whole_reader("int64")(value, budget)
        elif number == 2 and kind == VARINT:
            nanos = _whole_reader("int32")(value, budget)
    us = seconds * 1_000_000 + nanos // 1_000
    if not 0 <= nanos < 1_000_000_000 or nanos % 1_000 or not FIRST_US <= us < END_US:
        raise Misfit(Reason.RANGE)
    return us


_READERS: Final[dict[str, Read]] = {
    "bool": _read_bool,
    "string": _read_string,
    "bytes": _read_bytes,
    "timestamp": _read_timestamp,
}
