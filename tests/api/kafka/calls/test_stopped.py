"""What Kafka's clients are told of a partition that has stopped (SPEC RELY-10)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.encode import encode_records
from deltamq.mq.limits import MIB
from tests.api.kafka.door import KafkaApi
from tests.api.kafka.raw_client import RawClient

NONE, STORAGE_ERROR = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR


def _appended(client: RawClient, topic: str) -> list[int]:
    rows = Records(pa.nulls(1, pa.binary()), pa.array([b"v"]), None, np.full(1, 1_700_000_000_000, np.int64))
    parts = [ProducePartition(index, encode_records(rows, base_offset=0)) for index in (0, 1)]
    answer = client.ask(ProduceRequest(None, -1, 20_000, [ProduceTopic(name=topic, partitions=parts)]))
    return [part.error_code for part in answer.topics[0].partitions]


def _fetched(client: RawClient, topic: str) -> list[int]:
    parts = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=MIB) for index in (0, 1)]
    topics = [FetchTopic(name=topic, partitions=parts)]
    answer = client.ask(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=MIB, topics=topics))
    return [part.error_code for part in answer.topics[0].partitions]


def test_rely_10_a_partition_whose_log_vanishes_is_a_storage_error_for_kafkas_clients(
    kafka: KafkaApi, topic: str
) -> None:
    kafka.api.put_topic(topic, partitions=2)
    with RawClient(kafka.port) as client:
        assert (_appended(client, topic), _fetched(client, topic)) == ([NONE, NONE], [NONE, NONE])
        gone = list(kafka.api.partitions(topic))[1]
        shutil.rmtree(Path(kafka.api.partitions(topic)[gone]["location"], "_delta_log"))
        for _ in range(2):
            assert (_appended(client, topic), _fetched(client, topic)) == ([NONE, STORAGE_ERROR], [NONE, STORAGE_ERROR])
    assert [one["partition"] for one in kafka.api.call("GET", "/v1/cluster").json["stopped"]] == [gone]
