"""Exports a topic to a typed Delta table, batch by batch and exactly once (SPEC SPARK-9, SPARK-19 to 21).

    plan (file) -> these offsets -> parse -> typed table [txn N] -> state
                                        '---> quarantine table [txn N], the misfits

Spark's tasks read, parse and write; the driver plans offsets and counts. A batch of the quarantine table is planned,
too: it is the table at a version, parsed again by the current schema. Messages that fit go to the typed table, and the
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

from deltamq.jobs.export.definition import COLUMNS, definition_of, save, sharing
from deltamq.jobs.export.plan import ExportPlan, Plans, next_ranges
from deltamq.jobs.export.typed_body import FITS, fields_of, quarantine_columns, typed_columns, with_verdict
from deltamq.jobs.read.offset_range import stored_partitions
from deltamq.jobs.read.topics import Catalog, TopicPartition
from deltamq.jobs.run.locks import shard_lock
from deltamq.jobs.run.registry import WHOLE, Facts, job
from deltamq.jobs.spark.datasource import session_warehouse
from deltamq.jobs.sql.reader import read_topic
from deltamq.jobs.sql.typed_table import batch_mark, check_columns, columns_of, has_batch, named
from deltamq.jobs.tasks.first_lines import sentence_of
from deltamq.jobs.tasks.task_errors import errors_of_tasks
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import DeltaMQError, NotFound, Refused, Unavailable
from deltamq.mq.static.reading import StoredOffsets
from deltamq.tables.clock import SYSTEM_CLOCK
from deltamq.tables.config import Config
from deltamq.tables.failpoints import failpoint
from deltamq.tables.ops.exports import Definition, definitions
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
        The name of the export's progress; by default the topic's.
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
    """Refuse a definition whose schema is invalid, or does not suit its present table."""
    present = columns_of(spark, wanted.to)
    schema = fields_of(wanted.schema)
    if present is not None:
        check_columns(schema, present, wanted.to)


def _defined(conf: Config) -> list[Definition]:
    """None are defined if there is no warehouse yet."""
    try:
        return definitions(storage(conf.warehouse.uri))
    except NotFound:
        return []


@job(
    name="export",
    every_s=lambda conf: conf.jobs.export_every_s,
    needs_spark=lambda conf: bool(_defined(conf)),
    shards=lambda conf: tuple(definition.name for definition in _defined(conf)) or WHOLE,
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
    for definition in definitions(store):
        if shards is not None and definition.name not in shards:
            continue
        try:
            if shards is None:
                done = run_export(spark, store, definition, conf.warehouse.uri)
            else:
                done = _Export(spark, store, definition, conf.warehouse.uri).run()
        except (DeltaMQError, PySparkException) as error:
            failed.append(f"{definition.name}: {sentence_of(str(error))}")
            continue
        facts["exports"] = int(facts["exports"]) + 1
        for name in ("rows", "quarantined"):
            facts[name] = int(facts[name]) + done[name]
        facts[definition.name] = done["rows"]
    if failed:
        raise Unavailable("; ".join(failed), code="export_failed")
    return facts


def run_export(spark: SparkSession, store: Store, definition: Definition, warehouse: str) -> dict[str, int]:
    """Carry out one export up to the current end of its topic; one driver at a time.

    Raises
    ------
    Refused
        `data_lost`: retention removed messages before they were exported, and the definition does not allow that.
    """
    with shard_lock(store, "export", definition.name):
        return _Export(spark, store, definition, warehouse).run()


def replay_quarantine(spark: SparkSession, store: Store, definition: Definition, warehouse: str) -> dict[str, int]:
    """Parse the quarantine table again by the definition's current schema; rows that fit move to the typed table."""
    other = sharing(store, definition)
    if other is not None:
        # The replay would also take rows that the other export has put there meanwhile.
        raise Refused(
            f"to: exports {definition.name} and {other} share a quarantine; give one of them its own", field="to"
        )
    with shard_lock(store, "export", definition.name):
        export_now = _Export(spark, store, definition, warehouse)
        export_now.resume()
        return export_now.replay()


