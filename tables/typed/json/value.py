"""JSON as values of columns, one body at a time: the plain twin of the compiled decoder (SPEC TYPE-13).

A value is kept exactly, or it does not fit. Numbers are compared as they were sent: a double must give the sent digits
again, 1.0 is a whole number, and 2^63 is none of 64 bits.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable
from datetime import date
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import Any, Final

import pyarrow as pa

from deltamq.tables.typed.misfit import Budget, Misfit, Reason, place, senders_name
from deltamq.tables.typed.node import Child, Node

#: No finite double has more significant digits than 767, so a number with more digits than this is no double.
_DIGITS_MAX: Final = 800
_EXACT: Final = Context(prec=_DIGITS_MAX, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact, InvalidOperation])
_ROUNDING: Final = Context(
    prec=2 * _DIGITS_MAX, rounding=ROUND_HALF_EVEN, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation]
)
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.(\d+))?(Z|z|[+-]\d{2}:\d{2})?", re.ASCII
)
_EPOCH: Final = date(1970, 1, 1)
_DAY_US: Final = 86_400_000_000
#: Days and microseconds from 1970 on that a date and a timestamp may have: the years 1 to 9999.
FIRST_DAY: Final = (date(1, 1, 1) - _EPOCH).days
LAST_DAY: Final = (date(9999, 12, 31) - _EPOCH).days
FIRST_US: Final = FIRST_DAY * _DAY_US
END_US: Final = (LAST_DAY + 1) * _DAY_US
_SPACE: Final = " \t\n\r"
_ABSENT: Final = object()


class _Twice(dict[str, Any]):
    """An object in which names are repeated: it is unknown which value was meant."""

    names: frozenset[str] = frozenset()


class _TooFar:
    """A number beyond the range of all types."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


#: Returns a value that is not null in Arrow's form; raises `Misfit`.
Convert = Callable[[Any, Budget], Any]


# Reading JSON.


def _number(text: str) -> Decimal | _TooFar:
    try:
        return Decimal(text)
    except InvalidOperation:
        return _TooFar(text)


def _constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) == len(pairs):
        return fields
    times = Counter(name for name, _ in pairs)
    repeated = _Twice(fields)
    repeated.names = frozenset(name for name, count in times.items() if count > 1)
    return repeated


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_int=_number, parse_constant=_constant
)


def parsed(body: bytes) -> Any:
    """Return the JSON of a body, with numbers as they were sent; raise `Misfit`: `not_text` or `not_json`."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Misfit(Reason.NOT_UTF8) from None
    try:
        value, end = _decoder.raw_decode(text, len(text) - len(text.lstrip(_SPACE)))
    except (ValueError, RecursionError):
        raise Misfit(Reason.NOT_JSON) from None
    if text[end:].strip(_SPACE):
        raise Misfit(Reason.MORE_JSON)
    return value


def text_of(value: Any) -> str:
    """Return a parsed value as JSON again; raise `Misfit` if JSON does not say what it is."""
    if isinstance(value, dict):
        for name in _repeated(value):
            raise _repeats(name)
        return "{" + ",".join(f"{text_of(name)}:{text_of(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, Decimal | _TooFar):
        return str(value)
    if isinstance(value, str) and not _is_text(value):
        raise Misfit(Reason.SURROGATE)
    return json.dumps(value, ensure_ascii=False)


# Types.


def converter(node: Node) -> Convert:
    """Return the conversion of parsed JSON to the values of a node's column."""
    if node.form in ("whole", "decimal"):
        return {"whole": _whole, "decimal": _decimal}[node.form](node.arrow)
    if node.form in ("real", "struct", "list", "map"):
        return {"real": _real, "struct": _struct, "list": _list, "map": _map}[node.form](node)
    return _SIMPLE[node.form]


