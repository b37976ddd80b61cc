"""The jobs in SQL: which process has which shard, and what became of the last runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.last_run import Recorder
from deltamq.jobs.run.locks import shard_lock
from deltamq.jobs.sql.views import register_views
from deltamq.tables.config import load
from deltamq.tables.ops.job_runs import LastRun
from deltamq.tables.store.local import LocalStore

pytestmark = pytest.mark.spark
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.long
def test_spark_07_shards_owners_and_failures_are_sql(spark: SparkSession, tmp_path: Path) -> None:
    store, me = LocalStore(tmp_path), Holder.this()
    recorder = Recorder(store, "merge", me.application)
    facts: dict[str, int | str] = {"behind_records": 7}
    recorder.note(LastRun(job="merge", started_at=NOW, seconds=1, ok=True, detail="", facts=facts, every_s=2))
    register_views(spark, load(overrides={"warehouse.uri": str(tmp_path)}))
    query = "SELECT shard, application, pid, ok, failures, last_error, behind_records, facts FROM job_shards"
    with shard_lock(store, "merge", holder=me), shard_lock(store, "revive", "broker-a", me):
        found = [row.asDict() for row in spark.sql(f"{query} WHERE job = 'merge'").collect()]
        assert found == [
            {
                "shard": "all",
                "application": me.application,
                "pid": me.pid,
                "ok": True,
                "failures": 0,
                "last_error": None,
                "behind_records": 7,
                "facts": {"behind_records": "7"},
            }
        ]
        (row,) = spark.sql("SELECT shard, application FROM job_shards WHERE last_run_time IS NULL").collect()
        assert (row.shard, row.application) == ("broker-a", me.application)
    for step in (1, 2):
        at = NOW + timedelta(seconds=step)
        recorder.note(LastRun(job="merge", started_at=at, seconds=1, ok=False, detail="no way", every_s=2))
    recorder.flush()
    (row,) = spark.sql("SELECT * FROM job_shards").collect()
    assert (row.application, row.ok, row.failures, row.last_error) == (None, False, 2, "no way")
    assert (row.ok_time, row.overdue_s > 0) == (NOW.replace(tzinfo=None), True)
