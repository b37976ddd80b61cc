"""Typed topics through Kafka's port: Confluent's serializers, refusals, gaps of what did not fit (SPEC KAFKA-25)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from google.type.money_pb2 import Money

from deltamq.api.kafka.records.batch import gap_batch
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.running import config_for, running

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": ["null", "int"], "default": None}],
    }
)
JSON = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["id"],
        "additionalProperties": False,
    }
)
ORDER = {"id": "a", "amount": 3}
_OTHERS = -138  # librdkafka's _INVALID_DIFFERENT_RECORD
CONTEXT = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaApi]:
    with kafka_running(tmp_path) as kafka:
        yield kafka


@pytest.fixture
def registry(kafka: KafkaApi) -> Iterator[SchemaRegistryClient]:
    client = SchemaRegistryClient({"url": f"http://127.0.0.1:{kafka.api.port}/schemas"})
    yield client
    client.close()


def make(kafka: KafkaApi, form: str, **schema: Any) -> None:
    body = {"partitions": 1, "schema": {"format": form, **schema}}
    reply = kafka.api.call("PUT", "/v1/topics/orders", body)
    assert reply.status == 201, reply


def send(kafka: KafkaApi, *values: bytes | None, **settings: Any) -> list[KafkaError | None]:
    """Produce the values in one batch; the error of each."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 100, **settings})
    for value in values:
        producer.produce("orders", value, key=b"k", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return errors


def read(kafka: KafkaApi, count: int, **settings: Any) -> list[tuple[int, bytes | None]]:
    """The next messages from the first on, by offset."""
    conf = {"bootstrap.servers": kafka.address, "group.id": "g", "enable.auto.commit": False, **settings}
    consumer, found, deadline = Consumer(conf), [], time.monotonic() + 30
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        while len(found) < count:
            assert time.monotonic() < deadline, found
            message = consumer.poll(1.0)
            if message is not None:
                if message.error():
                    raise KafkaException(message.error())
                found.append((message.offset(), message.value()))
    finally:
        consumer.close()
    return found


def table(kafka: KafkaApi) -> list[dict[str, Any]]:
    location = kafka.api.call("GET", "/v1/topics/orders").json["partitions"][0]["location"]
    rows: list[dict[str, Any]] = DeltaTable(location).to_pyarrow_table().sort_by("offset").to_pylist()
    return rows


def money() -> Money:
    return Money(currency_code="EUR", units=2**53 + 1, nanos=-7)


PAIRS: dict[str, Callable[[SchemaRegistryClient], tuple[Any, Any, Any, dict[str, Any]]]] = {
    "avro": lambda client: (AvroSerializer(client, AVRO), AvroDeserializer(client), ORDER, ORDER),
    "json": lambda client: (JSONSerializer(JSON, client), JSONDeserializer(JSON), ORDER, ORDER),
    "protobuf": lambda client: (
        ProtobufSerializer(Money, client),
        ProtobufDeserializer(Money, {"use.deprecated.format": False}),
        money(),
        {"currency_code": "EUR", "units": 2**53 + 1, "nanos": -7},
    ),
}


@pytest.mark.parametrize("form", PAIRS)
def test_kafka_25_values_of_confluents_serializers_are_columns_and_come_back(
    kafka: KafkaApi, registry: SchemaRegistryClient, form: str
) -> None:
    serializer, deserializer, value, columns = PAIRS[form](registry)
    data = serializer(value, CONTEXT)
    make(kafka, form, wire="confluent")
    assert send(kafka, data, None, data) == [None] * 3
    assert [row["value"] for row in table(kafka)] == [columns, None, columns]
    back = read(kafka, 3)
    assert back[1] == (1, None) and deserializer(back[2][1], CONTEXT) == value


def test_kafka_25_a_batch_with_a_value_that_does_not_fit_is_refused_with_which_and_nothing_of_it_is_stored(
    kafka: KafkaApi,
) -> None:
    make(kafka, "json", schema=JSON)
    good = json.dumps(ORDER).encode()
    errors = send(kafka, good, b'{"id": 7}', good, b"x")
    codes = [error and error.code() for error in errors]
    # What would fit was refused because of the others.
    assert codes == [_OTHERS, KafkaError.INVALID_RECORD, _OTHERS, KafkaError.INVALID_RECORD]
    assert table(kafka) == []
    assert send(kafka, good, None) == [None, None] and len(table(kafka)) == 2
    # Batches that wait for the same commit do not share the refusal.
    assert set(send(kafka, b"x", good, **{"batch.num.messages": 1, "max.in.flight": 1})) != {None}
    assert [row["body"] for row in table(kafka)] == [good, b"", good]


def test_kafka_25_consumers_pass_over_what_did_not_fit_also_when_all_of_a_fetch_did_not(kafka: KafkaApi) -> None:
    make(kafka, "json", schema=JSON, on_invalid="quarantine")
    good = json.dumps(ORDER).encode()
    assert send(kafka, good, b"x", good, b"x", b"x") == [None] * 5
    bad = [b"x" * 100] * 500
    for _ in range(4):
        assert set(send(kafka, *bad)) == {None}
    assert send(kafka, good) == [None]
    assert read(kafka, 3) == [(0, good), (2, good), (2005, good)]
    # A fetch that is small, and one in each compression.
    small = {"fetch.message.max.bytes": 1_000, "fetch.max.bytes": 1_000, "message.max.bytes": 1_000}
    assert read(kafka, 3, **small) == [(0, good), (2, good), (2005, good)]
    for compression in ("gzip", "zstd"):
        entry = ConfigEntry("compression.type", compression, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", "orders", incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": kafka.address})
        admin.incremental_alter_configs([resource])[resource].result()
        assert read(kafka, 3) == [(0, good), (2, good), (2005, good)]


