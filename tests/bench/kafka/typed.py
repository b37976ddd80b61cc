"""Values that Confluent's serializers wrote, through Kafka's port: into a typed topic, and beside it as bytes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.type.money_pb2 import Money  # type: ignore[import-untyped]

from tests.bench.figure import Figure
from tests.bench.kafka.door import PARTITIONS, QUIET, kafka_service, sent
from tests.bench.registry import bench
from tests.bench.session import Session

_CONTEXT: Final = SerializationContext("typed", MessageField.VALUE)
_BODIES: Final = 1_000
_LARGE: Final = {"batch.size": 1_048_576, "linger.ms": 20}
_FIELDS: Final = {"id": "string", "amount": "long", "price": "double", "zip": "string", "city": "string"}
_AVRO: Final = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in _FIELDS.items()]}
)
_JSON_TYPES: Final = {"string": "string", "long": "integer", "double": "number"}
_JSON: Final = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {name: {"type": _JSON_TYPES[kind]} for name, kind in _FIELDS.items()},
    }
)


def _value(number: int) -> dict[str, Any]:
    named = {"id": f"order-{number:08d}", "amount": number * 7, "price": number / 8}
    return {**named, "zip": f"{number % 100_000:05d}", "city": "Berlin"}


def _money(number: int) -> Money:
    return Money(currency_code="EUR", units=number * 7, nanos=number)


#: The serializer of each format, and its values.
_FORMATS: Final[dict[str, Callable[[SchemaRegistryClient], tuple[Any, Callable[[int], Any]]]]] = {
    "avro": lambda registry: (AvroSerializer(registry, _AVRO), _value),
    "json": lambda registry: (JSONSerializer(_JSON, registry), _value),
    "protobuf": lambda registry: (ProtobufSerializer(Money, registry), _money),
}


@bench("typed.kafka")
def typed(session: Session) -> Iterator[Figure]:
    """A producer with large batches; the ratio counts."""
    for form, made in _FORMATS.items():
        name = f"typed.kafka.{form}"
        with kafka_service(session, name) as (service, address):
            registry = SchemaRegistryClient({"url": "http://{}:{}/schemas".format(*service.address)})
            serializer, value = made(registry)
            bodies = [serializer(value(number), _CONTEXT) for number in range(_BODIES)]
            service.make_topic("bytes", PARTITIONS)
            schema = {"format": form, "wire": "confluent"}
            service.call("PUT", "/v1/topics/typed", {"partitions": PARTITIONS, "schema": schema})
            producer = Producer({"bootstrap.servers": address, **QUIET, "enable.idempotence": True, **_LARGE})

            def rate(topic: str, seconds: float, producer: Producer = producer, bodies: list[bytes] = bodies) -> float:
                began = time.perf_counter()
                return sent(producer, topic, bodies, seconds) / (time.perf_counter() - began)

            def window(seconds: float, rate: Callable[[str, float], float] = rate) -> dict[str, float]:
                rates = {topic: rate(topic, seconds / 2) for topic in ("bytes", "typed")}
                return {**rates, "ratio": rates["typed"] / rates["bytes"]}

            windows = session.windows(window)
            registry.close()
        said = f"librdkafka, large batches of {len(bodies[0])} B, {form}"
        yield session.figure_of(f"{name}.ratio", f"{said}: rate beside a topic of bytes", "x", "ratio", windows)
        yield session.figure_of(f"{name}.rate", f"{said}: into the typed topic", "msg/s", "typed", windows)
