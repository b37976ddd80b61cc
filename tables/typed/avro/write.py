"""Values of columns in Avro's encoding (SPEC TYPE-14)."""

from __future__ import annotations

import math
import struct as _struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from deltamq.tables.delta.varints import zigzag
from deltamq.tables.typed.json.value import converter
from deltamq.tables.typed.misfit import Budget, Misfit, Reason, place
from deltamq.tables.typed.node import SIMPLE, Child, Node

#: Appends a value to a body; raises `Misfit`.
Write = Callable[[Any, bytearray], None]


def avro_writer(node: Node) -> Write:
    """Return the function that writes the values of a node."""
    if node.form in _WITH_NODE:
        return _WITH_NODE[node.form](node)
    return _WRITERS[node.form]


def _written(write: Write, value: Any, body: bytearray, part: str) -> None:
    try:
        write(value, body)
    except Misfit as misfit:
        misfit.within(part)
        raise


def _not_null(write: Write) -> Write:
    def checked(value: Any, body: bytearray) -> None:
        if value is None:
            raise Misfit(Reason.IS_NULL)
        write(value, body)

    return checked


def _struct_writer(node: Node) -> Write:
    fields = [(child.name, _child_writer(child)) for child in node.children]

    def write(value: dict[str, Any], body: bytearray) -> None:
        for name, inner in fields:
            _written(inner, value[name], body, name)

    return write


def _child_writer(child: Child) -> Write:
    inner = avro_writer(child.node)
    is_null_union = child.node.form == "union" and child.node.size >= 0
    return inner if child.node.form == "nullable" or is_null_union else _not_null(inner)


def _nullable_writer(node: Node) -> Write:
    inner, null = avro_writer(node.children[0].node), zigzag(node.size)
    other = zigzag(1 - node.size if node.size >= 0 else 0)

    def write(value: Any, body: bytearray) -> None:
        if value is not None:
            body += other
            inner(value, body)
        elif node.size >= 0:
            body += null
        else:
            raise Misfit(Reason.IS_NULL)

    return write


def _union_writer(node: Node) -> Write:
    null = node.size
    branches = [
        (child.name, zigzag(number + (0 <= null <= number)), avro_writer(child.node))
        for number, child in enumerate(node.children)
    ]

    def write(value: dict[str, Any] | None, body: bytearray) -> None:
        if value is None:
            body += zigzag(null)
            return
        given = [branch for branch in branches if value[branch[0]] is not None]
        if len(given) != 1:
            raise Misfit(Reason.BRANCH, f"is a union: give one of {', '.join(name for name, _, _ in branches)[:120]}")
        name, number, inner = given[0]
        body += number
        _written(inner, value[name], body, name)

    return write


def _list_writer(node: Node) -> Write:
    inner = _child_writer(node.children[0])

    def write(value: list[Any], body: bytearray) -> None:
        if value:
            body += zigzag(len(value))
            for position, item in enumerate(value):
                _written(inner, item, body, place(position))
        body.append(0)

    return write


def _map_writer(node: Node) -> Write:
    inner = _child_writer(node.children[0])

    def write(value: list[tuple[str, Any]], body: bytearray) -> None:
        if value:
            body += zigzag(len(value))
            for name, item in value:
                _write_string(name, body)
                _written(inner, item, body, place(name))
        body.append(0)

    return write


def _fixed_writer(node: Node) -> Write:
    def write(value: bytes, body: bytearray) -> None:
        if len(value) != node.size:
            raise Misfit(Reason.RANGE, f"does not have {node.size} bytes")
        body += value

    return write


def _enum_writer(node: Node) -> Write:
    numbers = {symbol: zigzag(number) for number, symbol in enumerate(node.symbols)}

    def write(value: str, body: bytearray) -> None:
        if value not in numbers:
            raise Misfit(Reason.RANGE, "is not one of the enum's symbols")
        body += numbers[value]

    return write


def _decimal_writer(node: Node) -> Write:
    def write(value: Any, body: bytearray) -> None:
        sign, digits, _ = value.as_tuple()
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        size = node.size or (unscaled + (unscaled < 0)).bit_length() // 8 + 1
        try:
            data = unscaled.to_bytes(size, "big", signed=True)
        except OverflowError:
            raise Misfit(Reason.RANGE, f"has no place in {size} bytes") from None
        if not node.size:
            body += zigzag(size)
        body += data

    return write


def _whole_writer(unit: int, bits: int, name: str) -> Write:
    def write(value: int, body: bytearray) -> None:
        number, rest = divmod(value, unit)
        if rest or not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise Misfit(Reason.RANGE, f"is no {name}")
        body += zigzag(number)

    return write


def _write_string(value: str, body: bytearray) -> None:
    _write_bytes(value.encode(), body)


def _write_bytes(value: bytes, body: bytearray) -> None:
    body += zigzag(len(value))
    body += value


def _write_boolean(value: bool, body: bytearray) -> None:
    body.append(value)


def as_float(value: float) -> float:
    """Return the float of 32 bits that a double stands for; raise `Misfit` if it has more digits than that keeps.

    A column has doubles: 0.1 fits, since the float next to it is 0.1 in as many digits.
    """
    return float(_float(Decimal(repr(value)), Budget(0))) if math.isfinite(value) else value


def _write_float(value: float, body: bytearray) -> None:
    body += _struct.pack("<f", as_float(value))


def _write_double(value: float, body: bytearray) -> None:
    body += _struct.pack("<d", value)


def _write_uint32(value: int, body: bytearray) -> None:
    if not 0 <= value < 1 << 32:
        raise Misfit(Reason.RANGE, "is no whole number of 32 bits without a sign")
    body += value.to_bytes(4, "little")


_WITH_NODE: Final[dict[str, Callable[[Node], Write]]] = {
    "struct": _struct_writer,
    "union": _union_writer,
    "nullable": _nullable_writer,
    "list": _list_writer,
    "map": _map_writer,
    "fixed": _fixed_writer,
    "enum": _enum_writer,
    "decimal": _decimal_writer,
}
_float: Final = converter(SIMPLE[pa.float32()])
_millis: Final = _whole_writer(1_000, 64, "time in whole milliseconds")
_long: Final = _whole_writer(1, 64, "whole number of 64 bits")
_WRITERS: Final[dict[str, Write]] = {
    "boolean": _write_boolean,
    "int": _whole_writer(1, 32, "whole number of 32 bits"),
    "long": _long,
    "float": _write_float,
    "double": _write_double,
    "bytes": _write_bytes,
    "string": _write_string,
    "uint32": _write_uint32,
    "date": _whole_writer(1, 32, "day"),
    "time-millis": _whole_writer(1_000, 32, "time of a day in whole milliseconds"),
    "time-micros": _long,
    "timestamp-millis": _millis,
    "timestamp-micros": _long,
    "local-timestamp-millis": _millis,
    "local-timestamp-micros": _long,
}
