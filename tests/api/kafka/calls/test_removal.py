"""DeleteRecords takes away what lies before an offset (SPEC KAFKA-19)."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.api.kafka.door import KafkaApi
from tests.api.kafka.raw_client import RawClient

TIMEOUT_S = 30
END = -1


def _deleted(kafka: KafkaApi, topic: str, offset: int, index: int = 0) -> tuple[int, int]:
    request = DeleteRecordsRequest([DeleteRecordsTopic(topic, [DeleteRecordsPartition(index, offset)])], 10_000)
    with RawClient(kafka.port) as raw:
        (one,) = raw.ask(request).topics[0].partitions
    return one.error_code, one.low_watermark


def _bodies(kafka: KafkaApi, topic: str, offset: int) -> list[str]:
    reply = kafka.api.fetch(topic, f"{topic}@broker-a", f"?offset={offset}")
    return [one["body"] for one in reply.json["messages"]]


def test_kafka_19_records_before_an_offset_are_gone_for_everybody(kafka: KafkaApi, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    kafka.api.send(topic, *"abcde")
    admin = AdminClient({"bootstrap.servers": kafka.address})
    (future,) = admin.delete_records([Place(topic, 0, 3)]).values()
    assert future.result(TIMEOUT_S).low_watermark == 3
    (partition,) = kafka.api.partitions(topic).values()
    assert (partition["min_offset"], partition["max_offset"]) == (3, 5)
    assert _bodies(kafka, topic, 3) == ["d", "e"]
    assert _deleted(kafka, topic, 1) == (ErrorCode.NONE, 3), "nothing comes back"
    assert _deleted(kafka, topic, END) == (ErrorCode.NONE, 5)
    kafka.api.send(topic, "f")
    assert _bodies(kafka, topic, 5) == ["f"]


def test_kafka_19_an_offset_that_the_partition_does_not_have_yet_is_refused(kafka: KafkaApi, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    kafka.api.send(topic, "a")
    assert _deleted(kafka, topic, 2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert _deleted(kafka, topic, -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert _deleted(kafka, topic, 0, index=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert _deleted(kafka, f"{topic}.not", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert _bodies(kafka, topic, 0) == ["a"]


@pytest.mark.promise("PORT-3")
def test_kafka_19_a_producer_goes_on_where_all_its_records_are_gone(kafka: KafkaApi, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True, "linger.ms": 0})
    told: list[KafkaError | None] = []
    for turn in range(3):
        producer.produce(topic, str(turn), on_delivery=lambda error, _: told.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert _deleted(kafka, topic, END) == (ErrorCode.NONE, turn + 1)
    assert told == [None] * 3


def test_kafka_19_a_client_is_told_by_its_library(kafka: KafkaApi, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    (future,) = admin.delete_records([Place(topic, 0, 9)]).values()
    with pytest.raises(KafkaException) as error:
        future.result(TIMEOUT_S)
    assert error.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
