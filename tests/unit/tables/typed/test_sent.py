"""Arrow columns that producers send: values stay what they are, or the row does not fit (SPEC TYPE-16)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deltamq.mq.errors import Unprocessable
from tests.typed import bodies, codec, faults_of

NAN = float("nan")
#: A value that does not fit.
OUT = object()
_BERLIN = pa.timestamp("s", tz="Europe/Berlin")


@pytest.mark.parametrize(
    ("ddl", "sent", "values", "wanted"),
    [
        ("BIGINT", pa.int8(), [-128, 127, None], [-128, 127, None]),
        ("BIGINT", pa.uint64(), [2**63 - 1, 2**63], [2**63 - 1, OUT]),
        (
            "BIGINT",
            pa.float64(),
            [2.0, 1.5, 2.0**63, -(2.0**63), float("nan")],
            [2, OUT, OUT, -(2**63), OUT],
        ),
        ("TINYINT", pa.int64(), [-128, -129, 127, 128], [-128, OUT, 127, OUT]),
        ("INT", pa.decimal128(12, 1), [Decimal("7.0"), Decimal("7.5")], [7, OUT]),
        ("DOUBLE", pa.int64(), [2**53, 2**53 + 1, 2**63 - 1], [2.0**53, OUT, OUT]),
        ("DOUBLE", pa.float32(), [0.5, float("inf")], [0.5, float("inf")]),
        ("FLOAT", pa.float64(), [0.5, 0.1, 1e300], [0.5, OUT, OUT]),
        ("DECIMAL(5, 2)", pa.int64(), [7, 1000], [Decimal("7.00"), OUT]),
        ("DECIMAL(5, 2)", pa.decimal128(10, 4), [Decimal("1.2500"), Decimal("1.2345")], [Decimal("1.25"), OUT]),
        ("STRING", pa.large_string(), ["a", None], ["a", None]),
        ("STRING", pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"], ["a", "b", "a"]),
        ("STRING", pa.null(), [None], [None]),
        ("BINARY", pa.binary(2), [b"ab"], [b"ab"]),
        ("TIMESTAMP", pa.timestamp("ns", tz="UTC"), [1_000, 1_001], [1, OUT]),
        ("TIMESTAMP", _BERLIN, [1, 253402300800], [1_000_000, OUT]),
        ("DATE", pa.date64(), [86_400_000], [1]),
        ("ARRAY<BIGINT>", pa.large_list(pa.int16()), [[1, 2], None, []], [[1, 2], None, []]),
        (
            "ARRAY<STRUCT<n: TINYINT>>",
            pa.list_(pa.struct([("n", pa.int64())])),
            [[], [{"n": 1}, {"n": 300}]],
            [[], OUT],
        ),
        (
            "MAP<STRING, INT>",
            pa.map_(pa.string(), pa.int64()),
            [[("a", 2**40)], [("b", 1)], None],
            [OUT, [("b", 1)], None],
        ),
    ],
)
def test_type_16_a_value_of_another_type_is_the_same_or_does_not_fit(
    ddl: str, sent: pa.DataType, values: list[Any], wanted: list[Any]
) -> None:
    # Behind another row: slices have their places, too.
    column = pa.array([values[0], *values], sent)[1:]
    columns = codec("columns", f"v {ddl}").check(pa.StructArray.from_arrays([column], ["v"]))
    found = columns.value.field("v")
    if pa.types.is_timestamp(found.type) or pa.types.is_date(found.type):
        found = found.view(pa.int64() if pa.types.is_timestamp(found.type) else pa.int32())
    for value, item, right in zip(columns.value, found.to_pylist(), wanted, strict=True):
        assert value.is_valid == (right is not OUT) and (right is OUT or item == right)
    faults = faults_of(columns) or [None] * len(values)
    assert [fault and fault[0] for fault in faults] == ["out_of_range" if one is OUT else None for one in wanted]


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        ("BIGINT", pa.array(["1"])),
        ("STRING", pa.array([1])),
        ("DECIMAL(5, 2)", pa.array([0.5])),
        ("BOOLEAN", pa.array([1])),
        ("TIMESTAMP", pa.array([1], pa.timestamp("us"))),
        ("DATE", pa.array([1], pa.timestamp("us", tz="UTC"))),
        ("STRUCT<a: INT>", pa.array([{"a": 1, "b": 2}])),
        ("STRUCT<a: INT>", pa.array([[1]])),
        ("ARRAY<INT>", pa.array([{"a": 1}])),
        ("MAP<STRING, INT>", pa.array([[(1, 1)]], pa.map_(pa.int64(), pa.int64()))),
    ],
)
def test_type_16_a_column_of_a_type_without_exact_values_is_refused(ddl: str, column: pa.Array) -> None:
    with pytest.raises(Unprocessable) as raised:
        codec("columns", f"v {ddl}").check(pa.StructArray.from_arrays([column], ["v"]))
    assert raised.value.field is not None and raised.value.field.startswith("value.v")


def test_type_16_a_field_that_must_be_there_is() -> None:
    made = codec("columns", "a INT NOT NULL, b STRUCT<c: INT NOT NULL>")
    inner = pa.StructArray.from_arrays(
        [pa.array([1, None, None], pa.int32())], ["c"], mask=pa.array([False, False, True])
    )
    columns = made.check(pa.StructArray.from_arrays([pa.array([1, 2, 3], pa.int32()), inner], ["a", "b"]))
    assert [fault and fault[:2] for fault in faults_of(columns)] == [None, ("missing", "b.c"), None]
    columns = made.check(pa.StructArray.from_arrays([inner], ["b"]))
    assert [fault and fault[:2] for fault in faults_of(columns)] == [("missing", "a")] * 3


def test_type_16_what_was_sent_as_arrow_is_what_its_json_would_be() -> None:
    made = codec(
        "columns", "a BIGINT, l ARRAY<STRUCT<x: DOUBLE>>", "a BIGINT, l ARRAY<STRUCT<x: DOUBLE, y: STRING>>, n INT"
    )
    sent = pa.array([{"a": 1, "l": [{"x": 0.5, "y": "b"}, None], "n": 2}, None])
    columns = made.check(sent)
    assert columns.value.type == made.value_type and columns.invalid is None
    assert made.decode(made.encode(sent)).value.equals(columns.value)
    with pytest.raises(Unprocessable, match=r"messages\[1\]\.value\.n") as raised:
        made.encode(pa.array([{"n": 1}, {"n": 2**40}]))
    assert raised.value.extra["index"] == 1


def test_type_16_text_that_is_not_utf_8_is_refused() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    with pytest.raises(Unprocessable, match="not valid Arrow"):
        codec("columns", "v STRING").check(pa.StructArray.from_arrays([broken], ["v"]))
    assert codec("columns", "v STRING").decode(bodies(b"")).value.null_count == 1
