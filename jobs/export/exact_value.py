"""Values of JSON as values of Spark's types, or why they do not fit: reading returns exactly the sent value (SPARK-19).

    type of the field            what fits
    BOOLEAN                      true, false
    TINYINT to BIGINT            a whole number in the type's range, also as 1.0
    DECIMAL(p, s)                a number, or a string with one, whose digits all fit
    FLOAT, DOUBLE                a number that equals the stored one, rounded to the digits that were sent
    STRING                       a string; no half of a surrogate pair
    BINARY                       a string in base64 (RFC 4648, section 4)
    DATE                         a string YYYY-MM-DD
    TIMESTAMP                    a string of RFC 3339 with its time zone, to the microsecond
    TIMESTAMP_NTZ                the same without a time zone
    STRUCT, MAP<STRING, ...>     an object, without a repeated name
    ARRAY                        an array

`null`, or a missing field, fits unless the schema has NOT NULL. Nothing here needs a session of Spark.
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
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import types as T

from deltamq.mq.errors import Refused

#: Characters of a faulty value that a reason quotes.
_FOUND_CHARS: Final = 200
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
_FIRST_US: Final = (date(1, 1, 1) - _EPOCH).days * _DAY_US
_END_US: Final = ((date(9999, 12, 31) - _EPOCH).days + 1) * _DAY_US
_SPACE: Final = " \t\n\r"


class Misfit(Exception):
    """A value does not fit: its field, as a path in the body, and the reason."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}")
        self.field = field
        self.reason = reason


class _Twice(dict[str, Any]):
    """An object in which names are repeated: it is unknown which value was meant."""

    names: frozenset[str] = frozenset()


class _TooFar:
    """A number beyond the range of all types."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


#: Returns a value that is not null, at a path, in Arrow's form; raises `Misfit`.
Convert = Callable[[Any, str], Any]


class Shape(NamedTuple):
    """One of Spark's types: its type in Arrow, and the conversion of JSON values."""

    arrow: pa.DataType
    convert: Convert


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


def parsed(body: bytes | None, shape: Shape) -> Any:
    """Return the fields of a body, whose `shape` is a STRUCT.

    Raises
    ------
    Misfit
        The body is not one object of JSON, or a field does not fit; it names the field, or `body` for the whole.
    """
    if body is None:
        raise Misfit("body", "is null")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Misfit("body", "is not UTF-8") from None
    shown = text[:_FOUND_CHARS]
    try:
        value, end = _decoder.raw_decode(text, len(text) - len(text.lstrip(_SPACE)))
    except (ValueError, RecursionError):
        raise Misfit("body", f"is not JSON: {shown}") from None
    if text[end:].strip(_SPACE):
        raise Misfit("body", f"has more than one JSON value: {shown}")
    if not isinstance(value, dict):
        raise Misfit("body", f"is not a JSON object: {shown}")
    return shape.convert(value, "")


# Types.


def shape_of(kind: T.DataType, where: str = "schema") -> Shape:
    """Return the shape of a type.

    Raises
    ------
    Refused
        JSON has no exact value for a type within it, or names in it differ only in case, which no table allows.
    """
    if isinstance(kind, T.StructType):
        return _struct(kind, where)
    if isinstance(kind, T.ArrayType):
        return _array(kind, where)
    if isinstance(kind, T.MapType):
        return _map(kind, where)
    if isinstance(kind, T.DecimalType):
        return Shape(pa.decimal128(kind.precision, kind.scale), _decimal(kind))
    # Not with a collation, which reads other values as equal.
    shape = _SIMPLE.get(type(kind))
    if shape is None or kind != type(kind)():
        detail = f"{where}: {kind.simpleString()} is not a type of an export; use {_TYPES}"
        raise Refused(detail, code="invalid_schema", field="schema")
    return shape


_TYPES: Final = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, "
    "ARRAY, STRUCT, MAP<STRING, ...>"
)


def _struct(kind: T.StructType, where: str) -> Shape:
    lower = [field.name.lower() for field in kind]
    for name in lower:
        if lower.count(name) > 1:
            detail = f"{where}: the name {name} occurs twice; tables ignore upper and lower case"
            raise Refused(detail, code="invalid_schema", field="schema")
    shapes = [(field.name, shape_of(field.dataType, f"{where}.{field.name}"), field) for field in kind]

    def convert(value: Any, at: str) -> dict[str, Any]:
        names = _names(value, at, kind)
        converted: dict[str, Any] = {}
        for name, shape, field in shapes:
            path = f"{at}.{name}" if at else name
            if name in names:
                raise Misfit(path, "occurs twice")
            item = value.get(name)
            if item is not None:
                converted[name] = shape.convert(item, path)
            elif field.nullable:
                converted[name] = None
            else:
                raise Misfit(path, f"is missing: {field.dataType.simpleString()} NOT NULL")
        return converted

    return Shape(pa.struct([pa.field(name, shape.arrow) for name, shape, _ in shapes]), convert)


def _map(kind: T.MapType, where: str) -> Shape:
    if kind.keyType != T.StringType():
        detail = f"{where}: {kind.simpleString()}: the names in an object are strings; use MAP<STRING, ...>"
        raise Refused(detail, code="invalid_schema", field="schema")
    keys, values = shape_of(kind.keyType, where), shape_of(kind.valueType, where)

    def convert(value: Any, at: str) -> list[tuple[str, Any]]:
        for name in sorted(_names(value, at, kind)):
            raise Misfit(f"{at}[{_shown(name)}]", "occurs twice")
        pairs = []
        for name, item in value.items():
            path = f"{at}[{_shown(name)}]"
            pairs.append((keys.convert(name, path), None if item is None else values.convert(item, path)))
        return pairs

    return Shape(pa.map_(keys.arrow, values.arrow), convert)


