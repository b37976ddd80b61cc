"""Dead letters are sent back in tasks, each once (SPARK-10, RETRY-3)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.export.replay import Chosen, Replayed, replay_dead_letters
from jobs.stream.sink_place import SinkSettings
from mq.group import decide_put_group
from mq.group_settings import GroupRequest
from mq.topics import TopicRequest, decide_put_topic
from tables.config import load
from tables.log import Batch
from tables.metadata import MetaLog
from tables.queue_refs import dead_ref
from tables.schema import INTERNAL_SCHEMA
from tables.warehouse import Warehouse

_ID = "7b0a4c1e-90f5-4a39-8a7e-0d6f5a0f6a11"


@pytest.mark.spark
def test_spark_10_dead_letters_of_two_brokers_are_sent_back_in_tasks_once(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path)
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
    settings = SinkSettings.of(load(overrides={"warehouse.uri": uri}), uri)
    one = Chosen(message_ids=frozenset({"broker-b-3"}))
    assert replay_dead_letters(settings, "billing", one, spark=spark) == Replayed(matched=1, replayed=1)
    assert replay_dead_letters(settings, "billing", Chosen(), spark=spark) == Replayed(
        matched=40, replayed=39, duplicates=1
    )
