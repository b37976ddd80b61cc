"""A topic into a typed table: each message once, in the table or in quarantine (SPARK-9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.export.definition import COLUMNS, definitions
from jobs.export.export import export_topic, replay_quarantine
from jobs.export.typed_body import FITS, fields_of, quarantine_columns, with_verdict
from jobs.tasks.warehouse_files import storage
from tables.failpoints import FailpointHit, arm
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
    assert [(row.field, row.reason.split(":")[0], row._partition, row._offset) for row in lost] == [
        ("id", "is not bigint", "orders@a", 1),
        ("id", "is missing", "orders@a", 2),
        ("body", "is not UTF-8", "orders@b", 0),
        ("body", "is not a JSON object", "orders@b", 1),
        ("body", "is not JSON", "orders@b", 2),
    ]
    assert bytes(lost[0].body) == b'{"id": "x", "amount": 1}' and lost[0].reason.endswith(": x")

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
    reasons = {row.reason.split(":")[0] for row in columns.select(quarantine_columns(fields_of("id BIGINT"))).collect()}
    assert reasons <= {"has more than one JSON value", "is not JSON"}
