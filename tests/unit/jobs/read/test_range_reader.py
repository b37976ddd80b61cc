"""Which columns a read gives (SPARK-1, SPARK-2: option `columns`)."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from deltamq.jobs.read.options import parse_options
from deltamq.jobs.read.range_reader import RangeRows
from deltamq.jobs.read.row_format import schema_of
from deltamq.mq.errors import Refused


def test_spark_01_the_option_columns_names_what_is_read_in_its_order() -> None:
    options = parse_options({"topic": "t", "columns": "partition, offset ,body"}, warehouse="w")
    assert schema_of(options).names == ["partition", "offset", "body"]
    kafka = parse_options({"topic": "t", "columns": "value,headers", "rowFormat": "kafka"}, warehouse="w")
    assert schema_of(kafka).names == ["value", "headers"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"columns": "value"}, "no column 'value'; columns are offset"),
        ({"columns": "headers", "rowFormat": "kafka", "includeHeaders": "false"}, "no column 'headers'"),
    ],
)
def test_spark_01_a_column_that_there_is_not_is_refused_by_name(options: dict[str, str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        schema_of(parse_options({"topic": "t", **options}, warehouse="w"))


def test_spark_01_columns_and_a_schema_that_differ_are_refused() -> None:
    options = parse_options({"topic": "t", "columns": "offset,key"}, warehouse="w")
    with pytest.raises(Refused, match="columns has offset, key, the schema key"):
        RangeRows(options, StructType([StructField("key", StringType())]))
    RangeRows(options, StructType([StructField("offset", LongType()), StructField("key", StringType())]))
