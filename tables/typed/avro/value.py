"""Avro's encoding as values of columns and back, one body at a time: the plain twin of the compiled decoder (TYPE-14).

A body is read with the schema that wrote it, to its last byte. Whatever the bytes say, nothing is read beyond them, and
what is made is bounded by their number.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final

from deltamq.tables.typed.json.value import END_US, FIRST_DAY, FIRST_US, LAST_DAY
from deltamq.tables.typed.misfit import Budget, Misfit, Reason, place
from deltamq.tables.typed.node import Node

_DAY_US: Final = 86_400_000_000
_VARINT_BYTES_MAX: Final = 10
_WIDE: Final = Context(prec=60)


class Input:
    """The bytes of one body, and where reading is."""

    def __init__(self, data: bytes, at: int, budget: Budget) -> None:
        self.data = data
        self.at = at
        self.budget = budget

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if count > len(self.data) - self.at:
            raise Misfit(Reason.TRUNCATED)
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        """Return a number of 64 bits without a sign."""
        value = 0
        for position in range(_VARINT_BYTES_MAX):
            if self.at >= len(self.data):
                raise Misfit(Reason.TRUNCATED)
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                if value >> 64:
                    break
                return value
        raise Misfit(Reason.LONG_NUMBER)

    def long(self) -> int:
        """Return a number of 64 bits."""
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def size(self) -> int:
        """Return the number of bytes that follow."""
        size = self.long()
        if size < 0:
            raise Misfit(Reason.LENGTH)
        return size


#: Reads a value in Arrow's form; raises `Misfit`, some of which end the body.
Read = Callable[[Input], Any]


def avro_reader(node: Node) -> Read:
    """Return the function that reads the values of a node."""
    if node.form in _WITH_NODE:
        return _WITH_NODE[node.form](node)
    return _READERS[node.form]


def _read_struct(node: Node) -> Read:
    fields = [(child.name, avro_reader(child.node)) for child in node.children]

    def read(source: Input) -> dict[str, Any]:
        return {name: _field(inner, source, name) for name, inner in fields}

    return read


def _field(read: Read, source: Input, name: str) -> Any:
    start = source.at
    return source.budget.field(name, lambda: source.data[start : source.at], read, source)


def _read_union(node: Node) -> Read:
    null, branches = node.size, [(child.name, avro_reader(child.node)) for child in node.children]

    def read(source: Input) -> dict[str, Any] | None:
        number = source.long()
        if number == null:
            return None
        number -= 0 <= null < number
        if not 0 <= number < len(branches):
            raise Misfit(Reason.BRANCH)
        name, inner = branches[number]
        return {name: _field(inner, source, name)}

    return read


def _read_nullable(node: Node) -> Read:
    null, inner = node.size, avro_reader(node.children[0].node)

    def read(source: Input) -> Any:
        number = source.long()
        if number == null:
            return None
        if number != (1 - null if null >= 0 else 0):
            raise Misfit(Reason.BRANCH)
        return inner(source)

    return read


def _read_list(node: Node) -> Read:
    inner = avro_reader(node.children[0].node)

    def read(source: Input) -> list[Any]:
        values: list[Any] = []
        _read_elements(source, node, lambda: values.append(source.budget.within(place(len(values)), inner, source)))
        return values

    return read


def _read_map(node: Node) -> Read:
    inner = avro_reader(node.children[0].node)

    def read(source: Input) -> list[tuple[str, Any]]:
        values: dict[str, Any] = {}
        repeated: list[str] = []

        def pair() -> None:
            name = _read_string(source)
            if name in values:
                repeated.append(name)
            values[name] = source.budget.within(place(name), inner, source)

        _read_elements(source, node, pair)
        for name in repeated:
            misfit = Misfit(Reason.REPEATED)
            misfit.within(place(name))
            raise misfit
        return list(values.items())

    return read


def _read_elements(source: Input, node: Node, element: Callable[[], None]) -> None:
    """Read blocks of elements to their end; a fault that does not break the body comes after the last one."""
    fault: Misfit | None = None
    while count := source.long():
        if count < 0:
            source.size()
            count = -count
        if count > len(source.data) - source.at:
            raise Misfit(Reason.TRUNCATED)
        source.budget.take(count, node.leaves)
        for _ in range(count):
            try:
                element()
            except Misfit as misfit:
                if source.budget.rest is None or misfit.breaks:
                    raise
                fault = fault or misfit
    if fault is not None:
        raise fault


def _read_boolean(source: Input) -> bool:
    [byte] = source.take(1)
    if byte > 1:
        raise Misfit(Reason.NOT_BOOLEAN)
    return byte == 1


def _read_int(source: Input) -> int:
    value = source.long()
    if not -(2**31) <= value < 2**31:
        raise Misfit(Reason.RANGE)
    return value


def _read_float(source: Input) -> float:
    return float(_struct.unpack("<f", source.take(4))[0])


def _read_double(source: Input) -> float:
    return float(_struct.unpack("<d", source.take(8))[0])


def _read_bytes(source: Input) -> bytes:
    return source.take(source.size())


def _read_string(source: Input) -> str:
    try:
        return source.take(source.size()).decode()
    except UnicodeDecodeError:
        raise Misfit(Reason.NOT_UTF8) from None


def _read_fixed(node: Node) -> Read:
    return lambda source: source.take(node.size)


def _read_enum(node: Node) -> Read:
    symbols = node.symbols

    def read(source: Input) -> str:
        number = source.long()
        if not 0 <= number < len(symbols):
            raise Misfit(Reason.SYMBOL)
        return symbols[number]

    return read


def _read_decimal(node: Node) -> Read:
    scale, bound = node.arrow.scale, 10**node.arrow.precision

    def read(source: Input) -> Decimal:
        data = source.take(node.size or source.size())
        unscaled = int.from_bytes(data, "big", signed=True) if len(data) <= 64 else bound
        if not data:
            raise Misfit(Reason.NO_DIGITS)
        if not -bound < unscaled < bound:
            raise Misfit(Reason.RANGE)
        return Decimal(unscaled).scaleb(-scale, _WIDE)

    return read


def _read_ranged(first: int, end: int, unit: int, name: str, *, bits: int = 64) -> Read:
    def read(source: Input) -> int:
        value = (_read_int(source) if bits == 32 else source.long()) * unit
        if not first <= value < end:
            raise Misfit(Reason.RANGE)
        return value

    return read


def _read_uint32(source: Input) -> int:
    return int.from_bytes(source.take(4), "little")


_WITH_NODE: Final[dict[str, Callable[[Node], Read]]] = {
    "struct": _read_struct,
    "union": _read_union,
    "nullable": _read_nullable,
    "list": _read_list,
    "map": _read_map,
    "fixed": _read_fixed,
    "enum": _read_enum,
    "decimal": _read_decimal,
}
_READERS: Final[dict[str, Read]] = {
    "boolean": _read_boolean,
    "int": _read_int,
    "long": Input.long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
    "uint32": _read_uint32,
    "date": _read_ranged(FIRST_DAY, LAST_DAY + 1, 1, "day of the years 1 to 9999", bits=32),
    "time-millis": _read_ranged(0, _DAY_US, 1_000, "time of a day", bits=32),
    "time-micros": _read_ranged(0, _DAY_US, 1, "time of a day"),
    "timestamp-millis": _read_ranged(FIRST_US, END_US, 1_000, "time of the years 1 to 9999"),
    "timestamp-micros": _read_ranged(FIRST_US, END_US, 1, "time of the years 1 to 9999"),
    "local-timestamp-millis": _read_ranged(FIRST_US, END_US, 1_000, "time of the years 1 to 9999"),
    "local-timestamp-micros": _read_ranged(FIRST_US, END_US, 1, "time of the years 1 to 9999"),
}