def test_kafka_25_values_of_a_topic_of_columns_are_fetched_as_json(kafka: KafkaApi) -> None:
    make(kafka, "columns", schema="id STRING, amount BIGINT")
    assert send(kafka, b' {"amount": 3, "id": "a"}') == [None]
    reply = kafka.api.call("POST", "/v1/topics/orders/messages", {"messages": [{"value": {"id": "b"}}]})
    assert reply.status == 200
    assert [row["body"] for row in table(kafka)] == [None, None]
    assert read(kafka, 2) == [(0, b'{"id":"a","amount":3}'), (1, b'{"id":"b"}')]


def configs(admin: AdminClient) -> dict[str, str]:
    """What is set of the topic's schema, by Kafka's call."""
    resource = ConfigResource("topic", "orders")
    found = admin.describe_configs([resource])[resource].result()
    name = "deltamq.schema."
    return {key.removeprefix(name): one.value for key, one in found.items() if key.startswith(name) and one.source == 1}


def change(admin: AdminClient, **settings: str | None) -> None:
    entries = [
        ConfigEntry(
            f"deltamq.schema.{name}",
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in settings.items()
    ]
    resource = ConfigResource("topic", "orders", incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result()


def create(admin: AdminClient, **settings: str) -> None:
    config = {f"deltamq.schema.{name}": value for name, value in settings.items()}
    admin.create_topics([NewTopic("orders", 1, 1, config=config)])["orders"].result()


def test_kafka_25_a_topics_schema_is_set_changed_and_shown_by_kafkas_settings(kafka: KafkaApi) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for wrong in ({"format": "xml"}, {"schema": JSON}, {"format": "json"}, {"format": "json", "schema": "x"}):
        with pytest.raises(KafkaException):
            create(admin, **wrong)
    assert kafka.api.call("GET", "/v1/topics/orders").status == 404
    create(admin, format="json", schema=JSON, on_invalid="quarantine")
    assert configs(admin) == {"format": "json", "subject": "orders-value", "on_invalid": "quarantine"}
    assert send(kafka, b"x", json.dumps(ORDER).encode()) == [None, None]
    assert read(kafka, 1) == [(1, json.dumps(ORDER).encode())]
    change(admin, on_invalid=None)
    assert "on_invalid" not in configs(admin)
    assert {error and error.code() for error in send(kafka, b"x")} == {KafkaError.INVALID_RECORD}
    wider = {**json.loads(JSON), "additionalProperties": {"type": "string"}}
    change(admin, schema=json.dumps(wider))
    assert kafka.api.call("GET", "/v1/topics/orders").json["schema"]["version"] == 2
    with pytest.raises(KafkaException):
        change(admin, format="avro")
    assert configs(admin)["format"] == "json"


def test_kafka_25_a_topic_of_bytes_shows_and_takes_the_defaults(kafka: KafkaApi) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    create(admin, wire="none", on_invalid="reject")
    assert configs(admin) == {}
    change(admin, wire="none", format=None)
    assert kafka.api.call("GET", "/v1/topics/orders").json.get("schema") is None


def test_a_gap_is_a_batch_with_one_control_record() -> None:
    batch = gap_batch(5, 9)
    assert len(batch) == 61 + 17 and int.from_bytes(batch[:8], "big") == 5
    assert int.from_bytes(batch[21:23], "big") == 0x20 and int.from_bytes(batch[23:27], "big") == 3


def test_type_49_unmodified_serializers_of_a_registry_elsewhere_send_what_is_not_known_here_yet(tmp_path: Path) -> None:
    with running(config_for(tmp_path / "elsewhere")) as elsewhere:
        url = f"http://127.0.0.1:{elsewhere.port}/schemas"
        client = SchemaRegistryClient({"url": url})
        serializer, deserializer, value, columns = PAIRS["avro"](client)
        data = serializer(value, CONTEXT)
        with kafka_running(tmp_path / "here", schemas_url=url) as kafka:
            make(kafka, "avro", wire="confluent")
            assert send(kafka, data) == [None]
            wider = json.loads(AVRO)
            wider["fields"].append({"name": "more", "type": ["null", "string"], "default": None})
            newer = AvroSerializer(client, json.dumps(wider))({**value, "more": "x"}, CONTEXT)
            assert newer[:5] != data[:5]
            assert send(kafka, newer, data) == [None, None], "the client has repeated it until the schema was here"
            assert [row["value"] for row in table(kafka)] == [
                {**columns, "more": None},
                {**columns, "more": "x"},
                {**columns, "more": None},
            ]
            assert [deserializer(body, CONTEXT) for _, body in read(kafka, 3) if body] == [
                value,
                {**value, "more": "x"},
                value,
            ]
        client.close()
