"""A topic into a typed table: each message once, in the table or in quarantine (SPARK-9, SPARK-19 to 21)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltamq.jobs.export.definition import COLUMNS, remove_definition
from deltamq.jobs.export.export import export_topic, replay_quarantine, run_export
from deltamq.jobs.export.plan import ExportPlan, Plans
from deltamq.jobs.export.typed_body import FITS, fields_of, quarantine_columns, with_verdict
from deltamq.jobs.sql.typed_table import check_columns, columns_of
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import NotFound, Refused
from deltamq.tables.failpoints import FailpointHit, arm
from deltamq.tables.ops.exports import definitions, read_failure
from tests.unit.jobs.warehouses import Filled

pytestmark = pytest.mark.spark


def _bodies(*values: object) -> list[bytes]:
    return [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]


@pytest.mark.promise("PIPE-10")
def test_spark_09_messages_go_into_the_typed_table_once_and_what_does_not_fit_into_quarantine_with_its_reason(
    spark: SparkSession, filled: Filled, tmp_path: Path
) -> None:
    to = str(tmp_path / "silver")
    filled.append("orders", "orders@a", *_bodies({"id": 1, "amount": 1.5}, {"id": "x", "amount": 1}, {"amount": 2.0}))
    filled.append("orders", "orders@b", *_bodies(b"\xff\xfe", b"[1]", b'{"id": 2', {"id": 3, "amount": 2, "new": "n"}))

    def run(schema: str) -> dict[str, int]:
        return export_topic(
            spark, "orders", to, schema=schema, columns=("key", "append_time"), warehouse=filled.warehouse.uri
        )

    done = run("id BIGINT NOT NULL, amount DOUBLE")
    assert (done["rows"], done["quarantined"]) == (2, 5)
    typed = spark.read.format("delta").load(to).orderBy("_partition", "_offset")
    assert [(r.id, r.amount, r._partition, r._offset, r._key) for r in typed.collect()] == [
        (1, 1.5, "orders@a", 0, "k"),
        (3, 2.0, "orders@b", 3, "k"),
    ]
    lost = spark.read.format("delta").load(f"{to}_quarantine").orderBy("_partition", "_offset").collect()
    assert [(row.field, row.reason, row._partition, row._offset) for row in lost] == [
        ("id", "is not a number", "orders@a", 1),
        ("id", "is missing, and the schema requires it", "orders@a", 2),
        ("body", "is not UTF-8", "orders@b", 0),
        ("body", "is not an object", "orders@b", 1),
        ("body", "is not JSON", "orders@b", 2),
    ]
    assert bytes(lost[0].body) == b'{"id": "x", "amount": 1}'
    assert run("id BIGINT NOT NULL, amount DOUBLE")["batches"] == 0


@pytest.mark.promise("PIPE-10")
@pytest.mark.long
def test_spark_09_a_driver_that_dies_and_fields_that_change_lose_and_repeat_nothing(
    spark: SparkSession, filled: Filled, tmp_path: Path
) -> None:
    to = str(tmp_path / "silver")
    filled.append("orders", "orders@a", *_bodies({"id": 1, "amount": 1.5}, {"id": "x", "amount": 1}, {"amount": 2.0}))
    filled.append("orders", "orders@b", *_bodies(b"\xff\xfe", b"[1]", b'{"id": 2', {"id": 3, "amount": 2, "new": "n"}))

    def run(schema: str) -> dict[str, int]:
        return export_topic(
            spark, "orders", to, schema=schema, columns=("key", "append_time"), warehouse=filled.warehouse.uri
        )

    run("id BIGINT NOT NULL, amount DOUBLE")
    # a driver that dies between its tables
    filled.append("orders", "orders@a", *_bodies({"id": 4}, {"id": None}))
    arm("export.before_state=raise")
    try:
        with pytest.raises(FailpointHit):
            run("id BIGINT NOT NULL, amount DOUBLE")
    finally:
        arm("")
    # a column more, and one that may now be anything
    filled.append("orders", "orders@a", *_bodies({"id": 5, "new": "n5"}))
    done = run("id BIGINT, amount DOUBLE, new STRING")
    assert (done["rows"], done["quarantined"], done["batches"]) == (2, 1, 2)
    read = spark.read.format("delta").load(to)
    assert sorted((r.id, r.new) for r in read.collect()) == [(1, None), (3, None), (4, None), (5, "n5")]

    # what was missing may be missing now
    [found] = definitions(storage(filled.uri))
    replayed = replay_quarantine(spark, storage(filled.uri), found, filled.warehouse.uri)
    assert (replayed["rows"], replayed["quarantined"]) == (2, 4)
    places = [(r._partition, r._offset) for r in spark.read.format("delta").load(to).collect()]
    assert sorted(places) == [*(("orders@a", n) for n in (0, 2, 3, 4, 5)), ("orders@b", 3)]
    assert spark.read.format("delta").load(f"{to}_quarantine").count() == 4
    assert run("id BIGINT, amount DOUBLE, new STRING")["batches"] == 0


def test_spark_09_a_body_with_something_behind_its_object_does_not_fit(spark: SparkSession) -> None:
    fit = [b'{"id": 1}', b' {"id": 2, "b": {"c": [1, 2]}}\n ', b'{"id": null}']
    unfit = [
        *(b'{"id": 1}{"id": 2}', b'{"id": 1}\n{"id": 2}', b'{"id": 1}, {"id": 2}', b'{"id": 1} garbage'),
        *(b'{"id": 1}}', b'{"id": 1}]', b'{"id": 1},"b":true}', b'{"id": 1},', b'{"id": 1} {'),
    ]
    messages = spark.createDataFrame([(number, body) for number, body in enumerate(fit + unfit)], "n INT, body BINARY")
    found = with_verdict(messages, fields_of("id BIGINT"))
    assert [row[FITS] for row in found.orderBy("n").collect()] == [True] * len(fit) + [False] * len(unfit)
    columns = found.where(~found[FITS])
    for name in (*COLUMNS, "partition", "offset"):
        columns = columns if name in columns.columns else columns.withColumn(name, F.lit(None))
    reasons = {row.reason for row in columns.select(quarantine_columns()).collect()}
    assert reasons <= {"has more than one value of JSON", "is not JSON"}


_TYPES = (
    "day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, price DECIMAL(38,2), ratio DOUBLE, short FLOAT, count BIGINT, "
    "small TINYINT, name STRING, data BINARY, is_new BOOLEAN, "
    "o STRUCT<a: INT NOT NULL, b: ARRAY<STRING>>, m MAP<STRING, DECIMAL(3,1)>"
)
_FITTING = (
    '{"day": "0001-01-01", "at": "0001-01-01T00:00:00Z", "wall": "1582-10-10T01:02:03.000004"}',
    '{"day": "1582-10-10", "at": "1900-01-01T00:00:00+00:30", "wall": "0001-01-01T00:00:00"}',
    '{"day": "9999-12-31", "at": "9999-12-31T23:59:59.999999Z", "wall": "9999-12-31T23:59:59.999999"}',
    f'{{"price": {"9" * 36}.99, "ratio": 5e-324, "short": 16777216, "count": -9223372036854775808, "small": 127}}',
    '{"price": "-0.10", "ratio": 1.7976931348623157e308, "short": 0.1, "count": 1.0, "small": -128}',
    '{"name": "\\u0000 \\ud83d\\ude00", "data": "AP8=", "is_new": false}',
    '{"o": {"a": 1, "b": ["x", null]}, "m": {"": 1.5, "b": null}}',
    '{"o": null, "m": {}}',
)
_MISFITS = (
    ('{"day": "20260101"}', "day"),
    ('{"at": "2026-01-01T00:00:00"}', "at"),
    ('{"price": 1.239}', "price"),
    ('{"ratio": 1e400}', "ratio"),
    ('{"short": 16777217}', "short"),
    ('{"name": "\\ud800"}', "name"),
    ('{"o": {"b": []}}', "o.a"),
    ('{"m": {"a": 1, "a": 2}}', "m[a]"),
)


def test_spark_19_what_fits_is_read_back_as_it_was_sent_and_what_does_not_is_in_quarantine_by_field(
    spark: SparkSession, filled: Filled, tmp_path: Path
) -> None:
    to = str(tmp_path / "silver")
    filled.append("orders", "orders@a", *(body.encode() for body in [*_FITTING, *(body for body, _ in _MISFITS)]))
    done = export_topic(spark, "orders", to, schema=_TYPES, warehouse=filled.warehouse.uri)
    assert (done["rows"], done["quarantined"]) == (len(_FITTING), len(_MISFITS))
    shown = [f"CAST({name} AS STRING)" for name in ("day", "at", "wall", "price")]
    columns = [*shown, "ratio", "short", "count", "small", "name", "data", "is_new", "o", "m"]
    typed = spark.read.format("delta").load(to).orderBy("_offset").selectExpr(*columns)
    rows = [tuple(row) for row in typed.collect()]
    assert [row[:3] for row in rows[:3]] == [
        ("0001-01-01", "0001-01-01 00:00:00", "1582-10-10 01:02:03.000004"),
        ("1582-10-10", "1899-12-31 23:30:00", "0001-01-01 00:00:00"),
        ("9999-12-31", "9999-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999"),
    ]
    assert rows[3][3:8] == (f"{'9' * 36}.99", 5e-324, 16777216.0, -(2**63), 127)
    assert rows[4][3:8] == ("-0.10", 1.7976931348623157e308, pytest.approx(0.1), 1, -128)
    assert rows[5][8:11] == ("\0 \U0001f600", bytearray(b"\0\xff"), False)
    assert rows[6][11].asDict() == {"a": 1, "b": ["x", None]}
    assert {name: None if one is None else str(one) for name, one in rows[6][12].items()} == {"": "1.5", "b": None}
    assert rows[7][11:] == (None, {})
    quarantine = spark.read.format("delta").load(f"{to}_quarantine").orderBy("_offset").collect()
    assert [(bytes(row.body).decode(), row.field) for row in quarantine] == list(_MISFITS)
    assert all(row.reason for row in quarantine)


@pytest.fixture
def run(spark: SparkSession, filled: Filled, tmp_path: Path) -> Callable[[str], dict[str, int]]:
    """Export the topic `orders` to the table `silver` by a schema."""

    def export(schema: str) -> dict[str, int]:
        return export_topic(spark, "orders", str(tmp_path / "silver"), schema=schema, warehouse=filled.warehouse.uri)

    return export


@pytest.mark.long
def test_spark_20_another_type_is_refused_by_name_and_the_first_schema_goes_on(
    spark: SparkSession, filled: Filled, tmp_path: Path, run: Callable[[str], dict[str, int]]
) -> None:
    to, store = str(tmp_path / "silver"), storage(filled.uri)
    filled.append("orders", "orders@a", *_bodies({"id": 1, "amount": 1.5, "o": {"a": 1}}))
    first = "id BIGINT, amount DOUBLE, o STRUCT<a: INT>"
    assert run(first)["rows"] == 1
    filled.append("orders", "orders@a", *_bodies({"id": 2, "amount": 2.5, "o": {"a": 2, "b": "x"}}))
    with pytest.raises(Refused, match=r"amount is string here and double in .*silver") as raised:
        run("id BIGINT, amount STRING, o STRUCT<a: INT>")
    assert (raised.value.code, raised.value.field) == ("schema_changed", "schema")
    [found] = definitions(store)
    plans = Plans(store, found.id)
    assert found.schema == first and plans.unfinished(plans.state()) is None

    # Added without Spark, the wrong schema is noticed by the run, which plans nothing.
    wrong = msgspec.structs.replace(found, schema="id BIGINT, o STRUCT<a: STRING>")
    with pytest.raises(Refused, match=r"o\.a is string here and int"):
        run_export(spark, store, wrong, filled.uri)
    assert plans.unfinished(plans.state()) is None
    failure = read_failure(store, found.id)
    assert failure is not None and "o.a is string here and int" in failure.detail

    # A plan that cannot be carried out, of an application before this rule or of a table that was changed since.
    plans.put(ExportPlan(batch=1, schema=wrong.schema, ranges={"orders@a:0": (1, 2)}))
    assert run("id BIGINT, amount DOUBLE, o STRUCT<a: INT, b: STRING>")["rows"] == 1
    assert read_failure(store, found.id) is None
    rows = spark.read.format("delta").load(to).orderBy("_offset").collect()
    assert [(row.id, row.amount, row.o.asDict()) for row in rows] == [
        (1, 1.5, {"a": 1, "b": None}),
        (2, 2.5, {"a": 2, "b": "x"}),
    ]


@pytest.mark.long
def test_spark_20_a_batch_that_is_in_the_typed_table_is_finished_by_the_schema_of_its_plan(
    spark: SparkSession, filled: Filled, tmp_path: Path, run: Callable[[str], dict[str, int]]
) -> None:
    filled.append("orders", "orders@a", *_bodies({"id": 1}, {"id": None}))
    arm("export.after_typed=raise")
    try:
        with pytest.raises(FailpointHit):
            run("id BIGINT NOT NULL")
    finally:
        arm("")
    assert run("id BIGINT")["quarantined"] == 1
    typed, unfit = (spark.read.format("delta").load(f"{tmp_path}/silver{end}") for end in ("", "_quarantine"))
    assert [[row._offset for row in rows.collect()] for rows in (typed, unfit)] == [[0], [1]]


@pytest.mark.long
def test_spark_20_a_plan_of_a_life_of_the_topic_that_is_over_is_refused_or_passed_over(
    spark: SparkSession, filled: Filled, run: Callable[[str], dict[str, int]]
) -> None:
    filled.append("orders", "orders@a", *_bodies({"id": 1}))
    assert run("id BIGINT")["rows"] == 1
    filled.append("orders", "orders@a", *_bodies({"id": 2}))
    store = storage(filled.uri)
    [found] = definitions(store)
    Plans(store, found.id).put(ExportPlan(batch=1, schema="id BIGINT", ranges={"orders@a:7": (0, 5)}))
    with pytest.raises(Refused, match="orders@a:7 was deleted with messages") as raised:
        run("id BIGINT")
    assert raised.value.code == "data_lost"
    allowed = msgspec.structs.replace(found, fail_on_data_loss=False)
    done = run_export(spark, store, allowed, filled.uri)
    assert (done["batches"], done["rows"]) == (2, 1)


@pytest.mark.long
def test_spark_21_an_export_that_is_removed_and_added_goes_on_where_its_table_is(
    spark: SparkSession, filled: Filled, tmp_path: Path, run: Callable[[str], dict[str, int]]
) -> None:
    to, store = str(tmp_path / "silver"), storage(filled.uri)
    filled.append("orders", "orders@a", *_bodies({"id": 1}, {"id": "x"}))
    assert run("id BIGINT")["rows"] == 1
    remove_definition(store, "orders")
    filled.append("orders", "orders@a", *_bodies({"id": 3}))
    assert run("id BIGINT")["rows"] == 1
    assert sorted(row._offset for row in spark.read.format("delta").load(to).collect()) == [0, 2]
    assert spark.read.format("delta").load(f"{to}_quarantine").count() == 1

    for gone in (f"{to}_quarantine", to):
        shutil.rmtree(gone)
        with pytest.raises(NotFound, match=rf"export orders: its table {gone} is gone") as raised:
            run("id BIGINT")
        assert raised.value.code == "table_not_found" and "--forget" in raised.value.detail
    remove_definition(store, "orders", forget=True)
    assert run("id BIGINT")["rows"] == 2
    assert sorted(row._offset for row in spark.read.format("delta").load(to).collect()) == [0, 2]


def test_spark_20_columns_are_compared_wherever_they_are(spark: SparkSession) -> None:
    def of(ddl: str) -> Any:
        return spark.createDataFrame([], ddl).schema

    there = of("id BIGINT, a ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>, o STRUCT<p: STRUCT<q: DATE>>")
    check_columns(of("ID BIGINT, new STRING, a ARRAY<STRUCT<x: INT, y: INT>>, o STRUCT<p: STRUCT<r: INT>>"), there, "t")
    with pytest.raises(Refused) as raised:
        check_columns(of("id INT, a ARRAY<STRUCT<x: BIGINT>>, m MAP<STRING, STRING>, o STRUCT<p: INT>"), there, "t")
    for change in ("id is int here", "a[].x is bigint", "m[] is string here", "o.p is int here and struct<q:date>"):
        assert change in raised.value.detail
    assert columns_of(spark, "nowhere.at_all") is None