class _Export:
    def __init__(self, spark: SparkSession, store: Store, definition: Definition, warehouse: str) -> None:
        self._spark = spark
        self._store = store
        self._definition = definition
        self._warehouse = warehouse
        self._tables = (definition.to, definition.quarantine)
        self._plans = Plans(store, definition.id)
        self._state = self._plans.state()
        self._done = {"batches": 0, "rows": 0, "quarantined": 0, "lost": 0}

    def run(self) -> dict[str, int]:
        try:
            self.resume()
            while plan := self._next():
                self._carry_out(self._plans.put(plan))
        except (DeltaMQError, PySparkException) as error:
            self._plans.failed(_now_ms(), sentence_of(str(error)))
            raise
        self._plans.succeeded()
        return self._done

    def resume(self) -> None:
        """Check schema and tables, then finish the batch that an earlier run has begun, if any."""
        check_definition(self._spark, self._definition)
        if self._state.rows or self._state.quarantined:
            for to in self._tables:
                if columns_of(self._spark, to) is None:
                    raise self._gone(to)
        plan = self._plans.unfinished(self._state)
        if plan is not None:
            self._carry_out(self._adapted(plan))

    def _gone(self, to: str) -> NotFound:
        name, rows = self._definition.name, self._state.rows
        detail = (
            f"export {name}: its table {to} is gone, and with it the export's rows there ({rows} rows fitted in "
            f"all). Restore it; or, to store everything again that the topic still has, run "
            f"'deltamq jobs export remove {name} --forget' and add the export again"
        )
        return NotFound(detail, code="table_not_found", field="to")

    def _adapted(self, plan: ExportPlan) -> ExportPlan:
        """Adapt a plan to the present tables; if no table has any of it, plan it again."""
        if not any(has_batch(self._spark, to, batch_mark(self._definition.id, plan.batch)) for to in self._tables):
            again = msgspec.structs.replace(plan, schema=self._definition.schema)
            if plan.quarantine_version is not None:
                version = self._version(self._definition.quarantine)
                again = msgspec.structs.replace(again, quarantine_version=version)
            plan = plan if plan == again else self._plans.put_again(again)
        if plan.quarantine_version is not None:
            return plan
        present = self._stored(Catalog(self._store).partitions(self._definition.topic))
        gone = sorted(plan.ranges.keys() - present)
        if gone and self._definition.fail_on_data_loss:
            raise self._lost(f"{', '.join(gone)} was deleted with messages that were not exported")
        # Not stored: the next run leaves out the same if this run is killed.
        return msgspec.structs.replace(plan, ranges={at: plan.ranges[at] for at in plan.ranges if at in present})

    def _lost(self, what: str) -> Refused:
        detail = f"export {self._definition.name}: {what}; allow it with fail_on_data_loss=False (--allow-data-loss)"
        return Refused(detail, code="data_lost")

    def replay(self) -> dict[str, int]:
        if columns_of(self._spark, self._definition.quarantine) is not None:
            version = self._version(self._definition.quarantine)
            plan = ExportPlan(batch=self._state.batch + 1, schema=self._definition.schema, quarantine_version=version)
            self._carry_out(self._plans.put(plan))
        return self._done

    def _next(self) -> ExportPlan | None:
        catalog, now_ms = Catalog(self._store), _now_ms()
        partitions = catalog.partitions(self._definition.topic)
        closed = {partition.name for partition in partitions if not catalog.is_readable(partition, now_ms)}
        stored = self._stored([partition for partition in partitions if partition.name not in closed])
        ranges, lost = next_ranges(self._state.ends, stored, self._definition.batch_rows)
        if lost and self._definition.fail_on_data_loss:
            raise self._lost(f"retention removed {lost} messages that were not exported")
        self._done["lost"] += lost
        if not ranges:
            return None
        return ExportPlan(batch=self._state.batch + 1, schema=self._definition.schema, ranges=ranges)

    def _stored(self, partitions: Sequence[TopicPartition]) -> dict[str, StoredOffsets]:
        """Keys are as in plans and progress."""
        partitions_read = stored_partitions(self._store, partitions)
        return {f"{part.name}:{part.partition.ref.generation}": part.offsets for part in partitions_read}

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
        schema, replayed = fields_of(plan.schema), plan.quarantine_version is not None
        messages = self._quarantined(plan) if replayed else self._messages(plan)
        parsed = with_verdict(messages, schema).persist()
        try:
            counts = {row[FITS]: row["count"] for row in parsed.groupBy(FITS).count().collect()}
            fit, unfit = counts.get(True, 0), counts.get(False, 0)
            if fit or columns_of(self._spark, self._definition.to) is None:
                self._write(
                    parsed.where(FITS).select(typed_columns(schema, self._definition.columns)),
                    plan,
                    self._definition.to,
                )
            failpoint("export.after_typed")
            rest = parsed.where(~F.col(FITS)).select(quarantine_columns())
            if unfit or replayed or columns_of(self._spark, self._definition.quarantine) is None:
                self._write(rest, plan, self._definition.quarantine, overwrite=replayed)
        finally:
            parsed.unpersist()
        return fit, unfit

    def _messages(self, plan: ExportPlan) -> DataFrame:
        """It is an error if retention has removed planned messages since."""
        topic = self._definition.topic
        names = {name.rsplit(":", 1)[0]: bounds for name, bounds in plan.ranges.items()}
        read = read_topic(
            self._spark,
            assign=json.dumps({topic: list(names)}),
            startingOffsets=json.dumps({topic: {name: low for name, (low, _) in names.items()}}),
            endingOffsets=json.dumps({topic: {name: high for name, (_, high) in names.items()}}),
            failOnDataLoss=str(self._definition.fail_on_data_loss).lower(),
            warehouse=self._warehouse,
        )
        return read.select(*_MESSAGE)

    def _quarantined(self, plan: ExportPlan) -> DataFrame:
        reader = self._spark.read.format("delta").option("versionAsOf", str(plan.quarantine_version))
        rows = (
            reader.load(self._definition.quarantine)
            if self._definition.is_path
            else reader.table(self._definition.quarantine)
        )
        return rows.select("body", *(F.col(f"_{name}").alias(name) for name in _MESSAGE if name != "body"))

    def _write(self, rows: DataFrame, plan: ExportPlan, to: str, *, overwrite: bool = False) -> None:
        writer = rows.write.format("delta").mode("overwrite" if overwrite else "append")
        writer = writer.option("txnAppId", f"deltamq-export-{self._definition.id}").option(
            "txnVersion", str(plan.batch)
        )
        writer = writer.option("userMetadata", batch_mark(self._definition.id, plan.batch)).option(
            "mergeSchema", "true"
        )
        if self._definition.is_path:
            writer.save(to)
        else:
            writer.saveAsTable(to)

    def _version(self, to: str) -> int:
        return int(self._spark.sql(f"DESCRIBE HISTORY {named(to)} LIMIT 1").collect()[0]["version"])


def _now_ms() -> int:
    return SYSTEM_CLOCK.wall_us() // 1_000


def _warehouse(spark: SparkSession, warehouse: str | None) -> str:
    uri = warehouse or session_warehouse(spark)
    if not uri:
        raise Refused("warehouse: give one; this session has no default", field="warehouse")
    return str(uri)
