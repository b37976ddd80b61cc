"""The format `mq_jobs`: a row for each shard of each job that has run in a warehouse, read again by each query.

It reads the same few small files as `deltamq jobs list` and imports no job. Option: `warehouse`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from deltamq.jobs.run.last_run import utc_now
from deltamq.jobs.run.locks import known_shards
from deltamq.jobs.run.state import ShardState, behind_of, jobs_seen, shard_states
from deltamq.jobs.tasks.query_values import agreed_rows, current_query
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import Refused
from deltamq.tables.ops.job_runs import newest_run, read_runs, seconds_behind
from deltamq.tables.schema import TIME
from deltamq.tables.store.store import Store

JOB_SHARD_ROW: Final = pa.schema(
    [
        ("job", pa.string()),
        ("shard", pa.string()),
        ("engine", pa.string()),
        # The application that has the shard now, and since when; null: none.
        ("application", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("since_time", TIME),
        # The start of the run that is under way; null: none.
        ("running_since_time", TIME),
        ("last_run_time", TIME),
        ("seconds", pa.float64()),
        ("ok", pa.bool_()),
        ("detail", pa.string()),
        ("ok_time", TIME),
        # Failures in a row; the last error stays after a later success.
        ("failures", pa.int64()),
        ("last_error", pa.string()),
        ("last_error_time", TIME),
        ("behind_ms", pa.int64()),
        ("behind_records", pa.int64()),
        ("every_s", pa.float64()),
        # Seconds since a run should have begun.
        ("overdue_s", pa.float64()),
        ("facts", pa.map_(pa.string(), pa.string())),
    ]
)


class JobsSource(DataSource):
    """`format("mq_jobs")`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "mq_jobs"

    def schema(self) -> StructType:
        """Return the columns."""
        return from_arrow_schema(JOB_SHARD_ROW)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        warehouse = self.options.get("warehouse")
        if not warehouse:
            raise Refused("option warehouse is missing", field="warehouse")
        return JobsReader(warehouse)


class JobsReader(DataSourceReader):
    """Reads all rows in one task."""

    def __init__(self, warehouse: str) -> None:
        self._warehouse = warehouse

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        store = storage(self._warehouse)

        def now() -> pa.Table:
            return pa.Table.from_pylist(job_shard_rows(store, utc_now()), schema=JOB_SHARD_ROW)

        # all scans of a query see one state
        yield from agreed_rows(store, current_query("jobs"), "jobs", now).to_batches()


def job_shard_rows(store: Store, now: datetime) -> list[dict[str, object]]:
    """Return the present rows."""
    rows = []
    for job in jobs_seen(store):
        known = known_shards(store, job)
        last = newest_run(read_runs(store, job))
        # A shard without an owner and without a last run no longer exists.
        states = [
            state for state in shard_states(store, job, known) if state.owner is not None or state.last is not None
        ]
        rows += [_row(job, state, last.engine if last else "", now) for state in states]
    return rows


def _row(job: str, state: ShardState, engine: str, now: datetime) -> dict[str, object]:
    owner, last = state.owner, state.last
    behind = behind_of(last)
    row: dict[str, object] = {"job": job, "shard": state.shard, "engine": engine or None, "failures": 0}
    if owner is not None:
        since = datetime.fromtimestamp(owner.since_ms / 1000, UTC)
        row |= {"application": owner.application, "host": owner.host, "pid": owner.pid, "since_time": since}
    if state.running is not None:
        row["running_since_time"] = state.running.started_at
    if last is not None:
        row |= {
            "engine": last.engine or None,
            "last_run_time": last.started_at,
            "seconds": last.seconds,
            "ok": last.ok,
            "detail": last.detail or None,
            "ok_time": last.ok_at,
            "failures": last.failures,
            "last_error": last.last_error or None,
            "last_error_time": last.last_error_at,
            "behind_ms": behind.get("behind_ms"),
            "behind_records": behind.get("behind_records"),
            "every_s": last.every_s,
            "overdue_s": seconds_behind(last, last.every_s, now),
            "facts": [(name, str(value)) for name, value in last.facts.items()],
        }
    return row
