"""The value read back equals the value sent, or the message does not fit (SPARK-19)."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from deltamq.jobs.export.exact_value import Misfit, parsed, shape_of
from deltamq.mq.errors import Refused


def _field(kind: T.DataType, *, nullable: bool = True) -> T.StructType:
    return T.StructType([T.StructField("v", kind, nullable)])


def _read(kind: T.DataType, text: str | bytes) -> Any:
    """Return what a column of this type has after the body; raises `Misfit`."""
    shape = shape_of(_field(kind))
    body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return pa.array([parsed(body, shape)], shape.arrow)[0].as_py()["v"]


def _sent(kind: T.DataType, text: str) -> Any:
    """Return what a column has after a body whose field is this text of JSON, None if it does not fit."""
    try:
        found = _read(kind, f'{{"v": {text}}}')
    except Misfit as error:
        assert error.field.startswith("v") and error.reason
        return None
    assert found is not None
    return found


#: Numbers as senders write them, of every size, with zeros at both ends.
_numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda x: f"{x:.17g}"),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.builds(
        "{}{}.{}{}".format,
        st.sampled_from(["", "-"]),
        st.integers(0, 10**20),
        st.from_regex(r"\A[0-9]{1,25}\Z"),
        st.one_of(st.just(""), st.integers(-400, 400).map("e{}".format)),
    ),
    st.sampled_from(["-0", "-0.0", "0e999999999", "1e400", "1e-400", "1e999999999", "1e-999999999", "1E" + "9" * 20]),
)
_WHOLE = [(T.ByteType(), 8), (T.ShortType(), 16), (T.IntegerType(), 32), (T.LongType(), 64)]


def _value(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except ArithmeticError:
        return None


@given(_numbers)
def test_spark_19_whole_numbers_are_what_was_sent_and_all_that_have_a_place_fit(text: str) -> None:
    value = _value(text)
    for kind, bits in _WHOLE:
        found = _sent(kind, text)
        fits = value is not None and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) and (not value or value % 1 == 0)
        assert (found is not None) == fits and (found is None or found == value)


@given(_numbers, st.integers(1, 38), st.data(), st.booleans())
def test_spark_19_decimals_are_what_was_sent_and_all_that_have_a_place_fit(
    text: str, precision: int, data: st.DataObject, quoted: bool
) -> None:
    scale = data.draw(st.integers(0, precision))
    value = _value(text)
    found = _sent(T.DecimalType(precision, scale), f'"{text}"' if quoted else text)
    assert (found is not None) == (value is not None and _has_place(value, precision, scale))
    assert found is None or found == value


def _has_place(value: Decimal, precision: int, scale: int) -> bool:
    if not value or not -100 < value.adjusted() < 100:
        return not value
    units = Fraction(value) * 10**scale
    return units.denominator == 1 and abs(units) < 10**precision


def _digits(value: Decimal) -> int:
    return len("".join(map(str, value.as_tuple().digits)).strip("0")) or 1


@given(_numbers)
def test_spark_19_doubles_and_floats_give_the_digits_that_were_sent(text: str) -> None:
    value = _value(text)
    for kind in (T.DoubleType(), T.FloatType()):
        found = _sent(kind, text)
        if found is not None:
            assert value is not None and math.isfinite(found)
            assert Decimal(f"{Decimal(found):.{_digits(value) - 1}e}") == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_spark_19_every_double_fits_as_it_is_printed(number: float) -> None:
    for text in (repr(number), f"{number:.17g}", f"{Decimal(number):f}", f"{Decimal(number):e}"):
        found = _sent(T.DoubleType(), text)
        assert found == number and math.copysign(1, found) == math.copysign(1, number)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_spark_19_every_float_fits_as_it_is_printed(number: float) -> None:
    for text in (str(np.float32(number)), repr(number), f"{number:.9g}"):
        assert _sent(T.FloatType(), text) == number


@given(st.text())
def test_spark_19_text_and_bytes_are_what_was_sent(text: str) -> None:
    data = text.encode()
    assert _sent(T.StringType(), json.dumps(text)) == text
    assert _sent(T.StringType(), json.dumps(text, ensure_ascii=False)) == text
    assert _sent(T.BinaryType(), json.dumps(base64.b64encode(data).decode())) == data


@given(st.text("ABab01+/=-_ \n", max_size=9))
def test_spark_19_base64_that_fits_is_the_only_text_of_its_bytes(text: str) -> None:
    found = _sent(T.BinaryType(), json.dumps(text))
    assert found is None or base64.b64encode(found).decode() == text


@given(st.dates())
def test_spark_19_every_date_fits(day: date) -> None:
    assert _sent(T.DateType(), f'"{day.isoformat()}"') == day


_zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)), _zones)
def test_spark_19_every_time_fits_where_its_zone_is_known(local: datetime, zone: timezone) -> None:
    zoned = f'"{local.replace(tzinfo=zone).isoformat()}"'
    assert _sent(T.TimestampType(), zoned) == local.replace(tzinfo=zone).astimezone(UTC)
    assert _sent(T.TimestampNTZType(), zoned) is None
    plain = f'"{local.isoformat()}"'
    assert _sent(T.TimestampNTZType(), plain) == local
    assert _sent(T.TimestampType(), plain) is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, 1e30, "", "x", "1", "2026-01-02", "AA=="]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
_simple = st.sampled_from(
    [T.BooleanType(), T.IntegerType(), T.DoubleType(), T.StringType(), T.DecimalType(3, 1), T.BinaryType()]
)
_kinds = st.recursive(
    _simple,
    lambda inner: (
        inner.map(T.ArrayType)
        | inner.map(lambda kind: T.MapType(T.StringType(), kind))
        | st.dictionaries(st.sampled_from("abc"), st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(
            lambda some: T.StructType([T.StructField(name, kind, nullable) for name, (kind, nullable) in some.items()])
        )
    ),
    max_leaves=5,
)


def _same(kind: T.DataType, sent: Any, found: Any) -> bool:
    """Return whether a value read back is the value sent, as far as the type names it."""
    if sent is None or found is None:
        return sent is None and found is None
    if isinstance(kind, T.StructType):
        return all(
            _same(one.dataType, sent.get(one.name), found[one.name])
            and (one.nullable or sent.get(one.name) is not None)
            for one in kind
        )
    if isinstance(kind, T.ArrayType):
        return len(sent) == len(found) and all(map(_same, [kind.elementType] * len(sent), sent, found))
    if isinstance(kind, T.MapType):
        return [name for name, _ in found] == list(sent) and all(
            _same(kind.valueType, sent[name], one) for name, one in found
        )
    if isinstance(kind, T.BinaryType):
        return isinstance(sent, str) and base64.b64encode(found).decode() == sent
    if isinstance(kind, T.DecimalType) and isinstance(sent, str):
        return Decimal(sent) == found
    return isinstance(sent, bool) == isinstance(found, bool) and bool(sent == found)


@given(_kinds, _json)
def test_spark_19_whatever_is_nested_is_read_back_as_it_was_sent(kind: T.DataType, sent: Any) -> None:
    try:
        found = _read(kind, json.dumps({"v": sent}))
    except Misfit as error:
        assert error.field.startswith("v")
    else:
        assert _same(kind, sent, found)


ITEM = T.StructType([T.StructField("sku", T.StringType(), False), T.StructField("n", T.IntegerType())])


@pytest.mark.parametrize(
    ("kind", "text", "field", "reason"),
    [
        (T.DateType(), '"20260101"', "v", "is not date (YYYY-MM-DD): 20260101"),
        (T.DateType(), '"2026001"', "v", "is not date"),
        (T.DateType(), '"2026-1-1"', "v", "is not date"),
        (T.DateType(), '"2026-02-30"', "v", "is not date"),
        (T.DateType(), '"2026-01-01T12:00:00"', "v", "is not date"),
        (T.DateType(), "20454", "v", "is not date"),
        (T.TimestampType(), "1700000000", "v", "is not timestamp"),
        (T.TimestampType(), '"2026-01-01T00:00:00.1234567Z"', "v", "is not timestamp"),
        (T.TimestampType(), '"2026-01-01T24:00:00Z"', "v", "is not timestamp"),
        (T.TimestampType(), '"2026-01-01T23:59:60Z"', "v", "is not timestamp"),
        (T.TimestampType(), '"2026-01-01T00:00:00 Europe/Berlin"', "v", "is not timestamp"),
        (T.TimestampType(), '"0001-01-01T00:00:00+01:00"', "v", "is not timestamp"),
        (T.TimestampType(), '"9999-12-31T23:59:59-01:00"', "v", "is not timestamp"),
        (T.TimestampType(), '"2026-01-01"', "v", "is not timestamp"),
        (T.BooleanType(), '"true"', "v", "is not boolean: true"),
        (T.BooleanType(), "1", "v", "is not boolean: 1"),
        (T.IntegerType(), "true", "v", "is not int: true"),
        (T.IntegerType(), "1.5", "v", "is not int: 1.5"),
        (T.IntegerType(), '"1"', "v", "is not int: 1"),
        (T.IntegerType(), "2147483648", "v", "is not int"),
        (T.LongType(), "9223372036854775808", "v", "is not bigint"),
        (T.DecimalType(5, 2), "1.239", "v", "is not decimal(5,2): 1.239"),
        (T.DecimalType(5, 2), "1000", "v", "is not decimal(5,2): 1000"),
        (T.DecimalType(5, 2), '" 1"', "v", "is not decimal(5,2)"),
        (T.DecimalType(5, 2), '"1_0"', "v", "is not decimal(5,2)"),
        (T.DoubleType(), "1e400", "v", "is not double: 1E+400"),
        (T.DoubleType(), "9007199254740993", "v", "is not double"),
        (T.DoubleType(), '"NaN"', "v", "is not double: NaN"),
        (T.FloatType(), "16777217", "v", "is not float: 16777217"),
        (T.FloatType(), "1e39", "v", "is not float"),
        (T.StringType(), r'"a\ud800"', "v", r'is not string: "a\ud800"'),
        (T.StringType(), "5", "v", "is not string: 5"),
        (T.StringType(), "[1]", "v", "is not string"),
        (T.BinaryType(), '"QUJD\\n"', "v", "is not binary (base64)"),
        (T.BinaryType(), '"QR=="', "v", "is not binary (base64)"),
        (T.BinaryType(), '"_-8="', "v", "is not binary (base64)"),
        (T.ArrayType(ITEM), '[{"sku": "a"}, {}]', "v[1].sku", "is missing: string NOT NULL"),
        (T.ArrayType(ITEM), '[{"sku": null}]', "v[0].sku", "is missing: string NOT NULL"),
        (T.ArrayType(T.IntegerType()), '{"0": 1}', "v", "is not array<int>"),
        (T.MapType(T.StringType(), T.IntegerType()), '{"a": 1, "a": 2}', "v[a]", "occurs twice"),
        (T.MapType(T.StringType(), T.IntegerType()), '{"a": "1"}', "v[a]", "is not int: 1"),
        (ITEM, '{"sku": "a", "n": 1, "n": 1}', "v.n", "occurs twice"),
        (ITEM, '"{}"', "v", "is not struct<sku:string,n:int>"),
    ],
)
def test_spark_19_what_does_not_fit_is_named_with_its_place(
    kind: T.DataType, text: str, field: str, reason: str
) -> None:
    with pytest.raises(Misfit) as raised:
        _read(kind, f'{{"v": {text}}}')
    assert raised.value.field == field and raised.value.reason.startswith(reason)
    raised.value.reason.encode()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b'{"v": "\xc0\xaf"}', "is not UTF-8"),
        (b'{"v": "\xed\xa0\x80"}', "is not UTF-8"),
        (b'{"v": NaN}', "is not JSON"),
        (b'{"v": -Infinity}', "is not JSON"),
        (b"{'v': 1}", "is not JSON"),
        (b'{"v": 01}', "is not JSON"),
        (b'{"v": "a\nb"}', "is not JSON"),
        (b"", "is not JSON"),
        (b'{"v": ' + b"[" * 100_000, "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"v": 1} {"v": 2}', "has more than one JSON value"),
    ],
)
def test_spark_19_what_is_no_object_of_json_does_not_fit_as_a_whole(body: bytes, reason: str) -> None:
    with pytest.raises(Misfit) as raised:
        _read(T.IntegerType(), body)
    assert (raised.value.field, raised.value.reason.split(":")[0]) == ("body", reason)


def test_spark_19_null_fits_where_the_schema_allows_it_and_unknown_names_are_passed_over() -> None:
    for text in ("{}", '{"v": null}', '{"w": 1, "w": 2}'):
        assert _read(T.IntegerType(), text) is None
        with pytest.raises(Misfit, match="v is missing: int NOT NULL"):
            parsed(text.encode(), shape_of(_field(T.IntegerType(), nullable=False)))
    assert _read(T.ArrayType(T.IntegerType()), '{"v": [1, null]}') == [1, None]
    assert _read(T.MapType(T.StringType(), T.IntegerType()), '{"v": {"a": null}}') == [("a", None)]


@pytest.mark.parametrize(
    "kind",
    [
        T.VariantType(),
        T.VarcharType(3),
        T.CharType(3),
        T.DayTimeIntervalType(),
        T.StringType("UTF8_LCASE"),
        T.MapType(T.IntegerType(), T.StringType()),
        T.ArrayType(T.NullType()),
        T.StructType([T.StructField("a", T.IntegerType()), T.StructField("A", T.IntegerType())]),
    ],
)
def test_spark_19_a_type_without_exact_values_is_refused_by_its_place(kind: T.DataType) -> None:
    with pytest.raises(Refused, match=r"schema\.v: ") as raised:
        shape_of(_field(kind))
    assert (raised.value.code, raised.value.field) == ("invalid_schema", "schema")
