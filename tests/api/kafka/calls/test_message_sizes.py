"""How large what Kafka's clients send may be, and whether every reader gets it (SPEC KAFKA-26)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from deltamq import PopClient, PullConsumer
from deltamq.mq.limits import KIB, MIB
from tests.api.kafka.door import KafkaApi
from tests.api.running import until

TIMEOUT_S = 60
TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE


def _made(kafka: KafkaApi, topic: str, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    named = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, 1, config=named)])[topic].result(TIMEOUT_S)
    return topic


def _sent(kafka: KafkaApi, topic: str, *values: bytes, **more: Any) -> list[int | None]:
    """Send in one batch, and return the error of each record."""
    codes: list[int | None] = []

    def note(error: KafkaError | None, _: Message) -> None:
        codes.append(None if error is None else error.code())

    settings = {"bootstrap.servers": kafka.address, "message.max.bytes": 64 * MIB, "linger.ms": 200, "retries": 0}
    producer = Producer({**settings, "batch.size": 64 * MIB, "log_level": 0})
    for value in values:
        producer.produce(topic, value, on_delivery=note, **more)
    assert producer.flush(TIMEOUT_S) == 0
    return codes


@pytest.mark.parametrize(
    ("said", "most"),
    [(None, 4 * MIB), (5 * MIB, 5 * MIB), (1_000, 1_000), (64 * MIB, 16 * MIB)],
    ids=["not", "more", "less", "more than any"],
)
def test_kafka_26_a_topic_says_how_large_the_values_of_kafkas_clients_may_be(
    kafka: KafkaApi, topic: str, said: int | None, most: int
) -> None:
    _made(kafka, topic, **({} if said is None else {"max_message_bytes": str(said)}))
    assert _sent(kafka, topic, b"x" * most) == [None]
    assert _sent(kafka, topic, b"a", b"x" * (most + 1), b"b") == [TOO_LARGE] * 3
    assert _sent(kafka, topic, *[b"y" * (most - 7)] * 2) == [None] * 2, "a batch has no limit"
    assert kafka.api.stored(topic) == {f"{topic}@broker-a": 3}


def test_kafka_26_the_largest_key_and_headers_come_back(kafka: KafkaApi, topic: str) -> None:
    _made(kafka, topic)
    key, headers = "k" * 256 * KIB, [(f"{n:04}", b"v" * (32 * KIB - 4)) for n in range(512)]
    assert _sent(kafka, topic, b"one", key=key, headers=headers) == [None]
    assert _sent(kafka, topic, b"two", key=b"\xff" * 192 * KIB) == [None]
    for more in (
        {"key": key + "k"},
        {"key": b"\xff" * (192 * KIB + 1)},
        {"headers": [*headers, ("h", b"")]},
        {"headers": [("h", b"v" * 32 * KIB)]},
    ):
        assert _sent(kafka, topic, b"no", **more) == [KafkaError.INVALID_RECORD]
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "receive.message.max.bytes": 100 * MIB}
    consumer = Consumer({"bootstrap.servers": kafka.address, "fetch.message.max.bytes": 50 * MIB, **settings})
    try:
        consumer.subscribe([topic])
        one, two = (consumer.poll(TIMEOUT_S) for _ in range(2))
        assert one is not None and two is not None
        assert (one.value(), one.key(), one.headers()) == (b"one", key.encode(), headers)
        assert (two.value(), two.key()) == (b"two", b"\xff" * 192 * KIB)
    finally:
        consumer.close()


def test_kafka_26_a_large_value_is_fetched_and_popped(kafka: KafkaApi, topic: str) -> None:
    _made(kafka, topic, max_message_bytes=str(16 * MIB))
    bodies = [b"\x01" * 16 * MIB, b"a" * (16 * MIB - 1)]  # as JSON the first has six times as many bytes
    for body in bodies:
        assert _sent(kafka, topic, body) == [None]
    url = f"http://127.0.0.1:{kafka.api.port}"
    with PullConsumer(url, topic, start="first") as consumer:
        pulled: list[bytes] = []
        until(lambda: bool(pulled.extend(message.body for message in consumer.poll()) or len(pulled) == len(bodies)))
    assert pulled == bodies
    popped: list[bytes] = []

    def pop(client: PopClient) -> bool:
        for message in client.pop(topic, max_messages=1).messages:
            popped.append(message.body)
            assert not client.ack([message.handle])
        return len(popped) == len(bodies)

    with PopClient(url, topic) as client:
        until(lambda: pop(client), TIMEOUT_S)
    assert sorted(popped) == bodies
