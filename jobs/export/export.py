"""Exports a topic to a typed Delta table, batch by batch and exactly once (SPEC SPARK-9, SPARK-19 to 21).

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

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltamq.jobs.export.definition import COLUMNS, Definition, definition_of, definitions, save, sharing
from deltamq.jobs.export.plan import ExportPlan, Plans, next_ranges
from deltamq.jobs.export.typed_body import FITS, fields_of, quarantine_columns, typed_columns, with_verdict
from deltamq.jobs.export.typed_table import batch_mark, check_columns, columns_of, has_batch, named
from deltamq.jobs.read.offset_range import stored_partitions
from deltamq.jobs.read.topics import Catalog, TopicPartition
from deltamq.jobs.run.locks import shard_lock
from deltamq.jobs.run.registry import WHOLE, Facts, job
from deltamq.jobs.spark.datasource import session_warehouse
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.tasks.task_errors import errors_of_tasks
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import DeltaMQError, NotFound, Refused, Unavailable
from deltamq.mq.static.reading import StoredOffsets
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.config import Config
from deltamq.tables.failpoints import failpoint
from deltamq.tables.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    check_definition(spark, wanted)
    return run_export(spark, store, save(store, wanted), _warehouse(spark, warehouse))


def check_definition(spark: SparkSession, wanted: Definition) -> None:
    """Refuse a definition whose schema is none, or does not suit its table as it is."""
    there = columns_of(spark, wanted.to)
    schema = fields_of(wanted.schema)
    if there is not None:
        check_columns(schema, there, wanted.to)


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
        except (DeltaMQError, PySparkException) as error:
            failed.append(f"{found.name}: {str(error).splitlines()[0]}")
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
        # It would take what the other one has put there meanwhile with it.
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
        self._tables = (found.to, found.quarantine)
        self._plans = Plans(store, found.id)
        self._state = self._plans.state()
        self._done = {"batches": 0, "rows": 0, "quarantined": 0, "lost": 0}

    def run(self) -> dict[str, int]:
        """Finish the batch that was begun, then carry out batch after batch."""
        self.resume()
        while plan := self._next():
            self._carry_out(self._plans.put(plan))
        return self._done

    def resume(self) -> None:
        """Check schema and tables, then finish the batch that an earlier run has begun, if any."""
        check_definition(self._spark, self._found)
        if self._state.rows or self._state.quarantined:
            for to in self._tables:
                if columns_of(self._spark, to) is None:
                    raise self._gone(to)
        plan = self._plans.unfinished(self._state)
        if plan is not None:
            self._carry_out(self._still(plan))

    def _gone(self, to: str) -> NotFound:
        name, rows = self._found.name, self._state.rows
        detail = (
            f"export {name}: its table {to} is gone, and with it what the export wrote there ({rows} rows fitted in "
            f"all). Restore it; or, to store everything again that the topic still has, run "
            f"'deltamq jobs export remove {name} --forget' and add the export again"
        )
        return NotFound(detail, code="table_not_found", field="to")

    def _still(self, plan: ExportPlan) -> ExportPlan:
        """Return the plan as it can be carried out now; if nothing of it is in a table, it is made anew."""
        if not any(has_batch(self._spark, to, batch_mark(self._found.id, plan.batch)) for to in self._tables):
            anew = msgspec.structs.replace(plan, schema=self._found.schema)
            if plan.quarantine_version is not None:
                version = self._version(self._found.quarantine)
                anew = msgspec.structs.replace(anew, quarantine_version=version)
            plan = plan if plan == anew else self._plans.put_again(anew)
        if plan.quarantine_version is not None:
            return plan
        there = self._stored(Catalog(self._store).partitions(self._found.topic))
        gone = sorted(plan.ranges.keys() - there)
        if gone and self._found.fail_on_data_loss:
            raise self._lost(f"{', '.join(gone)} was deleted with messages that were not exported")
        # Not stored: what is left out is so again if this run is killed.
        return msgspec.structs.replace(plan, ranges={at: plan.ranges[at] for at in plan.ranges if at in there})

    def _lost(self, what: str) -> Refused:
        detail = f"export {self._found.name}: {what}; allow it with fail_on_data_loss=False (--allow-data-loss)"
        return Refused(detail, code="data_lost")

    def replay(self) -> dict[str, int]:
        """Plan and carry out a batch of the quarantine table."""
        if columns_of(self._spark, self._found.quarantine) is not None:
            version = self._version(self._found.quarantine)
            plan = ExportPlan(batch=self._state.batch + 1, schema=self._found.schema, quarantine_version=version)
            self._carry_out(self._plans.put(plan))
        return self._done

    def _next(self) -> ExportPlan | None:
        catalog, now_ms = Catalog(self._store), SYSTEM_CLOCK.wall_us() // 1_000
        partitions = catalog.partitions(self._found.topic)
        closed = {one.name for one in partitions if not catalog.is_readable(one, now_ms)}
        stored = self._stored([one for one in partitions if one.name not in closed])
        ranges, lost = next_ranges(self._state.ends, stored, self._found.batch_rows)
        if lost and self._found.fail_on_data_loss:
            raise self._lost(f"retention removed {lost} messages that were not exported")
        self._done["lost"] += lost
        if not ranges:
            return None
        return ExportPlan(batch=self._state.batch + 1, schema=self._found.schema, ranges=ranges)

    def _stored(self, partitions: Sequence[TopicPartition]) -> dict[str, StoredOffsets]:
        """Return the stored offsets of partitions, as plans and progress name these."""
        found = stored_partitions(self._store, partitions)
        return {f"{one.name}:{one.partition.ref.generation}": one.offsets for one in found}

    # One batch.

    def _carry_out(self, plan: ExportPlan) -> None:
        """Write a batch to both tables, as far as an earlier run has not."""
        with errors_of_tasks():
            fit, unfit = self._written(plan) if plan.ranges or plan.quarantine_version is not None else (0, 0)
        self._state = self._plans.finish(plan, self._state, rows=fit, quarantined=unfit)
        self._done["batches"] += 1
        self._done["rows"] += fit
        self._done["quarantined"] += unfit

    def _written(self, plan: ExportPlan) -> tuple[int, int]:
        """Write a batch; return how many messages fit, and how many do not."""
        schema, replayed = fields_of(plan.schema), plan.quarantine_version is not None
        messages = self._quarantined(plan) if replayed else self._messages(plan)
        parsed = with_verdict(messages, schema).persist()
        try:
            counts = {row[FITS]: row["count"] for row in parsed.groupBy(FITS).count().collect()}
            fit, unfit = counts.get(True, 0), counts.get(False, 0)
            if fit or columns_of(self._spark, self._found.to) is None:
                self._write(parsed.where(FITS).select(typed_columns(schema, self._found.columns)), plan, self._found.to)
            failpoint("export.after_typed")
            rest = parsed.where(~F.col(FITS)).select(quarantine_columns())
            if unfit or replayed or columns_of(self._spark, self._found.quarantine) is None:
                self._write(rest, plan, self._found.quarantine, overwrite=replayed)
        finally:
            parsed.unpersist()
        return fit, unfit

    def _messages(self, plan: ExportPlan) -> DataFrame:
        """Return the messages at the planned offsets; if retention has removed one since, it is an error."""
        topic = self._found.topic
        names = {name.rsplit(":", 1)[0]: bounds for name, bounds in plan.ranges.items()}
        read = read_topic(
            self._spark,
            assign=json.dumps({topic: list(names)}),
            startingOffsets=json.dumps({topic: {name: low for name, (low, _) in names.items()}}),
            endingOffsets=json.dumps({topic: {name: high for name, (_, high) in names.items()}}),
            failOnDataLoss=str(self._found.fail_on_data_loss).lower(),
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
        writer = writer.option("userMetadata", batch_mark(self._found.id, plan.batch)).option("mergeSchema", "true")
        if self._found.is_path:
            writer.save(to)
        else:
            writer.saveAsTable(to)

    def _version(self, to: str) -> int:
        """Return the newest version of a table."""
        return int(self._spark.sql(f"DESCRIBE HISTORY {named(to)} LIMIT 1").collect()[0]["version"])


def _warehouse(spark: SparkSession, warehouse: str | None) -> str:
    found = warehouse or session_warehouse(spark)
    if not found:
        raise Refused("warehouse: give one; this session has no default", field="warehouse")
    return str(found)
