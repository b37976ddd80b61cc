"""The job `merge`: what the queue's own logs say becomes tables that people query (SPEC CONS-4, POP-19, META-4).

    logs --batch N: offsets [start, stop) of each--> columns --fold--> one row for each key --MERGE N--> state table

Micro-batches as in Structured Streaming: the plan of batch N is stored before its MERGE and never changes, and the
commit of the MERGE itself stores N (Delta's idempotent write). So whatever is killed, each record is merged once; and
it would not matter if it were merged twice, since everything that is merged is a join.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from jobs.merge.meta_tables import replace_meta_tables
from jobs.merge.state_tables import STATE_TABLES, create_state_table, frame_of, idempotent, writing_session
from jobs.merge.targets import TARGETS, Batch, Target
from jobs.run.registry import Facts, job
from jobs.run.warehouses import warehouse_of
from mq.errors import Corrupt
from tables.config import Config
from tables.failpoints import failpoint
from tables.log import PartitionLog
from tables.merge_plan import Plan, Span, app_id, forget_plans, put_plan, read_plan, watermark
from tables.metadata import MetaLog
from tables.pages import OffsetOutOfRange, pages
from tables.paths import PartitionRef, Space
from tables.state_table import read_state_log, state_transactions
from tables.state_upkeep import sweep_state
from tables.warehouse import Warehouse

__all__ = ["Merger", "merge"]

#: Records in one batch: about 150 MB of JSON. A job that was off for long catches up in several.
BATCH_RECORDS_MAX: Final = 500_000
#: How often rows are looked for that may be forgotten ...
_CLEAN_EVERY_S: Final = 10.0
#: ... and files.
_SWEEP_EVERY_S: Final = 60.0
#: Live files of a state table from which on they are made into few.
FILES_MAX: Final = 24
_SOURCE_PARTITIONS: Final = 2
_COLUMNS: Final = ("tag", "body", "offset")


class Merger:
    """The merges of one warehouse; keeps its logs open from run to run. For one thread."""

    def __init__(
        self,
        warehouse: Warehouse,
        conf: Config,
        *,
        batch_records_max: int = BATCH_RECORDS_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        self._batch_records_max = batch_records_max
        self._files_max = files_max
        self._warehouse = warehouse
        self._store = warehouse.store
        self._cluster = conf.warehouse.cluster
        self._stay_buffer_ms = conf.queue.stay_buffer_ms
        self._meta = MetaLog(warehouse)
        self._cleaned_s = self._swept_s = -1e9

    def run(self, spark: SparkSession, now: datetime) -> Facts:
        """Merge everything that the logs hold now."""
        began = time.monotonic()
        session = writing_session(spark)
        clean = began - self._cleaned_s >= _CLEAN_EVERY_S
        facts: dict[str, int | str] = {"rows": 0, "batches": 0, "behind_records": 0}
        for target in TARGETS:
            records, batches, behind = self._merge(session, target, now, clean=clean)
            facts["rows"] += records
            facts["batches"] += batches
            facts["behind_records"] += behind
        facts["meta"] = replace_meta_tables(session, self._store, self._meta)
        if clean:
            self._cleaned_s = began
        if began - self._swept_s >= _SWEEP_EVERY_S:
            self._swept_s = began
            now_ms = int(now.timestamp() * 1000)
            facts["files_removed"] = sum(sweep_state(self._store, table, now_ms) for table in STATE_TABLES)
        return facts | {"ms": int((time.monotonic() - began) * 1000)}

    def _merge(self, session: SparkSession, target: Target, now: datetime, *, clean: bool) -> tuple[int, int, int]:
        """Merge into one table up to where its logs end now; returns records, batches, and what came meanwhile."""
        logs = self._logs(target)
        ends = {log.ref: log.end_offset for log in logs}
        if not logs:
            return 0, 0, 0
        create_state_table(session, self._store, target.table)
        records = batches = 0
        while True:
            merged = watermark(self._store, target.table, state_transactions(self._store, target.table) or {})
            plan = read_plan(self._store, target.table, merged.batch + 1)
            if plan is None:
                plan = self._planned(merged, ends)
                if not plan.records and not (clean and self._source(target, plan, logs, now, clean=True).num_rows):
                    return records, batches, sum(_end_now(log) - merged.stops.get(log.ref, 0) for log in logs)
                plan = put_plan(self._store, target.table, plan)
            failpoint("merge.after_plan")
            self._apply(session, target, plan, self._source(target, plan, logs, now, clean=clean))
            records, batches = records + plan.records, batches + 1
            clean = False

    def _logs(self, target: Target) -> list[PartitionLog]:
        """The target's logs of every broker that ever had one, as they are now."""
        topic = f"{target.logs}_{self._cluster}"
        logs = [self._warehouse.open_partition(ref) for ref in self._warehouse.refs(Space.SYS) if ref.topic == topic]
        for log in logs:
            log.refresh()
        return logs

    def _planned(self, merged: Plan, ends: dict[PartitionRef, int]) -> Plan:
        """The next batch: what is new in each log, the logs that are furthest behind first if it is too much."""
        spans = {ref: Span(stop, stop) for ref, stop in merged.stops.items()}
        waiting = {ref: end - merged.stops.get(ref, 0) for ref, end in ends.items()}
        room = self._batch_records_max
        for ref in sorted(waiting, key=lambda one: (-waiting[one], one.name)):
            start = merged.stops.get(ref, 0)
            if waiting[ref] < 0:
                raise Corrupt(f"{ref.name} ends at {ends[ref]}, but offsets up to {start} are merged already")
            taken = min(waiting[ref], room)
            spans[ref] = Span(start, start + taken)
            room -= taken
        return Plan(batch=merged.batch + 1, logs=spans)

    def _source(self, target: Target, plan: Plan, logs: list[PartitionLog], now: datetime, *, clean: bool) -> pa.Table:
        by_ref = {log.ref: log for log in logs}
        parts = [
            target.decode(rows)
            for ref, span in plan.logs.items()
            if span.stop > span.start
            for rows in _rows(by_ref[ref], span)
        ]
        # After the records: a group or topic that they are about and that is not there has ended.
        self._meta.refresh()
        batch = Batch(
            store=self._store,
            meta=self._meta.meta,
            now=now,
            parts=parts,
            clean=clean,
            stay_buffer_ms=self._stay_buffer_ms,
        )
        return target.source(batch)

    def _apply(self, session: SparkSession, target: Target, plan: Plan, source: pa.Table) -> None:
        failpoint("merge.before_merge")
        idempotent(session, app_id(target.table), plan.batch)
        frame_of(session, source, partitions=_SOURCE_PARTITIONS).createOrReplaceTempView("source")
        location = self._store.uri(target.table).replace("`", "``")
        bound = _bound(target, source)
        # The source is data; the names in the statement are our own.
        session.sql(f"MERGE INTO delta.`{location}` t USING source s {target.merge.replace(_ON, _ON + bound, 1)}")
        failpoint("merge.after_merge")
        forget_plans(self._store, target.table, plan.batch)
        self._compact(session, target)

    def _compact(self, session: SparkSession, target: Target) -> None:
        """Few files again, so that neither queries nor later merges slow down."""
        log = read_state_log(self._store, target.table)
        if log is not None and len(log.files) > self._files_max:
            session.conf.unset("spark.databricks.delta.write.txnAppId")
            session.conf.unset("spark.databricks.delta.write.txnVersion")
            DeltaTable.forPath(session, self._store.uri(target.table)).optimize().executeCompaction()


