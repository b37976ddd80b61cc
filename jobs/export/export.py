"""Exports a topic to a typed Delta table, batch by batch and exactly once (SPEC SPARK-9).

    plan (file) -> these offsets -> parse -> typed table [txn N] -> state
                                        '---> quarantine table [txn N], what does not fit

Spark's tasks read, parse and write; the driver plans offsets and counts. A batch of the quarantine table is planned,
too: it is the table at a version, parsed again by the current schema. What fits goes to the typed table, and the
quarantine table keeps the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.export.definition import COLUMNS, Definition, definition_of, definitions, save, sharing
from jobs.export.plan import ExportPlan, Plans, next_ranges
from jobs.export.typed_body import FITS, fields_of, quarantine_columns, typed_columns, with_verdict
from jobs.read import Catalog, stored_partitions
from jobs.run import WHOLE, Facts, job, shard_lock
from jobs.spark import session_warehouse
from jobs.sql import read_topic
from jobs.tasks import storage
from mq.errors import DeltaMQError, NotFound, Refused, Unavailable
from tables.clock import SYSTEM_CLOCK
from tables.config import Config
from tables.failpoints import failpoint
from tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["export", "export_topic", "replay_quarantine", "run_export"]

_MESSAGE: Final = ("body", "partition", "offset", *COLUMNS)


def export_topic(
    spark: SparkSession,
    topic: str,
    to: str,
    *,
    schema: str | None = None,
    json_schema: Mapping[str, object] | None = None,
    name: str | None = None,
    columns: Sequence[str] = ("append_time",),
    warehouse: str | None = None,
    fail_on_data_loss: bool = True,
) -> dict[str, int]:
    """Append the messages since the last call to a typed Delta table; return counts.

    Parameters
    ----------
    to
        A path (with a `/`) or the name of a table; messages that do not fit go to `<to>_quarantine`.
    schema, json_schema
        The fields of a body as DDL (`"id BIGINT NOT NULL, amount DOUBLE"`) or as a JSON schema. A call with more fields
        than the call before adds columns to the table.
    name
        The name of the export's progress; by default that of the topic.
    columns
        Columns of the message to include, each named with a leading `_`; `_partition` and `_offset` always are.

    Examples
    --------
    >>> export_topic(spark, "orders", "/lake/orders", schema="id BIGINT, amount DOUBLE")  # doctest: +SKIP
    """
    store = storage(_warehouse(spark, warehouse))
    wanted = definition_of(
        topic,
        to,
        schema=schema,
        json_schema=json_schema,
        name=name,
        columns=columns,
        fail_on_data_loss=fail_on_data_loss,
    )
    fields_of(wanted.schema)
    return run_export(spark, store, save(store, wanted), _warehouse(spark, warehouse))


def _defined(conf: Config) -> list[Definition]:
    """Return the exports that are defined; none if there is no warehouse yet."""
    try:
        return definitions(storage(conf.warehouse.uri))
    except NotFound:
        return []


@job(
    name="export",
    every_s=lambda conf: conf.jobs.export_every_s,
    needs_spark=lambda conf: bool(_defined(conf)),
    shards=lambda conf: tuple(found.name for found in _defined(conf)) or WHOLE,
)
def export(spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Append new messages of topics to typed tables: every export that is defined (deltamq jobs export add).

    Input: the definitions in the warehouse, the topics' message tables, and for each export its state and its plan.
    Output: rows in the typed tables and in the quarantine tables beside them, and the state.
    Idempotent: a batch is a plan that is stored first, and both tables' commits carry its number as Delta's `txn`. If a
    batch is repeated, a table that has its number stays unchanged. A kill at any line leaves a plan that is not in the
    state, which the next run carries out first. An export that fails does not keep the others from running.
    """
    store = storage(conf.warehouse.uri)
    facts: dict[str, int | str] = {"exports": 0, "rows": 0, "quarantined": 0}
    failed: list[str] = []
    for found in definitions(store):
        if shards is not None and found.name not in shards:
            continue
        try:
            if shards is None:
                done = run_export(spark, store, found, conf.warehouse.uri)
            else:
                done = _Export(spark, store, found, conf.warehouse.uri).run()
        except DeltaMQError as error:
            failed.append(f"{found.name}: {error}")
            continue
        facts["exports"] = int(facts["exports"]) + 1
        for name in ("rows", "quarantined"):
            facts[name] = int(facts[name]) + done[name]
        facts[found.name] = done["rows"]
    if failed:
        raise Unavailable("; ".join(failed), code="export_failed")
    return facts


def run_export(spark: SparkSession, store: Store, found: Definition, warehouse: str) -> dict[str, int]:
    """Carry out one export up to the current end of its topic; one driver at a time.

    Raises
    ------
    Refused
        `data_lost`: retention removed messages before they were exported, and the definition does not allow that.
    """
    with shard_lock(store, "export", found.name):
        return _Export(spark, store, found, warehouse).run()


def replay_quarantine(spark: SparkSession, store: Store, found: Definition, warehouse: str) -> dict[str, int]:
    """Parse the quarantine table again by the definition's current schema; what fits moves to the typed table."""
    other = sharing(store, found)
    if other is not None:
        # It would take what the other one has put there meanwhile with it. (Earlier releases allowed two.)
        raise Refused(f"to: exports {found.name} and {other} share a quarantine; give one of them its own", field="to")
    with shard_lock(store, "export", found.name):
        export_now = _Export(spark, store, found, warehouse)
        export_now.resume()
        return export_now.replay()


