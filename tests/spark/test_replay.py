"""Dead letters are sent back in tasks, each once (SPARK-10, RETRY-3)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltamq.jobs.export.replay import Chosen, Replayed, replay_dead_letters
from deltamq.jobs.export.schedules import ScheduledReplay, save_scheduled
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.sink.open_sink import SinkSettings
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.meta.group import decide_put_group
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import decide_put_topic
from deltamq.tables.config import load
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.refs import dead_ref
from deltamq.tables.schema import INTERNAL_SCHEMA

_ID = "7b0a4c1e-90f5-4a39-8a7e-0d6f5a0f6a11"


def _letters(folder: Path) -> SinkSettings:
    """Twenty dead letters of a group on each of two brokers."""
    uri = str(folder)
    made = Warehouse.open(uri)
    meta = MetaLog(made)
    brokers = ["broker-a", "broker-b"]
    meta.submit(lambda state: decide_put_topic(state, "orders", TopicRequest(partitions=2), brokers, _ID, 0))
    group = meta.submit_groups(lambda m: decide_put_group(m.groups, "billing", GroupRequest(), 0)).groups.group(
        "billing"
    )
    for broker in brokers:
        origin = {"topic": "orders", "partition": f"orders@{broker}", "offset": 0}
        letters = [{"body": b"x", "origin": origin, "message_id": f"{broker}-{n}"} for n in range(20)]
        rows = pa.RecordBatch.from_pylist(letters, schema=INTERNAL_SCHEMA)
        made.create(dead_ref("billing", group.epoch, broker)).append([Batch(rows)])
    made.close()
    return SinkSettings.of(load(overrides={"warehouse.uri": uri}), uri)


@pytest.mark.spark
def test_spark_10_dead_letters_of_two_brokers_are_sent_back_in_tasks_once(spark: SparkSession, tmp_path: Path) -> None:
    settings = _letters(tmp_path)
    one = Chosen(message_ids=frozenset({"broker-b-3"}))
    assert replay_dead_letters(settings, "billing", one, spark=spark) == Replayed(matched=1, replayed=1)
    assert replay_dead_letters(settings, "billing", Chosen(), spark=spark) == Replayed(
        matched=40, replayed=39, duplicates=1
    )


@pytest.mark.spark
def test_spark_10_a_scheduled_replay_is_a_job_whose_work_is_done_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    settings = _letters(tmp_path)
    conf = load(overrides={"warehouse.uri": str(tmp_path), "jobs.engine": "spark"})
    now = datetime.now(UTC)
    save_scheduled(
        storage(conf.warehouse.uri),
        ScheduledReplay(name="again", group="billing", to="retry", every_s=60, first_ms=int(now.timestamp() * 1_000)),
    )
    assert run_jobs(spark, conf, "replay")["replay"]["rows"] == 40
    later = Replayed(matched=40, duplicates=40)
    assert replay_dead_letters(settings, "billing", Chosen(), to="retry", spark=spark) == later
