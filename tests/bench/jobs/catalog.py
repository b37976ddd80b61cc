"""Queries through views, `read_topic` and `format("mq")`, beside `format("delta")` on the same partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any, Final

from deltamq.tables.config import load
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import Flush
from tests.bench.figure import Figure
from tests.bench.payloads import record_batch
from tests.bench.registry import bench
from tests.bench.session import Session
from tests.bench.spark import SparkCounter

__all__: list[str] = []

_PARTITIONS: Final = 4
_APPEND_MESSAGES: Final = 100_000
_WARMUPS: Final = 4
#: Queries of half a second on a machine with other programs: many pairs, or the median is a matter of luck.
_PAIRS_A_WINDOW: Final = 4
_QUERIES: Final[dict[str, Callable[[Any], Any]]] = {
    "count": lambda rows: rows.groupBy().count(),
    "filter": lambda rows: rows.where("key = 'aircraft-00007'").groupBy().count(),
    "offsets": lambda rows: rows.where("offset >= 1000 AND offset < 2000").selectExpr("sum(length(body))"),
    "columns": lambda rows: rows.selectExpr("sum(offset)", "max(key)"),
}
#: What a user of `format("mq")` names in its option `columns`.
_COLUMNS: Final = {"count": "offset", "filter": "key", "offsets": "offset, body", "columns": "offset, key"}


@bench("catalog")
def catalog_views(session: Session) -> Iterator[Figure]:
    """How much longer queries take through a catalog's view than on the Delta tables themselves."""
    with SparkCounter(session) as counter:
        spark = counter.started()
        if spark is None:
            session.say("no catalog figures: a quick run starts no Spark")
            return
        yield from _measured(session, spark)


def _measured(session: Session, spark: Any) -> Iterator[Figure]:
    from pyspark.sql import DataFrame

    from deltamq.jobs.sql.catalog import register_tables

    folder = session.fresh("catalog")
    warehouse = Warehouse.open(str(folder))
    places = _filled(warehouse, session.effort.history_messages)
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS bench LOCATION '{folder}/spark'")
    register_tables(spark, "bench", load(overrides={"warehouse.uri": str(folder)}, environ={}))
    warehouse.close()

    def plain() -> Any:
        return reduce(DataFrame.unionAll, [spark.read.format("delta").load(place) for place in places])

    for name, query in _QUERIES.items():
        for way, made in _ways(spark, str(folder), _COLUMNS[name]).items():
            ratios = _ratios(partial(_asked, query, made), partial(_asked, query, plain), session)
            what = f"{name} through {way}, against format(delta) on the same partitions"
            yield session.figure(f"catalog.{name}.{way}.ratio", what, "", ratios)


def _asked(query: Callable[[Any], Any], read: Callable[[], Any]) -> Any:
    return query(read())


def _ways(spark: Any, warehouse: str, columns: str) -> dict[str, Callable[[], Any]]:
    """Ways to read the topic other than `format("delta")`."""
    from deltamq.jobs.sql.reader import read_topic

    mq = spark.read.format("mq").options(topic="orders", warehouse=warehouse, columns=columns)
    return {
        "view": lambda: spark.table("bench.topic_orders"),
        "read_topic": lambda: read_topic(spark, topic="orders", warehouse=warehouse),
        "mq": mq.load,
    }


def _filled(warehouse: Warehouse, messages: int) -> list[str]:
    rows = record_batch(_APPEND_MESSAGES, 100, keys=1_000)
    places = []
    for number in range(_PARTITIONS):
        log = warehouse.create(PartitionRef(Space.TOPICS, "orders", f"orders#{number}@broker-a"))
        for _ in range(max(1, messages // _APPEND_MESSAGES // _PARTITIONS)):
            log.append([Batch(rows)], flush=Flush.ASYNC)
            log.maintain()
        log.flush()
        places.append(log.location)
    return places


def _ratios(one: Callable[[], Any], other: Callable[[], Any], session: Session) -> list[float]:
    """The two in turn, so that what disturbs them disturbs both."""
    found = []
    for _ in range(_WARMUPS + _PAIRS_A_WINDOW * session.effort.windows):
        took = []
        for made in (one, other):
            began = time.perf_counter()
            made().collect()
            took.append(time.perf_counter() - began)
        found.append(took[0] / took[1])
    return found[_WARMUPS:]
