"""Types of Spark as trees, and times without a zone, which only exports have (SPARK-19)."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from deltamq.jobs.export.typed_body import tree_of
from deltamq.mq.errors import Refused
from deltamq.tables.typed.schema import Schema
from deltamq.tables.typed.version import Judged, VersionDecoder
from tests.typed import bodies


def _local(text: str) -> tuple[datetime | None, str | None]:
    """Return the value and the reason that both decoders give."""
    found = []
    for compiled in (True, False):
        root = tree_of(T.StructType([T.StructField("v", T.TimestampNTZType())]))
        decoder, judged = (
            VersionDecoder("columns", Schema(0, root, root), b"", rescues=False, compiled=compiled),
            Judged(),
        )
        values, _ = decoder.decode(bodies(json.dumps({"v": text})), [0], judged)
        invalid = judged.invalid(1)
        found.append((values.field("v")[0].as_py(), None if invalid is None else invalid[0].as_py()["code"]))
    assert found[0] == found[1]
    return found[0]


@given(st.datetimes(min_value=datetime(1, 1, 1)))
def test_spark_19_every_time_without_a_zone_fits_where_none_is_known(local: datetime) -> None:
    assert _local(local.isoformat()) == (local, None)
    assert _local(local.replace(tzinfo=timezone(timedelta(hours=1))).isoformat()) == (None, "wrong_type")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("2026-01-01T00:00:00Z", "wrong_type"),
        ("2026-01-01T00:00", "wrong_type"),
        ("2026-01-01T00:00:00.", "wrong_type"),
        ("2026-01-01T25:00:00", "out_of_range"),
        ("2026-01-01T00:00:00.1234567", "out_of_range"),
    ],
)
def test_spark_19_what_is_no_time_without_a_zone_does_not_fit(text: str, code: str) -> None:
    assert _local(text) == (None, code)


def test_spark_19_types_of_spark_are_those_of_arrow() -> None:
    item = T.StructType([T.StructField("a", T.IntegerType()), T.StructField("b", T.DecimalType(9, 2), False)])
    kind = T.StructType([T.StructField("v", T.MapType(T.StringType(), T.ArrayType(item)))])
    inner = pa.struct([("a", pa.int32()), ("b", pa.decimal128(9, 2))])
    assert tree_of(kind).arrow == pa.struct([("v", pa.map_(pa.string(), pa.list_(inner)))])


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
    ],
)
def test_spark_19_a_type_without_exact_values_is_refused_by_its_place(kind: T.DataType) -> None:
    with pytest.raises(Refused, match=r"schema\.v: ") as raised:
        tree_of(T.StructType([T.StructField("v", kind)]))
    assert (raised.value.code, raised.value.field) == ("invalid_schema", "schema")
