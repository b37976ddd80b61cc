"""Merges logs into one state table: plan, evaluate in tasks, MERGE, delete the plan, compact.

The ends of the logs and the state of the table are kept between runs and only refreshed, so
that a run without news takes milliseconds and needs no Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, count_distinct, lit, unix_micros, xxhash64
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of

from deltamq.jobs.merge.batch import MergeInput
from deltamq.jobs.merge.log_spans import SHARE_RECORDS, SPAN_RECORDS_MAX, spans_of
from deltamq.jobs.merge.state_tables import idempotent, signed, table_at
from deltamq.jobs.merge.targets import MergeTarget
from deltamq.jobs.tasks.task_errors import errors_of_tasks
from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.mq.limits import REVIVE_QUEUES
from deltamq.tables.delta.snapshot import PartitionNotFound
from deltamq.tables.failpoints import failpoint
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.merge_plan import (
    MergePlan,
    PlannedRange,
    app_id,
    forget_plans,
    last_planned,
    merged_stops,
    put_plan,
    read_plan,
    watermark,
)
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.state.schema import CONSUMER_OFFSETS, STATE_TABLES
from deltamq.tables.state.table import StateLog, open_state_log, read_state_log
from deltamq.tables.state.taken_back import is_whole, take_back

#: Seconds between looks for rows that may be forgotten, without news: few rows become so only because time passes.
_LOOK_IDLE_EVERY_S: Final = 60.0
#: Seconds between looks at all rows: late records of ended groups and topics may make rows that are never finished.
_WHOLE_LOOK_EVERY_S: Final = 600.0
#: Tries of a batch in one run, if its evaluated source is lost with an executor.
_TRIES: Final = 3
_LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_ON: Final = "ON "
_MS: Final = 1_000
#: The parts of the metadata whose events end groups, topics and epochs.
_ENDING: Final = ("topics", "groups")


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a run."""

    #: Records in one batch: the queues of a broker, undivided. A job that was off for long needs several.
    batch_records_max: int = REVIVE_QUEUES * SPAN_RECORDS_MAX
    share_records: int = SHARE_RECORDS
    span_records_max: int = SPAN_RECORDS_MAX
    #: The number of live files that a state table may gain before it is compacted again.
    files_max: int = 24
    #: Seconds between looks for rows that may be forgotten, while there is news.
    look_every_s: float = 10.0


class Merged(msgspec.Struct):
    """The outcome of a run."""

    records: int = 0
    batches: int = 0
    #: Records that were appended during the run.
    behind: int = 0


class _Evaluated(msgspec.Struct, frozen=True):
    rows: int
    #: The number of distinct keys; if it is less than `rows`, rows of the same key must be joined first.
    keys: int
    #: The bounds of the times of this source, as SQL; the MERGE skips files outside them.
    condition: str


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """The last look for rows that may be forgotten, and the state at that time."""

    at_s: float = -1e9
    #: The time of the last look at all rows.
    whole_s: float = -1e9
    #: The versions of the table and of the table of progress.
    versions: tuple[int, ...] = ()
    #: The offsets of the metadata on topics and groups: only later events can have ended something.
    meta_ends: tuple[int, ...] = ()


