"""Values of columns in Protobuf's encoding (SPEC TYPE-18): fields in the order of the schema, without defaults."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from deltamq.tables.delta.varints import varint, zigzag
from deltamq.tables.typed.avro.write import as_float
from deltamq.tables.typed.misfit import Misfit, Reason, place
from deltamq.tables.typed.node import Child, Node
from deltamq.tables.typed.protobuf.value import BYTES, RANGES, WIRE, default_of

#: Of a number of 64 bits, with its sign.
_DIGITS_MAX: Final = 20
#: Returns the bytes of a value behind its tag; raises `Misfit`.
Write = Callable[[Any], bytes]


def protobuf_writer(node: Node) -> Callable[[dict[str, Any]], bytes]:
    """Return the function that writes a message."""
    fields = [(child, _field(child)) for child in node.children]

    def write(value: dict[str, Any]) -> bytes:
        given: dict[int, str] = {}
        pieces = []
        for child, inner in fields:
            item = value[child.name]
            if item is not None and child.group and given.setdefault(child.group, child.name) != child.name:
                misfit = Misfit(Reason.BRANCH, f"is in a oneof with {given[child.group][:100]}: give one of them")
                misfit.within(child.name)
                raise misfit
            pieces.append(_written(inner, item, child.name))
        return b"".join(pieces)

    return write


def _written(write: Write, value: Any, part: str) -> bytes:
    try:
        return write(value)
    except Misfit as misfit:
        misfit.within(part)
        raise


def _tag(number: int, node: Node) -> bytes:
    return varint(number << 3 | WIRE.get(node.form, BYTES))


def _field(child: Child) -> Write:
    node = child.node
    if node.form == "list":
        return _list(child)
    if node.form == "map":
        return _map(child)
    tag, inner = _tag(child.number, node), _value(node)
    default = None if child.nullable else inner(default_of(node))

    def write(value: Any) -> bytes:
        if value is None:
            if child.required:
                raise Misfit(Reason.IS_NULL)
            return b""
        data = inner(value)
        return b"" if data == default else tag + data

    return write


def _list(child: Child) -> Write:
    [item] = child.node.children
    inner = _value(item.node)
    is_packed = bool(child.node.size)
    tag = varint(child.number << 3 | BYTES) if is_packed else _tag(child.number, item.node)

    def write(value: Any) -> bytes:
        items = [_written(_not_null(inner), one, place(n)) for n, one in enumerate(value or ())]
        if not is_packed:
            return b"".join(tag + data for data in items)
        return tag + _sized(b"".join(items)) if items else b""

    return write


def _map(child: Child) -> Write:
    value, key = child.node.children
    tag = varint(child.number << 3 | BYTES)
    key_tag, write_key = _tag(1, key.node), _key(key.node)
    value_tag, write_value = _tag(2, value.node), _value(value.node)

    def write(pairs: Any) -> bytes:
        entries = []
        for name, item in pairs or ():
            raw = key_tag + _written(write_key, name, place(name))
            entries.append(tag + _sized(raw + value_tag + _written(_not_null(write_value), item, place(name))))
        return b"".join(entries)

    return write


def _key(node: Node) -> Write:
    """Keys are texts in the column."""
    inner = _value(node)
    if node.form == "string":
        return inner

    def write(name: str) -> bytes:
        if node.form == "bool" and name in ("true", "false"):
            return inner(name == "true")
        if node.form == "bool" or not _is_whole(name):
            raise Misfit(Reason.NOT_BOOLEAN if node.form == "bool" else Reason.NOT_WHOLE)
        return inner(int(name))

    return write


def _is_whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal() and len(text) <= _DIGITS_MAX


def _not_null(write: Write) -> Write:
    def checked(value: Any) -> bytes:
        if value is None:
            raise Misfit(Reason.IS_NULL)
        return write(value)

    return checked


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def _value(node: Node) -> Write:
    if node.form == "struct":
        message = protobuf_writer(node)
        return lambda value: _sized(message(value))
    if node.form == "wrapper":
        field = _field(Child("", node.children[0].node, nullable=False, number=1))
        return lambda value: _sized(field(value))
    if node.form == "enum":
        return _enum(node)
    return _WRITERS.get(node.form) or _whole(node.form)


def _enum(node: Node) -> Write:
    numbers, whole = dict(zip(node.symbols, node.numbers, strict=True)), _whole("enum")

    def write(value: str) -> bytes:
        number = numbers.get(value)
        if number is None:
            if not _is_whole(value):
                raise Misfit(Reason.SYMBOL)
            number = int(value)
        return whole(number)

    return write


def _whole(form: str) -> Write:
    low, end = RANGES[form]

    def write(value: Any) -> bytes:
        number = int(value)
        if not low <= number < end:
            raise Misfit(Reason.RANGE)
        if "fixed" in form:
            return number.to_bytes(8 if form.endswith("64") else 4, "little", signed=form.startswith("s"))
        return zigzag(number) if form.startswith("sint") else varint(number & (1 << 64) - 1)

    return write


def _timestamp(value: int) -> bytes:
    seconds, us = divmod(value, 1_000_000)
    first = b"\x08" + varint(seconds & (1 << 64) - 1) if seconds else b""
    return _sized(first + (b"\x10" + varint(us * 1_000) if us else b""))


_WRITERS: Final[dict[str, Write]] = {
    "bool": lambda value: b"\1" if value else b"\0",
    "float": lambda value: struct.pack("<f", as_float(value)),
    "double": struct.Struct("<d").pack,
    "string": lambda value: _sized(value.encode()),
    "bytes": _sized,
    "timestamp": _timestamp,
}