class _Export:
    """One run of one export."""

    def __init__(self, spark: SparkSession, store: Store, found: Definition, warehouse: str) -> None:
        self._spark = spark
        self._store = store
        self._found = found
        self._warehouse = warehouse
        self._plans = Plans(store, found.id)
        self._state = self._plans.state()
        self._done = {"batches": 0, "rows": 0, "quarantined": 0, "lost": 0}

    def run(self) -> dict[str, int]:
        """Finish the batch that was begun, then carry out batch after batch."""
        self.resume()
        while plan := self._next():
            self._carry_out(self._plans.put(plan), again=False)
        return self._done

    def resume(self) -> None:
        """Finish the batch that an earlier run has begun, if any."""
        plan = self._plans.unfinished(self._state)
        if plan is not None:
            self._carry_out(plan, again=True)

    def replay(self) -> dict[str, int]:
        """Plan and carry out a batch of the quarantine table."""
        version = self._version(self._found.quarantine)
        if version is not None:
            plan = ExportPlan(batch=self._state.batch + 1, schema=self._found.schema, quarantine_version=version)
            self._carry_out(self._plans.put(plan), again=False)
        return self._done

    def _next(self) -> ExportPlan | None:
        catalog, now_ms = Catalog(self._store), SYSTEM_CLOCK.wall_us() // 1_000
        partitions = catalog.partitions(self._found.topic)
        closed = {one.name for one in partitions if not catalog.is_readable(one, now_ms)}
        stored = {
            f"{one.name}:{one.partition.ref.generation}": one.offsets
            for one in stored_partitions(self._store, [one for one in partitions if one.name not in closed])
        }
        ranges, lost = next_ranges(self._state.ends, stored, self._found.batch_rows)
        if lost and self._found.fail_on_data_loss:
            detail = (
                f"export {self._found.name}: retention removed {lost} messages that were not exported; allow it with"
            )
            raise Refused(f"{detail} fail_on_data_loss=False (--allow-data-loss)", code="data_lost")
        self._done["lost"] += lost
        if not ranges:
            return None
        return ExportPlan(batch=self._state.batch + 1, schema=self._found.schema, ranges=ranges)

    # One batch.

    def _carry_out(self, plan: ExportPlan, *, again: bool) -> None:
        """Write a batch to both tables; `again` means that an earlier run may have written some of it."""
        schema = fields_of(plan.schema)
        messages = self._messages(plan) if plan.quarantine_version is None else self._quarantined(plan)
        parsed = with_verdict(messages, schema).persist()
        try:
            counts = {row[FITS]: row["count"] for row in parsed.groupBy(FITS).count().collect()}
            fit, unfit = counts.get(True, 0), counts.get(False, 0)
            if fit or plan.batch == 0:
                self._write(parsed.where(FITS).select(typed_columns(schema, self._found.columns)), plan, self._found.to)
            failpoint("export.after_typed")
            rest = parsed.where(~F.col(FITS)).select(quarantine_columns(schema))
            if unfit or plan.batch == 0 or plan.quarantine_version is not None:
                self._write(rest, plan, self._found.quarantine, overwrite=plan.quarantine_version is not None)
        finally:
            parsed.unpersist()
        self._state = self._plans.finish(plan, self._state, rows=fit, quarantined=unfit)
        self._done["batches"] += 1
        self._done["rows"] += fit
        self._done["quarantined"] += unfit

    def _messages(self, plan: ExportPlan) -> DataFrame:
        """Return the messages at the planned offsets; if retention has removed one since, it is an error."""
        topic = self._found.topic
        names = {name.rsplit(":", 1)[0]: bounds for name, bounds in plan.ranges.items()}
        read = read_topic(
            self._spark,
            assign=json.dumps({topic: list(names)}),
            startingOffsets=json.dumps({topic: {name: low for name, (low, _) in names.items()}}),
            endingOffsets=json.dumps({topic: {name: high for name, (_, high) in names.items()}}),
            warehouse=self._warehouse,
        )
        return read.select(*_MESSAGE)

    def _quarantined(self, plan: ExportPlan) -> DataFrame:
        """Return the rows that were in quarantine when the plan was made, as messages."""
        reader = self._spark.read.format("delta").option("versionAsOf", str(plan.quarantine_version))
        found = reader.load(self._found.quarantine) if self._found.is_path else reader.table(self._found.quarantine)
        return found.select("body", *(F.col(f"_{name}").alias(name) for name in _MESSAGE if name != "body"))

    def _write(self, rows: DataFrame, plan: ExportPlan, to: str, *, overwrite: bool = False) -> None:
        writer = rows.write.format("delta").mode("overwrite" if overwrite else "append")
        writer = writer.option("txnAppId", f"deltamq-export-{self._found.id}").option("txnVersion", str(plan.batch))
        writer = writer.option("mergeSchema", "true")
        if self._found.is_path:
            writer.save(to)
        else:
            writer.saveAsTable(to)

    def _version(self, to: str) -> int | None:
        """Return the newest version of a table; None if it does not exist."""
        named = f"delta.`{to}`" if self._found.is_path else to
        try:
            return int(self._spark.sql(f"DESCRIBE HISTORY {named} LIMIT 1").collect()[0]["version"])
        except Exception as error:
            if self._state.quarantined:
                raise NotFound(f"the quarantine table {to} cannot be read: {error}", code="table_not_found") from error
            return None


def _warehouse(spark: SparkSession, warehouse: str | None) -> str:
    found = warehouse or session_warehouse(spark)
    if not found:
        raise Refused("warehouse: give one; this session has no default", field="warehouse")
    return str(found)