class TableMerge:
    """Merges one table. For one thread, which holds the lock of its shard while it runs."""

    def __init__(
        self,
        target: MergeTarget,
        warehouse: Warehouse,
        meta: MetaLog,
        *,
        cluster: str,
        stay_buffer_ms: int,
        tuning: Tuning,
    ) -> None:
        self._target = target
        self._warehouse = warehouse
        self._store = warehouse.store
        self._meta = meta
        self._topic = f"{target.logs}_{cluster}"
        self._stay_buffer_ms = stay_buffer_ms
        self._tuning = tuning
        self._log = StateLog()
        self._progress: StateLog | None = None
        self._merged = MergePlan(batch=-1, logs={})
        self._looked = _Look()
        #: The number of files that the last compaction left.
        self._compacted_to = 0

    @property
    def shard(self) -> str:
        """The shard of the job."""
        return self._target.shard

    def has_work(self, now: datetime) -> bool:
        """Return whether a run would need Spark now; takes a millisecond. Creates the table if there is none."""
        self._look(now)
        logs = self._newest_logs()
        if not logs:
            return False
        if any(log.end_offset != self._merged.stops.get(log.ref, 0) for log in logs):
            return True
        return self._may_clean() or read_plan(self._store, self._target.table, self._merged.batch + 1) is not None

    def run(self, session: SparkSession, now: datetime) -> Merged:
        """Merge everything that the logs hold now."""
        done = Merged()
        logs = self._newest_logs()
        ends = {log.ref: log.end_offset for log in logs}
        self._look(now)
        if not logs:
            return done
        tries, clean = 0, self._may_clean()
        while True:
            plan = read_plan(self._store, self._target.table, self._merged.batch + 1)
            planned = plan is not None
            plan = plan or self._planned(ends)
            # A plan without records was made to forget rows.
            clean = clean or (planned and not plan.records)
            if not (planned or plan.records or clean):
                break
            # After the ends of the logs: what records refer to and the metadata lacks has ended.
            self._meta.refresh()
            batch = self._batch(session, plan, logs, now, clean=clean)
            try:
                merged = self._merge(batch, plan, planned=planned)
            except Exception as error:
                tries += 1
                if tries == _TRIES or not _is_lost(error):
                    raise
                continue
            finally:
                batch.release()
            if clean:
                self._looked, clean = self._present_look(whole=batch.ended), False
            if merged:
                self._look(now)
                if self._merged.batch < plan.batch:
                    raise Unavailable(f"{self._target.table}: the MERGE of batch {plan.batch} left no commit")
                done.records, done.batches = done.records + plan.records, done.batches + 1
        done.behind = sum(_end_now(log) - self._merged.stops.get(log.ref, 0) for log in logs)
        return done

    # The present state.

    def _newest_logs(self) -> list[PartitionLog]:
        """Return the target's logs of every broker that ever had one, refreshed."""
        logs = []
        for ref in self._warehouse.refs_of(Space.SYS, self._topic):
            # A log's folder is created first; a kill after that leaves it without a log.
            with suppress(PartitionNotFound):
                log = self._warehouse.open_partition(ref)
                log.refresh()
                logs.append(log)
        return logs

    def _look(self, now: datetime) -> None:
        table = self._target.table
        self._log = self._newest_log(now)
        if self._log.foreign:
            self._take_back(now)
            self._log = self._newest_log(now)
        transactions = self._log.transactions
        if transactions.get(app_id(table), -1) != self._merged.batch:
            self._merged = watermark(self._store, table, transactions)

    def _take_back(self, now: datetime) -> None:
        """Undo what another engine did to the table, and merge the logs from the restored watermark on.

        The plan of an empty batch holds that watermark; the commit that undoes stores its number.
        """
        table, log = self._target.table, self._log
        stops = watermark(self._store, table, log.transactions).stops
        if not is_whole(self._store, table, log):
            stops = {partition.ref: partition.min_offset for partition in self._newest_logs()}
        app = app_id(table)
        merged = log.all_transactions.get(app, -1)
        if merged == log.transactions.get(app, -1) and is_whole(self._store, table, log):
            take_back(self._store, table, log, {}, int(now.timestamp() * _MS))
            return
        take_back(self._store, table, log, {app: self._begin_at(stops, merged + 1)}, int(now.timestamp() * _MS))

    def _begin_at(self, stops: Mapping[PartitionRef, int], batch: int) -> int:
        """Plan an empty batch that goes on from these offsets, from `batch` on; return its number."""
        table = self._target.table
        plan = MergePlan(batch=batch, logs={ref: PlannedRange(stop, stop) for ref, stop in stops.items()})
        while put_plan(self._store, table, plan) != plan:
            plan = replace(plan, batch=plan.batch + 1)
        return plan.batch

    def _begin_again(self) -> dict[str, int]:
        """Transactions of a new table; one that has existed before begins with the present logs (TABLE-6)."""
        table = self._target.table
        if not merged_stops(self._store, table, None).gone:
            return {}
        stops = {log.ref: log.min_offset for log in self._newest_logs()}
        return {app_id(table): self._begin_at(stops, last_planned(self._store, table) + 1)}

    def _newest_log(self, now: datetime) -> StateLog:
        table = self._target.table
        known = self._log if self._log.version >= 0 else None
        now_ms = int(now.timestamp() * _MS)
        return open_state_log(self._store, table, STATE_TABLES[table], now_ms, known, self._begin_again)

    def _present_look(self, *, whole: bool = False) -> _Look:
        """`whole`: the look sees all rows."""
        self._progress = read_state_log(self._store, CONSUMER_OFFSETS, self._progress)
        versions = (self._log.version, -1 if self._progress is None else self._progress.version)
        meta_ends = self._meta.known()[0]
        now_s = time.monotonic()
        return _Look(
            at_s=now_s,
            whole_s=now_s if whole else self._looked.whole_s,
            versions=versions,
            meta_ends=tuple(meta_ends.get(part, 0) for part in _ENDING),
        )

    def _may_clean(self) -> bool:
        elapsed_s = time.monotonic() - self._looked.at_s
        if not self._target.forgets or elapsed_s < self._tuning.look_every_s:
            return False
        if not self._log.files and not self._meta.groups.resets:
            # There are no rows yet; the next look is the first, and sees all rows.
            self._looked = _Look(at_s=time.monotonic())
            return False
        present = self._present_look()
        changed = (present.versions, present.meta_ends) != (self._looked.versions, self._looked.meta_ends)
        return changed or elapsed_s >= _LOOK_IDLE_EVERY_S

    # Merging.

    def _planned(self, ends: Mapping[PartitionRef, int]) -> MergePlan:
        """All new records; if they are too many, some of each log, the furthest behind first."""
        merged = self._merged
        waiting = {ref: end - merged.stops.get(ref, 0) for ref, end in ends.items()}
        for ref, records in waiting.items():
            if records < 0:
                detail = f"but offsets up to {merged.stops.get(ref, 0)} are merged already"
                raise Corrupt(f"{ref.name} ends at {ends[ref]}, {detail}")
        taken = dict.fromkeys(waiting, 0)
        room = self._tuning.batch_records_max
        # First as much of every log as a task can take undivided.
        for most in (self._tuning.span_records_max, room):
            for ref in sorted(waiting, key=lambda log: (-waiting[log], log.name)):
                more = min(waiting[ref], most, taken[ref] + room) - taken[ref]
                taken[ref] += more
                room -= more
        spans = {ref: PlannedRange(stop, stop) for ref, stop in merged.stops.items()}
        for ref, records in taken.items():
            start = merged.stops.get(ref, 0)
            spans[ref] = PlannedRange(start, start + records)
        return MergePlan(batch=merged.batch + 1, logs=spans)

    def _batch(
        self, session: SparkSession, plan: MergePlan, logs: Iterable[PartitionLog], now: datetime, *, clean: bool
    ) -> MergeInput:
        present = self._present_look()
        return MergeInput(
            session=session,
            warehouse=self._warehouse.uri,
            location=self._store.uri(self._target.table),
            spans=spans_of(plan, logs),
            meta=self._meta.meta,
            now=now,
            clean=clean,
            ended=present.meta_ends != self._looked.meta_ends
            or present.at_s - self._looked.whole_s >= _WHOLE_LOOK_EVERY_S,
            stay_buffer_ms=self._stay_buffer_ms,
            share_records=self._tuning.share_records,
            span_records_max=self._tuning.span_records_max,
        )

    def _merge(self, batch: MergeInput, plan: MergePlan, *, planned: bool) -> bool:
        """Carry out a plan; return False if there is nothing to do, or if another driver's plan comes first.

        A batch without records is planned only if rows are to be forgotten.
        """
        table = self._target.table
        if plan.records and not planned:
            if put_plan(self._store, table, plan) != plan:
                return False
            planned = True
        failpoint("merge.after_plan")
        with errors_of_tasks():
            source = batch.keep(self._target.source(batch))
            evaluated = self._evaluated(source)
            if evaluated.keys < evaluated.rows:
                batch = replace(batch, mixed=True)  # shares the list of kept frames, which the caller releases
                source = batch.keep(self._target.source(batch))
                evaluated = self._evaluated(source)
            for_nothing = not (planned or plan.records or evaluated.rows)
            if for_nothing or not (planned or put_plan(self._store, table, plan) == plan):
                return False
            failpoint("merge.before_merge")
            source.createOrReplaceTempView("source")
            merge = self._target.merge.replace(_ON, _ON + evaluated.condition, 1)
            with signed(batch.session, self._log), idempotent(batch.session, app_id(table), plan.batch):
                batch.session.sql(f"MERGE INTO {table_at(self._store, table)} t USING source s {merge}")
        failpoint("merge.after_merge")
        forget_plans(self._store, table, plan.batch)
        self._compact(batch)
        return True

    def _evaluated(self, source: DataFrame) -> _Evaluated:
        """Run the tasks once; their result stays with the executors."""
        bounded_by = self._target.bounded_by
        aggregates = [count(lit(1)), count_distinct(xxhash64(*self._target.key))]
        if bounded_by is not None:
            aggregates += [least_of(unix_micros(col(bounded_by))), greatest_of(unix_micros(col(bounded_by)))]
        rows, keys, *bounds = source.agg(*aggregates).collect()[0]
        if bounded_by is None or not rows:
            return _Evaluated(rows, keys, "")
        low, high = (f"timestamp_micros({at})" for at in bounds)
        return _Evaluated(rows, keys, f"t.`{bounded_by}` >= {low} AND t.`{bounded_by}` <= {high} AND ")

    def _compact(self, batch: MergeInput) -> None:
        """Compact the table if it has many files, so that queries and merges stay fast; large files stay."""
        self._log = self._newest_log(batch.now)
        if len(self._log.files) <= self._compacted_to + self._tuning.files_max:
            return
        with signed(batch.session, self._log):
            batch.session.sql(f"OPTIMIZE {table_at(self._store, self._target.table)}")
        self._log = self._newest_log(batch.now)
        self._compacted_to = len(self._log.files)


def _is_lost(error: Exception) -> bool:
    return _LOST in str(error)


def _end_now(log: PartitionLog) -> int:
    log.refresh()
    return log.end_offset
