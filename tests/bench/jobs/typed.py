"""A typed partition of 10,000,000 rows: Spark sums a field, finds one value, and one key is erased.

The rows are appended in order of `amount`, and ten thousand rows after each other have one key, as the messages of
busy times do; roll-ups and no compaction have run, so the files are those that a service leaves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.tables.config import Config, load
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.erasures import ask
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import Flush
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.registry import bench
from tests.bench.session import Session
from tests.bench.spark import SparkCounter
from tests.queue_tables import with_spark_engine

__all__: list[str] = []

_TOPIC: Final = "orders"
_ROWS: Final = 10_000_000
_APPEND_ROWS: Final = 100_000
_ROWS_OF_A_KEY: Final = 10_000
_SUMS: Final = {
    "column": "sum(value.amount)",
    "body": "sum(get_json_object(CAST(body AS STRING), '$.amount'))",
}
_EQUALS: Final = {
    "column": "value.amount = {amount}",
    "body": "get_json_object(CAST(body AS STRING), '$.amount') = '{amount}'",
}


@bench("typed.table")
def typed_table(session: Session) -> Iterator[Figure]:
    """A sum and a search by a field, beside the same out of the bodies; then the erasure of one key."""
    with SparkCounter(session) as counter:
        spark = counter.started()
        if spark is None:
            session.say("no figures of typed.table: a quick run starts no Spark")
            return
        conf = with_spark_engine(load(overrides={"warehouse.uri": str(session.fresh("typed.table"))}, environ={}))
        warehouse = Warehouse.open(conf.warehouse.uri)
        try:
            log = _filled(warehouse)
            yield from _read(session, spark, log)
            yield from _erased(session, spark, conf, warehouse, log)
        finally:
            close_warehouses()
            warehouse.close()


def _filled(warehouse: Warehouse) -> PartitionLog:
    log = warehouse.create(PartitionRef(Space.TOPICS, _TOPIC, f"{_TOPIC}@broker-a"))
    for first in range(0, _ROWS, _APPEND_ROWS):
        log.append([Batch(_rows(first))], flush=Flush.ASYNC)
        log.maintain()
    log.flush()
    return log


def _rows(first: int) -> pa.RecordBatch:
    """Rows with bodies of about 140 bytes, and their columns."""
    numbers = pa.array(np.arange(first, first + _APPEND_ROWS))
    text = numbers.cast(pa.string())
    ids = pc.binary_join_element_wise("order-", text, "")
    cities = pc.binary_join_element_wise("city of ", pc.utf8_slice_codeunits(text, -3), "")
    place = '","place":{"zip":"10115","city":"'
    bodies = pc.binary_join_element_wise(
        '{"id":"', ids, place, cities, '"},"tags":["a","bb","ccc"],"amount":', text, "}", ""
    )
    zips = pa.array(["10115"] * _APPEND_ROWS)
    tags = pa.array([["a", "bb", "ccc"]] * _APPEND_ROWS)
    places = pa.StructArray.from_arrays([zips, cities], ["zip", "city"])
    values = pa.StructArray.from_arrays([ids, numbers, places, tags], ["id", "amount", "place", "tags"])
    keys = pc.binary_join_element_wise("customer-", pc.divide(numbers, _ROWS_OF_A_KEY).cast(pa.string()), "")
    return pa.RecordBatch.from_pydict({"key": keys, "body": bodies.cast(pa.binary()), "value": values})


def _read(session: Session, spark: Any, log: PartitionLog) -> Iterator[Figure]:
    table = spark.read.format("delta").load(log.location)

    def took(rows: Any) -> float:
        began = time.perf_counter()
        rows.collect()
        return time.perf_counter() - began

    def window(_: float) -> dict[str, float]:
        sums = {name: took(table.selectExpr(text)) for name, text in _SUMS.items()}
        found = {name: took(table.where(text.format(amount=_ROWS // 3))) for name, text in _EQUALS.items()}
        return {"sum": sums["body"] / sums["column"], "search": found["body"] / found["column"], **sums}

    windows = session.windows(window, warmups=2)
    said = f"Spark sums a field of {log.end_offset:,} rows: how many times as fast as by get_json_object"
    yield session.figure_of("typed.table.sum.ratio", said, "x", "sum", windows)
    said = f"Spark finds one value of a field in {log.end_offset:,} rows: how many times as fast as by get_json_object"
    yield session.figure_of("typed.table.search.ratio", said, "x", "search", windows)
    read, whole = _files_read(spark, table.where(_EQUALS["column"].format(amount=_ROWS // 3))), len(log.files)
    yield session.figure("typed.table.search.files", "files that this search reads", "", [read], of=whole)


def _files_read(spark: Any, rows: Any) -> float:
    """Return how many files the scan of a query read, as its plan counts them."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        execution = rows.select("offset")._jdf.queryExecution()
        execution.executedPlan().executeCollect()
        leaves = execution.executedPlan().collectLeaves()
        return float(sum(leaves.apply(at).metrics().apply("numFiles").value() for at in range(leaves.length())))
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


def _erased(session: Session, spark: Any, conf: Config, warehouse: Warehouse, log: PartitionLog) -> Iterator[Figure]:
    from deltamq.jobs.upkeep.erase import erase

    log.refresh()
    before = {file.path for file in log.files}
    ask(warehouse.store, _TOPIC, (f"customer-{_ROWS // _ROWS_OF_A_KEY // 2}",), time.time_ns() // 1_000)
    began = time.perf_counter()
    facts = erase(spark, conf, datetime.now(UTC))
    took = time.perf_counter() - began
    if facts["rows"] != _ROWS_OF_A_KEY:
        raise LoadError(f"{facts['rows']} rows were erased: {facts}")
    log.refresh()
    replaced = float(len(before - {file.path for file in log.files}))
    said = f"files that the erasure of one key in {log.end_offset:,} rows writes again"
    yield session.figure(
        "typed.table.erase.files", said, "", [replaced], of=len(before), rows=_ROWS_OF_A_KEY, took_s=round(took, 1)
    )