_ON: Final = "ON "


def _bound(target: Target, source: pa.Table) -> str:
    """Between which times the rows of the table lie that the source is about: other files are not even looked at."""
    if target.bounded_by is None or not source.num_rows:
        return ""
    bounds = pc.min_max(source.column(target.bounded_by).cast(pa.int64())).as_py()
    column = f"t.`{target.bounded_by}`"
    low, high = (f"timestamp_micros({bounds[name]})" for name in ("min", "max"))
    return f"{column} >= {low} AND {column} <= {high} AND "


def _end_now(log: PartitionLog) -> int:
    log.refresh()
    return log.end_offset


def _rows(log: PartitionLog, span: Span) -> Iterator[pa.Table]:
    """What a span of a log holds, page by page."""
    at = span.start
    try:
        for page in pages(log, span.start):
            rows = page.rows.select(_COLUMNS).slice(0, span.stop - at)
            at += rows.num_rows
            yield rows
            if at == span.stop:
                return
    except OffsetOutOfRange as error:
        raise Corrupt(f"records that were not merged are gone: {error.detail}", code="merge_gap") from error
    raise Corrupt(f"{log.ref.name} ends at {at}; a planned batch reaches to {span.stop}", code="merge_gap")


_lock: Final = threading.Lock()
_mergers: Final[dict[Warehouse, Merger]] = {}


def _merger(conf: Config) -> Merger:
    warehouse = warehouse_of(conf)
    with _lock:
        found = _mergers.get(warehouse)
        if found is None:
            _mergers.clear()  # those of warehouses that were closed
            found = _mergers[warehouse] = Merger(warehouse, conf)
        return found


@job(name="merge", every_s=lambda conf: conf.jobs.merge_every_ms / 1000)
def merge(spark: SparkSession, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Merge offsets, checkpoints, losses and metadata into the state tables that SQL reads.

    Input: the offsets logs, revive logs and logs of losses of every broker, from where the tables are; the metadata.

    Output: `state/consumer_offsets`, `state/pop_checkpoints`, `state/lost_messages` by MERGE; `state/topics`,
    `state/routes`, `state/groups` as a whole. Rows that nobody needs any more are deleted: of groups, topics and epochs
    that are over, and finished checkpoints below the group's committed offset.

    Idempotent: a batch is planned once, and the commit of its MERGE stores its number; a batch that is in the table is
    not merged again. Every value is a join of what was there with what is new.

    A kill at any line leaves a planned batch that is in the table or not; the next run finds out by the number in the
    table, and goes on from there. It may leave files that no commit names: they are swept after a while.
    """
    return _merger(conf).run(spark, now)
