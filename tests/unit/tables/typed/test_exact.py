"""The value read back equals the value sent, or the message does not fit, in both ways to decode (SPEC TYPE-13)."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.tables.typed.json.rendering import rendered
from deltamq.tables.typed.json.value import _EXACT as EXACT
from tests.typed import both, faults_of, same


def _sent(kind: str, text: str) -> Any:
    """Return what a column has after a body whose field is this text of JSON, None if it does not fit."""
    columns = same(both("columns", f"v {kind}"), [f'{{"v": {text}}}'])
    faults = faults_of(columns)
    if faults:
        assert faults[0] is not None and faults[0][1].startswith("v") and faults[0][2]
        return None
    value = columns.value[0].as_py()["v"]
    assert value is not None
    return value


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
_WHOLE = [("TINYINT", 8), ("SMALLINT", 16), ("INT", 32), ("BIGINT", 64)]


def _value(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except ArithmeticError:
        return None


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT"])
@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_type_16_a_number_that_is_not_finite_is_read_as_it_is_written(kind: str, name: str) -> None:
    body = f'{{"v":"{name}","w":1.5}}'
    columns = same(both("columns", f"v {kind}, w DOUBLE"), [body, '{"v":"nan"}'])
    assert faults_of(columns)[0] is None and "not a number" in faults_of(columns)[1][2]
    assert str(columns.value[0].as_py()["v"]) == str(float(name))
    assert rendered(columns.value)[0].as_py().decode() == body
    # JSON Schema knows no such numbers.
    schema = '{"properties": {"v": {"type": "number"}, "w": {"type": "number"}}}'
    assert faults_of(same(both("json", schema), [body]))[0] is not None


@given(_numbers)
def test_type_13_whole_numbers_are_what_was_sent_and_all_that_have_a_place_fit(text: str) -> None:
    value = _value(text)
    for kind, bits in _WHOLE:
        found = _sent(kind, text)
        fits = (
            value is not None and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) and value == value.to_integral_value()
        )
        assert (found is not None) == fits and (found is None or found == value)


@given(_numbers, st.integers(1, 38), st.data(), st.booleans())
def test_type_13_decimals_are_what_was_sent_and_all_that_have_a_place_fit(
    text: str, precision: int, data: st.DataObject, quoted: bool
) -> None:
    scale = data.draw(st.integers(0, precision))
    value = _value(text)
    found = _sent(f"DECIMAL({precision}, {scale})", f'"{text}"' if quoted else text)
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
def test_type_13_doubles_and_floats_give_the_digits_that_were_sent(text: str) -> None:
    value = _value(text)
    for kind in ("DOUBLE", "FLOAT"):
        found = _sent(kind, text)
        if found is not None:
            assert value is not None and math.isfinite(found)
            # At most half of the last digit away.
            digits = value.normalize(EXACT).as_tuple().exponent
            assert abs(Fraction(found) - Fraction(value)) * 2 <= Fraction(10) ** digits


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_type_13_every_double_fits_as_it_is_printed(number: float) -> None:
    for text in (repr(number), f"{number:.17g}", f"{Decimal(number):f}", f"{Decimal(number):e}"):
        found = _sent("DOUBLE", text)
        assert found == number and math.copysign(1, found) == math.copysign(1, number)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_type_13_every_float_fits_as_it_is_printed(number: float) -> None:
    for text in (str(np.float32(number)), repr(number), f"{number:.9g}"):
        assert _sent("FLOAT", text) == number


@given(st.text())
def test_type_13_text_and_bytes_are_what_was_sent(text: str) -> None:
    data = text.encode()
    assert _sent("STRING", json.dumps(text)) == text
    assert _sent("STRING", json.dumps(text, ensure_ascii=False)) == text
    assert _sent("BINARY", json.dumps(base64.b64encode(data).decode())) == data


@given(st.text("ABab01+/=-_ \n", max_size=9))
def test_type_13_base64_that_fits_is_the_only_text_of_its_bytes(text: str) -> None:
    found = _sent("BINARY", json.dumps(text))
    assert found is None or base64.b64encode(found).decode() == text


@given(st.dates())
def test_type_13_every_date_fits(day: date) -> None:
    assert _sent("DATE", f'"{day.isoformat()}"') == day


_zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)), _zones)
def test_type_13_every_time_fits_where_its_zone_is_known(local: datetime, zone: timezone) -> None:
    zoned = f'"{local.replace(tzinfo=zone).isoformat()}"'
    assert _sent("TIMESTAMP", zoned) == local.replace(tzinfo=zone).astimezone(UTC)
    plain = f'"{local.isoformat()}"'
    assert _sent("TIMESTAMP", plain) is None


ITEM = "STRUCT<sku: STRING NOT NULL, n: INT>"


@pytest.mark.parametrize(
    ("kind", "text", "code", "field"),
    [
        ("DATE", '"20260101"', "wrong_type", "v"),
        ("DATE", '"2026-1-1"', "wrong_type", "v"),
        ("DATE", '"2026-02-30"', "out_of_range", "v"),
        ("DATE", '"0000-01-01"', "out_of_range", "v"),
        ("DATE", '"2026-01-01T12:00:00"', "wrong_type", "v"),
        ("DATE", "20454", "wrong_type", "v"),
        ("TIMESTAMP", "1700000000", "wrong_type", "v"),
        ("TIMESTAMP", '"2026-01-01T00:00:00.1234567Z"', "out_of_range", "v"),
        ("TIMESTAMP", '"2026-01-01T24:00:00Z"', "out_of_range", "v"),
        ("TIMESTAMP", '"2026-01-01T23:59:60Z"', "out_of_range", "v"),
        ("TIMESTAMP", '"2026-01-01T00:00:00 Europe/Berlin"', "wrong_type", "v"),
        ("TIMESTAMP", '"2026-01-01T00:00:00"', "wrong_type", "v"),
        ("TIMESTAMP", '"0001-01-01T00:00:00+01:00"', "out_of_range", "v"),
        ("TIMESTAMP", '"9999-12-31T23:59:59-01:00"', "out_of_range", "v"),
        ("TIMESTAMP", '"2026-01-01"', "wrong_type", "v"),
        ("BOOLEAN", '"true"', "wrong_type", "v"),
        ("BOOLEAN", "1", "wrong_type", "v"),
        ("INT", "true", "wrong_type", "v"),
        ("INT", "1.5", "wrong_type", "v"),
        ("INT", '"1"', "wrong_type", "v"),
        ("INT", "2147483648", "out_of_range", "v"),
        ("INT", "1e400", "out_of_range", "v"),
        ("BIGINT", "9223372036854775808", "out_of_range", "v"),
        ("BIGINT", "-9223372036854775809", "out_of_range", "v"),
        ("BIGINT", "123456789012345678901234567890", "out_of_range", "v"),
        ("DECIMAL(5, 2)", "1.239", "out_of_range", "v"),
        ("DECIMAL(5, 2)", "1000", "out_of_range", "v"),
        ("DECIMAL(5, 2)", '" 1"', "wrong_type", "v"),
        ("DECIMAL(5, 2)", '"1_0"', "wrong_type", "v"),
        ("DECIMAL(5, 2)", "true", "wrong_type", "v"),
        ("DOUBLE", "1e400", "out_of_range", "v"),
        ("DOUBLE", "9007199254740993", "out_of_range", "v"),
        ("DOUBLE", '"nan"', "wrong_type", "v"),
        ("FLOAT", "16777217", "out_of_range", "v"),
        ("FLOAT", "1e39", "out_of_range", "v"),
        ("STRING", '"a\\ud800"', "not_text", "v"),
        ("STRING", '"\\udc00\\ud800"', "not_text", "v"),
        ("STRING", "5", "wrong_type", "v"),
        ("STRING", "[1]", "wrong_type", "v"),
        ("BINARY", '"QUJD\\n"', "wrong_type", "v"),
        ("BINARY", '"QR=="', "wrong_type", "v"),
        ("BINARY", '"_-8="', "wrong_type", "v"),
        ("BINARY", '"QUI"', "wrong_type", "v"),
        ("BINARY", '"===="', "wrong_type", "v"),
        (f"ARRAY<{ITEM}>", '[{"sku": "a"}, {}]', "missing", "v[1].sku"),
        (f"ARRAY<{ITEM}>", '[{"sku": null}]', "missing", "v[0].sku"),
        ("ARRAY<INT>", '{"0": 1}', "wrong_type", "v"),
        ("MAP<STRING, INT>", '{"a": 1, "a": 2}', "repeated_field", "v[a]"),
        ("MAP<STRING, INT>", '{"a": "1"}', "wrong_type", "v[a]"),
        ("MAP<STRING, INT>", '{"\\ud800": 1}', "not_text", "v"),
        (ITEM, '{"sku": "a", "n": 1, "n": 1}', "repeated_field", "v.n"),
        (ITEM, '{"sku": "a", "m": 1}', "unknown_field", "v.m"),
        (ITEM, '"{}"', "wrong_type", "v"),
        ("ARRAY<ARRAY<ARRAY<ARRAY<ARRAY<INT>>>>>", "[[[[[1], [true]]]]]", "wrong_type", "v[0][0][0][1][0]"),
    ],
)
def test_type_13_what_does_not_fit_is_named_with_its_place(kind: str, text: str, code: str, field: str) -> None:
    columns = same(both("columns", f"v {kind}"), [f'{{"v": {text}}}'])
    [fault] = faults_of(columns)
    assert fault is not None and fault[:2] == (code, field)
    assert len(fault[2]) <= 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\xff\xfe", "not_text"),
        (b'{"v": "\xc0\xaf"}', "not_text"),
        (b'{"v": "\xed\xa0\x80"}', "not_text"),
        (b'{"v": "\xf4\x90\x80\x80"}', "not_text"),
        (b'{"w": "\xff"}', "not_text"),
        (b'{"v": NaN}', "not_json"),
        (b'{"v": -Infinity}', "not_json"),
        (b"{'v': 1}", "not_json"),
        (b'{"v": 01}', "not_json"),
        (b'{"v": "a\nb"}', "not_json"),
        (b'{"v": "\\x"}', "not_json"),
        (b'{"v": 1,}', "not_json"),
        (b" ", "not_json"),
        (b'{"v": ' + b"[" * 100_000, "not_json"),
        (b"[1]", "wrong_type"),
        (b"null", "wrong_type"),
        (b"[1", "not_json"),
        (b'{"v": 1} {"v": 2}', "not_json"),
        (b'{"v": 1}\0', "not_json"),
        (b'{"v": true} x', "not_json"),
    ],
)
def test_type_13_what_is_no_object_of_json_does_not_fit_as_a_whole(body: bytes, code: str) -> None:
    [fault] = faults_of(same(both("columns", "v INT, w STRING"), [body]))
    assert fault is not None and fault[:2] == (code, "")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("INT", "1.0", 1),
        ("INT", "100e-2", 1),
        ("INT", "-0", 0),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("DECIMAL(38, 38)", f"0.{'9' * 38}", Decimal(f"0.{'9' * 38}")),
        ("DECIMAL(38, 0)", "1e37", Decimal(10**37)),
        ("DECIMAL(5, 2)", '"1.2500"', Decimal("1.25")),
        ("DOUBLE", "5.960464477539063e-08", 2.0**-24),
        ("DOUBLE", "9007199254740992", 2.0**53),
        ("DOUBLE", "5e-324", 5e-324),
        ("FLOAT", "0.1", float(np.float32(0.1))),
        ("STRING", r'"\ud83d\ude00"', "\U0001f600"),
        ("STRING", '"\\u0000"', "\0"),
        ("BINARY", '""', b""),
    ],
)
def test_type_13_a_value_at_the_edge_fits(kind: str, text: str, value: Any) -> None:
    assert _sent(kind, text) == value


def test_type_13_null_fits_where_the_schema_allows_it() -> None:
    for text in ("{}", '{"v": null}'):
        assert same(both("columns", "v INT"), [text]).value.to_pylist() == [{"v": None}]
        [fault] = faults_of(same(both("columns", "v INT NOT NULL"), [text]))
        assert fault is not None and fault[:2] == ("missing", "v")
    assert _sent("ARRAY<INT>", "[1, null]") == [1, None]
    assert _sent("MAP<STRING, INT>", '{"a": null}') == [("a", None)]