def _names(value: Any, at: str, kind: T.DataType) -> frozenset[str]:
    """The names that occur in an object more than once."""
    if not isinstance(value, dict):
        raise _wrong(value, at, kind)
    return value.names if isinstance(value, _Twice) else frozenset()


def _array(kind: T.ArrayType, where: str) -> Shape:
    items = shape_of(kind.elementType, where)

    def convert(value: Any, at: str) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(value, at, kind)
        return [None if item is None else items.convert(item, f"{at}[{n}]") for n, item in enumerate(value)]

    return Shape(pa.list_(items.arrow), convert)


def _boolean(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, at, T.BooleanType())
    return value


def _whole(kind: T.DataType, bits: int) -> Convert:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)

    def convert(value: Any, at: str) -> int:
        # Looking at the exponent first keeps 1e999999999 from being written out.
        if isinstance(value, Decimal) and (not value or value.adjusted() < bits):
            whole = int(value)
            if whole == value and low <= whole < high:
                return whole
        raise _wrong(value, at, kind)

    return convert


def _decimal(kind: T.DecimalType) -> Convert:
    unit = Decimal((0, (1,), -kind.scale))

    def convert(value: Any, at: str) -> Decimal:
        number = _number(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if isinstance(number, Decimal):
            if not number:
                return Decimal(0).quantize(unit)
            if number.adjusted() < kind.precision - kind.scale:
                rounded = number.quantize(unit, context=_ROUNDING)
                if rounded == number:
                    return rounded
        raise _wrong(value, at, kind)

    return convert


def _binary_float(kind: T.DataType, nearest: Callable[[Decimal], float]) -> Convert:
    def convert(value: Any, at: str) -> float:
        if isinstance(value, Decimal):
            stored = nearest(value)
            if math.isfinite(stored) and _gives_again(stored, value):
                return stored
        raise _wrong(value, at, kind)

    return convert


def _gives_again(stored: float, sent: Decimal) -> bool:
    """Whether the stored number, rounded to the digits that were sent, equals the sent number."""
    exact = Decimal(stored)
    if exact == sent:
        return True
    try:
        digits = sent.normalize(_EXACT)
    except Inexact:
        return False
    _, _, exponent = digits.as_tuple()
    assert isinstance(exponent, int), "numbers of JSON are finite"
    return exact.quantize(Decimal((0, (1,), exponent)), context=_ROUNDING) == sent


def _nearest_float(number: Decimal) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", float(number)))[0])
    except OverflowError:
        return math.inf


def _string(value: Any, at: str) -> str:
    if not isinstance(value, str) or not _is_text(value):
        raise _wrong(value, at, T.StringType())
    return value


def _bytes(value: Any, at: str) -> bytes:
    try:
        decoded = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        decoded = None
    # The text must not have bits behind the last byte, which decoders drop.
    if decoded is None or base64.b64encode(decoded).decode() != value:
        raise _wrong(value, at, T.BinaryType(), "base64")
    return decoded


def _date(value: Any, at: str) -> int:
    days = _days(value) if isinstance(value, str) and _DAY.fullmatch(value) else None
    if days is None:
        raise _wrong(value, at, T.DateType(), "YYYY-MM-DD")
    return days


def _days(text: str) -> int | None:
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        return None


def _time(kind: T.DataType, *, zoned: bool) -> Convert:
    wanted = "YYYY-MM-DDTHH:MM:SS.ffffff" + (" with Z or +HH:MM" if zoned else " without a time zone")

    def convert(value: Any, at: str) -> int:
        match = _TIME.fullmatch(value) if isinstance(value, str) else None
        if match is not None and (match[6] is not None) == zoned:
            local, east = _local_us(match), _east_us(match[6])
            if local is not None and east is not None and _FIRST_US <= local - east < _END_US:
                return local - east
        raise _wrong(value, at, kind, wanted)

    return convert


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


_SIMPLE: Final[dict[type[T.DataType], Shape]] = {
    T.BooleanType: Shape(pa.bool_(), _boolean),
    T.ByteType: Shape(pa.int8(), _whole(T.ByteType(), 8)),
    T.ShortType: Shape(pa.int16(), _whole(T.ShortType(), 16)),
    T.IntegerType: Shape(pa.int32(), _whole(T.IntegerType(), 32)),
    T.LongType: Shape(pa.int64(), _whole(T.LongType(), 64)),
    T.FloatType: Shape(pa.float32(), _binary_float(T.FloatType(), _nearest_float)),
    T.DoubleType: Shape(pa.float64(), _binary_float(T.DoubleType(), float)),
    T.StringType: Shape(pa.string(), _string),
    T.BinaryType: Shape(pa.binary(), _bytes),
    T.DateType: Shape(pa.date32(), _date),
    T.TimestampType: Shape(pa.timestamp("us", tz="UTC"), _time(T.TimestampType(), zoned=True)),
    T.TimestampNTZType: Shape(pa.timestamp("us"), _time(T.TimestampNTZType(), zoned=False)),
}


# Reasons.


def _wrong(value: Any, at: str, kind: T.DataType, wanted: str | None = None) -> Misfit:
    hint = "" if wanted is None else f" ({wanted})"
    return Misfit(at, f"is not {kind.simpleString()}{hint}: {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        text = str(value) if _is_text(value) else json.dumps(value)
    elif isinstance(value, Decimal | _TooFar):
        text = str(value)
    else:
        text = json.dumps(value, default=str)
    return text[:_FOUND_CHARS]


def _is_text(value: str) -> bool:
    """False: it has half of a surrogate pair, and is not Unicode."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