def _struct(node: Node) -> Convert:
    fields = [(child.name, converter(child.node), child) for child in node.children]
    names = {child.name for child in node.children}

    def convert(value: Any, budget: Budget) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Misfit(Reason.NOT_OBJECT)
        if node.closed and value.keys() - names:
            for name, item in value.items():
                if name not in names:
                    budget.field(senders_name(name), partial(_sent, item), _unknown)
        converted: dict[str, Any] = {}
        repeated = _repeated(value)
        for name, inner, child in fields:
            item = value.get(name, _ABSENT)
            is_null = (item is None and child.nullable) or (item is _ABSENT and not child.required)
            if is_null and name not in repeated:
                continue
            sent = partial(_sent, item)
            converted[name] = budget.field(name, sent, _field, inner, item, budget, name in repeated)
        return converted

    return convert


def _sent(item: Any) -> Any:
    return None if item is _ABSENT else item


def _field(convert: Convert, item: Any, budget: Budget, repeats: bool) -> Any:
    if repeats:
        raise Misfit(Reason.REPEATED)
    if item is _ABSENT:
        raise Misfit(Reason.MISSING)
    return _present(convert, item, budget)


def _present(convert: Convert, item: Any, budget: Budget) -> Any:
    if item is None:
        raise Misfit(Reason.IS_NULL)
    return convert(item, budget)


def _unknown() -> None:
    raise Misfit(Reason.UNKNOWN_FIELD)


def _element(convert: Convert, child: Child, item: Any, budget: Budget, part: str) -> Any:
    """Convert an element; a fault is one of the list or map as a whole, so that no element changes its place."""
    return None if item is None and child.nullable else budget.within(part, _present, convert, item, budget)


def _list(node: Node) -> Convert:
    [child] = node.children
    inner = converter(child.node)

    def convert(value: Any, budget: Budget) -> list[Any]:
        if not isinstance(value, list):
            raise Misfit(Reason.NOT_ARRAY)
        budget.take(len(value), node.leaves)
        return [_element(inner, child, item, budget, place(n)) for n, item in enumerate(value)]

    return convert


def _map(node: Node) -> Convert:
    [child] = node.children
    inner = converter(child.node)

    def convert(value: Any, budget: Budget) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise Misfit(Reason.NOT_OBJECT)
        budget.take(len(value), node.leaves)
        for name in _repeated(value):
            raise _repeats(name)
        return [
            (_string(name, budget), _element(inner, child, item, budget, place(name))) for name, item in value.items()
        ]

    return convert


def _repeated(value: dict[str, Any]) -> frozenset[str]:
    return value.names if isinstance(value, _Twice) else frozenset()


def _repeats(name: str) -> Misfit:
    misfit = Misfit(Reason.REPEATED)
    misfit.within(place(name))
    return misfit


def _boolean(value: Any, _budget: Budget) -> bool:
    if not isinstance(value, bool):
        raise Misfit(Reason.NOT_BOOLEAN)
    return value


def _whole(kind: pa.DataType) -> Convert:
    bits = kind.bit_width
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)

    def convert(value: Any, _budget: Budget) -> int:
        if isinstance(value, _TooFar):
            raise Misfit(Reason.RANGE)
        if not isinstance(value, Decimal):
            raise Misfit(Reason.NOT_NUMBER)
        if not value:
            return 0
        # Looking at the exponent first keeps 1e999999999 from being written out.
        if value.adjusted() < 0 or (value.adjusted() < bits and value != int(value)):
            raise Misfit(Reason.NOT_WHOLE)
        if value.adjusted() >= bits or not low <= int(value) < high:
            raise Misfit(Reason.RANGE)
        return int(value)

    return convert


