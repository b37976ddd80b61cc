"""The job `merge`: turns the queue's own logs into tables for SQL (SPEC CONS-4, POP-19, META-4).

    driver                                       tasks                                         driver
    logs --batch N: offsets [start, stop)--> read, decode, fold --one row for each key-->  MERGE N --> state table

It works in micro-batches, as in Structured Streaming: the plan of batch N is stored before its MERGE and never changes,
and the commit of the MERGE itself stores N (Delta's idempotent write). So each record is merged once, whatever is
killed; and merging one twice would change nothing, since every merge is a join.

The driver has offsets and counts. The records stay with the executors, where the MERGE finds them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from deltamq.jobs.merge.meta_tables import MetaTables
from deltamq.jobs.merge.state_tables import writing_session
from deltamq.jobs.merge.table_merge import Merged, TableMerge, Tuning
from deltamq.jobs.merge.targets import TARGETS
from deltamq.jobs.run.registry import Facts, job
from deltamq.jobs.tasks.warehouses import state_of
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.merge_plan import MERGED_TABLES
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.state.schema import STATE_TABLES
from deltamq.tables.state.upkeep import sweep_state

#: Interval at which files that are no longer needed are deleted, in seconds.
_SWEEP_EVERY_S: Final = 60.0
META_SHARD: Final = "meta"
#: The shards of the job: one for each table that is merged from logs, one for all tables of the metadata.
SHARDS: Final = (*(target.shard for target in TARGETS), META_SHARD)


class Merger:
    """The merges of one warehouse; keeps its logs open between runs. For one thread at a time."""

    def __init__(self, warehouse: Warehouse, conf: Config, *, tuning: Tuning | None = None) -> None:
        self._store = warehouse.store
        meta = MetaLog(warehouse)
        self._merges = [
            TableMerge(
                target,
                warehouse,
                meta,
                cluster=conf.warehouse.cluster,
                stay_buffer_ms=conf.queue.stay_buffer_ms,
                tuning=tuning or Tuning(),
            )
            for target in TARGETS
        ]
        self._meta_tables = MetaTables(self._store, meta)
        self._swept_s = -1e9
        self._application: SparkSession | None = None
        #: Sessions by shard, because settings of a write and names of views belong to a session.
        self._sessions: dict[str, SparkSession] = {}
        self._running = threading.Lock()

    def run(self, spark: SparkSession, now: datetime, shards: Sequence[str] | None = None) -> Facts:
        """Merge everything that the logs hold now into the tables of these shards."""
        with self._running:
            return self._run(spark, now, SHARDS if shards is None else shards)

    def _run(self, spark: SparkSession, now: datetime, shards: Sequence[str]) -> Facts:
        began = time.monotonic()
        facts: dict[str, int] = {"rows": 0, "batches": 0, "behind_records": 0}
        for merged in self._merge_tables(
            [table_merge for table_merge in self._merges if table_merge.shard in shards], spark, now
        ):
            facts["rows"] += merged.records
            facts["batches"] += merged.batches
            facts["behind_records"] += merged.behind
        if META_SHARD in shards:
            facts["meta"] = self._meta_tables.replace(lambda: self._session(spark, META_SHARD), now)
        if began - self._swept_s >= _SWEEP_EVERY_S:
            self._swept_s = began
            facts["files_removed"] = self._sweep(shards, int(now.timestamp() * 1000))
        return facts | {"ms": int((time.monotonic() - began) * 1000)}

    def _merge_tables(self, merges: Sequence[TableMerge], spark: SparkSession, now: datetime) -> list[Merged]:
        """Run the merges that have work in parallel: much of a small MERGE is the driver's, and leaves the cores idle.

        All of them end before the first error is raised.
        """
        busy = [table_merge for table_merge in merges if table_merge.has_work(now)]
        if not busy:
            return []
        inherits = inheritable_thread_target(spark)  # passes on the run's job group (for cancelling) and its pool
        with ThreadPoolExecutor(len(busy), "merge") as threads:
            running = [
                threads.submit(inherits(table_merge.run), self._session(spark, table_merge.shard), now)
                for table_merge in busy
            ]
        return [future.result() for future in running]

    def _session(self, spark: SparkSession, shard: str) -> SparkSession:
        """A shard's session is made when first needed, and again if the application has changed."""
        if self._application is not spark:
            self._application, self._sessions = spark, {}
        if shard not in self._sessions:
            self._sessions[shard] = writing_session(spark)
        return self._sessions[shard]

    def _sweep(self, shards: Sequence[str], now_ms: int) -> int:
        tables = [name for name in STATE_TABLES if _shard_of(name) in shards]
        return sum(sweep_state(self._store, table, now_ms) for table in tables)


def _shard_of(table: str) -> str:
    return table.rpartition("/")[2] if table in MERGED_TABLES else META_SHARD


@job(name="merge", every_s=lambda conf: conf.jobs.merge_every_ms / 1000, shards=lambda conf: SHARDS)
def merge(spark: SparkSession, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
    """Merge offsets, checkpoints, losses, statistics and metadata into the state tables that SQL reads.

    Input: the offsets logs, revive logs, logs of losses and of statistics of every broker, from the tables' watermarks
    on; the metadata.

    Output: `state/consumer_offsets`, `state/pop_checkpoints`, `state/lost_messages`, `state/group_statistics` by MERGE;
    `state/topics`, `state/routes`, `state/groups` as a whole. All of them exist after the first run. Rows that are no
    longer needed are deleted: rows of groups, topics and epochs that have ended, finished checkpoints below the
    group's committed offset, and statistics of a week ago.

    Idempotent: a batch is planned once, and the commit of its MERGE stores its number; a batch that is in the table is
    not merged again. Every value is a join of the table's value with the new one. Tasks only read: a second run
    of a task reads the same offsets.

    A kill at any line leaves a planned batch that may or may not be in the table; the next run sees which by the number
    in the table, and goes on from there. It may leave files that no commit names: they are swept later.
    """
    return state_of(conf, Merger).run(spark, now, shards)
