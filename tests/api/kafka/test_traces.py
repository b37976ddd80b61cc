"""Spans of the calls of Kafka's clients, as a collector gets them (SPEC LOOK-17)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from deltamq.api.kafka.messages.log_messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan

CALLER = "b7ad6b7169203331"
STEPS = ["queue", "encode", "publish", "apply"]


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def kafka(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaApi]:
    """A service that traces only whose senders are traced."""
    folder = tmp_path_factory.mktemp("traced")
    with kafka_running(folder, traces_url=receiver.url, traces_sample=0.0) as kafka:
        yield kafka


def send(kafka: KafkaApi, topic: str, *contexts: str, **settings: object) -> None:
    """Send a batch of a message for each context, and wait until it is stored."""
    producer = Producer({"bootstrap.servers": kafka.address, "client.id": "billing", "linger.ms": 500, **settings})
    for context in contexts:
        producer.produce(topic, b"a body " * 20, key=b"k", headers={"traceparent": context.encode()} if context else {})
    until(lambda: producer.poll(0.05) is not None and not len(producer))  # a flush would not wait for the batch


def one(receiver: OtlpReceiver, trace: int, name: str) -> ReceivedSpan:
    trace_id = f"{trace:032x}"
    receiver.wait_for(lambda: name in receiver.of(trace_id))
    (span,) = receiver.of(trace_id)[name]
    return span


def context(trace: int, *, sampled: bool = True) -> str:
    return f"00-{trace:032x}-{CALLER}-{int(sampled):02x}"


@pytest.mark.parametrize(
    ("trace", "settings"), [(11, {}), (12, {"compression.type": "gzip"}), (13, {"acks": "0"}), (14, {"acks": "1"})]
)
def test_look_17_a_batch_of_a_traced_sender_is_a_span_with_its_commit(
    kafka: KafkaApi, receiver: OtlpReceiver, topic: str, trace: int, settings: dict[str, str]
) -> None:
    kafka.api.put_topic(topic, partitions=1)
    send(kafka, topic, context(trace), context(trace), **settings)
    produced = one(receiver, trace, "kafka Produce")
    assert (produced.parent_id, produced.is_error) == (CALLER, False)
    assert produced.attributes == {
        "network.protocol.name": "kafka",
        "messaging.client.id": "billing",
        "messaging.destination.name": topic,
    }
    commit = one(receiver, trace, "commit")
    assert commit.parent_id == produced.span_id and commit.attributes["deltamq.commit.messages"] == 2
    named = receiver.of(f"{trace:032x}")
    assert sorted(named) == sorted(["kafka Produce", "commit", *STEPS])
    spans = [span for name in STEPS for span in named[name]]  # a commit may publish in several steps
    assert {span.parent_id for span in spans} == {commit.span_id}
    assert all(produced.begin_ns <= span.begin_ns <= span.end_ns <= produced.end_ns for span in (commit, *spans))


def test_look_17_a_batch_of_a_logical_queue_is_a_span_with_its_commit(
    kafka: KafkaApi, receiver: OtlpReceiver, topic: str
) -> None:
    kafka.api.put_topic(topic, static=True, total_queues=1)
    send(kafka, topic, context(21))
    assert one(receiver, 21, "commit").parent_id == one(receiver, 21, "kafka Produce").span_id


def test_look_17_a_batch_of_several_senders_is_a_trace_of_its_own_and_of_none_that_is_traced_no_span(
    kafka: KafkaApi, receiver: OtlpReceiver, topic: str
) -> None:
    kafka.api.put_topic(topic, partitions=1)
    before = len(receiver.spans)
    send(kafka, topic, context(31, sampled=False), "")
    send(kafka, topic, context(32), context(33))
    receiver.wait_for(lambda: "kafka Produce" in [span.name for span in receiver.spans[before:]])
    (produced,) = [span for span in receiver.spans[before:] if span.name == "kafka Produce"]
    assert (produced.parent_id, produced.links) == ("", [f"{trace:032x}" for trace in (32, 33)])
    assert not any(receiver.of(f"{trace:032x}") for trace in (31, 32, 33))


def test_look_17_a_share_of_all_calls_begins_a_trace_and_what_is_refused_is_an_error(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    before = len(receiver.spans)

    def spans(name: str) -> list[ReceivedSpan]:
        return [span for span in receiver.spans[before:] if span.name == name]

    with kafka_running(tmp_path, traces_url=receiver.url, traces_sample=1.0, auto_create_topics=False) as kafka:
        kafka.api.put_topic("orders", partitions=1)
        send(kafka, "orders", "")
        consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "billing"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        consumer.close()
        with RawClient(kafka.port) as client:
            none = ProduceTopic(name="none", partitions=[ProducePartition(index=0, records=b"")])
            client.ask(ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1_000, topics=[none]))
            client.send(ProduceRequest(transactional_id=None, acks=0, timeout_ms=1_000, topics=[none]))
            assert client.is_closed(30), "nobody else would tell it"
        receiver.wait_for(lambda: len(spans("kafka Produce")) == 3 and spans("kafka OffsetCommit"))
    (committed,) = spans("kafka OffsetCommit")
    assert committed.attributes["messaging.consumer.group.name"] == "billing" and not committed.is_error
    stored, *refused = spans("kafka Produce")
    assert not stored.is_error
    assert [(span.is_error, span.attributes["error.type"]) for span in refused] == [
        (True, "UNKNOWN_TOPIC_OR_PARTITION"),
        (True, "not_stored"),
    ]
