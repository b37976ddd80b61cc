"""Topics, groups and dead letters in a Spark catalog, Unity Catalog included (SPEC SPARK-11).

    present entries (one SHOW)  +  wanted entries (metadata, folders)  -->  CREATE and DROP the difference

Tables are external: dropping one leaves the data where it is. Views are unions of tables, which Spark plans natively:
columns are pruned and files skipped as with `format("delta")`. Each run follows expansions, deletions and topics that
were deleted and created again. `jobs.sql.catalog_entries` has the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import groupby
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deltamq.jobs.read.identifiers import literal, quoted
from deltamq.jobs.run.registry import Facts, job
from deltamq.jobs.spark.datasource import chosen_warehouse
from deltamq.jobs.sql.catalog_entries import PARTITIONS, entries_of
from deltamq.jobs.sql.catalog_plan import CatalogEntry, CatalogStep, Made, made_of, plan_steps
from deltamq.jobs.sql.queue_source import register_queue_sources
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.warehouses import absolute
from deltamq.mq.errors import Conflict, Refused
from deltamq.tables.config import Config
from deltamq.tables.store.store import Store

_SCHEMA: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)?")
_COMMENT: Final = re.compile(r"^Comment:\s*(.*)$", re.MULTILINE)
_VIEW: Final = re.compile(r"^Type:\s*VIEW\s*$", re.MULTILINE)
_SHOWN_MAX: Final = 5
_IN_MEMORY: Final = "in-memory"
_STATEMENTS_AT_ONCE: Final = 8


@job(name="catalog", every_s=lambda conf: conf.jobs.catalog_every_s)
def catalog(spark: SparkSession, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Keep the catalog's tables and views in step with the topics.

    Input: the metadata, the folders of partitions, the state tables, and the tables that the catalog has.
    Output: the schema `jobs.catalog_schema` with a table for each partition and views for topics, groups and dead
    letters; the state table `state/partitions`.
    Idempotent: an unchanged entry stays as it is; a table that this job did not make is never touched.
    A kill at any line leaves some statements done; the next run does the others.

    An in-memory catalog ends with its application and is visible only there, so the job does nothing there. Use
    `register_tables` in the session that needs the tables, or a metastore (`spark.sql.catalogImplementation=hive`).

    Raises
    ------
    Conflict
        A name is taken by a table that this job did not make; all other entries are up to date.
    """
    implementation = spark.conf.get("spark.sql.catalogImplementation", _IN_MEMORY)
    if "." not in conf.jobs.catalog_schema and implementation == _IN_MEMORY:
        return {"skipped": "in-memory-catalog"}
    done = _registered(spark, absolute(conf.warehouse.uri), conf.jobs.catalog_schema)
    return {"made": sum(step.make is not None for step in done), "dropped": sum(step.make is None for step in done)}


def register_tables(spark: SparkSession, schema: str = "deltamq", conf: Config | None = None) -> list[str]:
    """Make, change and drop tables and views so that a schema shows a warehouse as it is now.

    Parameters
    ----------
    spark
        A session of `jobs.sql.spark_session`, or any with Delta.
    schema
        SCHEMA, or CATALOG.SCHEMA; it is created if it does not exist.
    conf
        The settings that name the warehouse; by default it is the session's, or the profile's.

    Returns
    -------
    list of str
        The names of all tables and views of the warehouse in the schema, sorted.

    Raises
    ------
    Conflict
        A name is taken by a table or view that this function did not make; all other entries are up to date.

    Examples
    --------
    >>> register_tables(spark, "deltamq")                                      # doctest: +SKIP
    >>> spark.sql("SELECT tag, count(*) FROM deltamq.topic_orders GROUP BY 1") # doctest: +SKIP
    """
    warehouse = chosen_warehouse(spark, conf)
    _registered(spark, warehouse, schema)
    return sorted(made.name for made in _present(spark, schema) if made.warehouse == warehouse)