def _decimal(kind: pa.Decimal128Type) -> Convert:
    unit = Decimal((0, (1,), -kind.scale))

    def convert(value: Any, _budget: Budget) -> Decimal:
        number = _number(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if not isinstance(number, Decimal | _TooFar):
            raise Misfit(Reason.NOT_DECIMAL)
        if isinstance(number, Decimal):
            if not number:
                return Decimal(0).quantize(unit)
            if number.adjusted() < kind.precision - kind.scale:
                rounded = number.quantize(unit, context=_ROUNDING)
                if rounded == number:
                    return rounded
        raise Misfit(Reason.RANGE)

    return convert


#: Numbers that JSON has no digits for, as `text.py` writes them.
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _real(node: Node) -> Convert:
    nearest: Callable[[Decimal], float] = float if node.arrow == pa.float64() else _nearest_float
    has_names = bool(node.size)

    def convert(value: Any, _budget: Budget) -> float:
        if has_names and isinstance(value, str) and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if isinstance(value, Decimal):
            stored = nearest(value)
            if math.isfinite(stored) and _gives_again(stored, value):
                return stored
        elif not isinstance(value, _TooFar):
            raise Misfit(Reason.NOT_NUMBER)
        raise Misfit(Reason.RANGE)

    return convert


def _gives_again(stored: float, sent: Decimal) -> bool:
    """Whether the stored number is at most half of the last digit that was sent away from the sent number."""
    exact = Decimal(stored)
    if exact == sent:
        return True
    try:
        digits = sent.normalize(_EXACT)
    except Inexact:
        return False
    _, _, exponent = digits.as_tuple()
    assert isinstance(exponent, int), "numbers of JSON are finite"
    return _ROUNDING.subtract(exact, digits).copy_abs() <= Decimal((0, (5,), exponent - 1))


def _nearest_float(number: Decimal) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", float(number)))[0])
    except OverflowError:
        return math.inf


def _string(value: Any, _budget: Budget) -> str:
    if not isinstance(value, str):
        raise Misfit(Reason.NOT_STRING)
    if not _is_text(value):
        raise Misfit(Reason.SURROGATE)
    return value


def _bytes(value: Any, _budget: Budget) -> bytes:
    if not isinstance(value, str):
        raise Misfit(Reason.NOT_STRING)
    try:
        decoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        decoded = None
    # The text must not have bits behind the last byte, which decoders drop.
    if decoded is None or base64.b64encode(decoded).decode() != value:
        raise Misfit(Reason.NOT_BASE64)
    return decoded


def _date(value: Any, _budget: Budget) -> int:
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        raise Misfit(Reason.NOT_DATE)
    days = _days(value)
    if days is None:
        raise Misfit(Reason.RANGE)
    return days


def _days(text: str) -> int | None:
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        return None


def _timestamp(value: Any, _budget: Budget) -> int:
    return _time(value, Reason.NOT_TIMESTAMP)


def _local_timestamp(value: Any, _budget: Budget) -> int:
    return _time(value, Reason.NOT_LOCAL)


def _time(value: Any, fault: Reason) -> int:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[6] is None) == (fault == Reason.NOT_TIMESTAMP):
        raise Misfit(fault)
    local, east = _local_us(match), _east_us(match[6])
    if local is None or east is None or not FIRST_US <= local - east < END_US:
        raise Misfit(Reason.RANGE)
    return local - east


def _local_us(match: re.Match[str]) -> int | None:
    """Microseconds since 1970 in local time; None: there is no such time, or it has finer digits."""
    days, hour, minute, second = _days(match[1]), int(match[2]), int(match[3]), int(match[4])
    fraction = (match[5] or "").rstrip("0")
    if days is None or hour > 23 or minute > 59 or second > 59 or len(fraction) > 6:
        return None
    return days * _DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + int(fraction.ljust(6, "0"))


def _east_us(zone: str | None) -> int | None:
    """Microseconds by which a zone is ahead of UTC; None: there is no such zone."""
    if zone is None or zone in ("Z", "z"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    if hours > 23 or minutes > 59:
        return None
    return (1 if zone[0] == "+" else -1) * (hours * 60 + minutes) * 60_000_000


def _any(value: Any, _budget: Budget) -> str:
    return text_of(value)


_SIMPLE: Final[dict[str, Convert]] = {
    "boolean": _boolean,
    "string": _string,
    "base64": _bytes,
    "date": _date,
    "timestamp": _timestamp,
    "local-timestamp": _local_timestamp,
    "json": _any,
}


def _is_text(value: str) -> bool:
    """False: it has half of a surrogate pair, and is not Unicode."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