def _registered(spark: SparkSession, warehouse: str, schema: str) -> Sequence[CatalogStep]:
    if _SCHEMA.fullmatch(schema) is None:
        raise Refused(f"schema must be SCHEMA or CATALOG.SCHEMA, not {schema!r}", field="schema")
    store = storage(warehouse)
    _write_partitions(spark, store, warehouse)
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(*schema.split('.'))} COMMENT 'Topics of DeltaMQ'")
    steps, taken = plan_steps(entries_of(store, schema), _present(spark, schema), warehouse)
    done = list(_carried_out(steps, lambda step: _do(spark, store, schema, step, warehouse)))
    if taken:
        names = ", ".join(taken[:_SHOWN_MAX])
        raise Conflict(
            f"{schema} has {len(taken)} tables or views that DeltaMQ did not make from {warehouse}: {names}; "
            "drop them, or take another schema",
            code="catalog_name_taken",
        )
    return done


def _carried_out(steps: Sequence[CatalogStep], do: Callable[[CatalogStep], bool]) -> Iterator[CatalogStep]:
    """Carry out the steps in order, adjacent table steps in parallel; yield the steps that took effect.

    A metastore answers in tens of milliseconds, and a first run makes tables for thousands of partitions.
    """
    with ThreadPoolExecutor(_STATEMENTS_AT_ONCE) as pool:
        for kind, group in groupby(steps, key=_kind):
            adjacent = list(group)
            run = map(do, adjacent) if kind == "view" else pool.map(do, adjacent)
            yield from (step for step, done in zip(adjacent, run, strict=True) if done)


def _kind(step: CatalogStep) -> str:
    """Adjacent steps of one kind run in parallel, except views, which may use each other."""
    if step.drop_view or (step.make is not None and step.make.query):
        return "view"
    return "drop" if step.drop_table else "make"


def _write_partitions(spark: SparkSession, store: Store, warehouse: str) -> None:
    """A persistent view cannot read our data sources, so the partitions and offsets are written into a table."""
    register_queue_sources(spark)
    rows = spark.read.format("mq_partitions").option("warehouse", warehouse).load().coalesce(1)
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(store.uri(PARTITIONS))


def _present(spark: SparkSession, schema: str) -> Iterator[Made]:
    """With one statement: a statement for each of 10,000 tables would take minutes."""
    for row in spark.sql(f"SHOW TABLE EXTENDED IN {quoted(*schema.split('.'))} LIKE '*'").collect():
        if not row.isTemporary:
            comment = _COMMENT.search(row.information)
            is_view = _VIEW.search(row.information) is not None
            yield made_of(row.tableName, is_view, comment[1] if comment else "")


def _do(spark: SparkSession, store: Store, schema: str, step: CatalogStep, warehouse: str) -> bool:
    """False: the step had no effect because its partition was deleted a moment ago."""
    name = quoted(*schema.split("."), step.name)
    if step.make is None:
        spark.sql(f"DROP {'VIEW' if step.drop_view else 'TABLE'} IF EXISTS {name}")
        return True
    try:
        spark.sql(_statement(name, step.make, warehouse))
    except PySparkException:
        # If the topic was deleted since the plan was made, the tables that a view needs are gone.
        if _still_wanted(store, schema, step.make):
            raise
        return False
    return True


def _still_wanted(store: Store, schema: str, entry: CatalogEntry) -> bool:
    return any(wanted.name == entry.name and wanted.digest == entry.digest for wanted in entries_of(store, schema))


def _statement(name: str, entry: CatalogEntry, warehouse: str) -> str:
    comment = literal(entry.comment(warehouse))
    if entry.query:
        return f"CREATE OR REPLACE VIEW {name} COMMENT {comment} AS {entry.query}"
    return f"CREATE TABLE IF NOT EXISTS {name} USING delta COMMENT {comment} LOCATION {literal(entry.location)}"
