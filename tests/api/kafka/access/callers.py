"""A guarded service with a Kafka port, and callers of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.api.guarded import Guarded
from tests.api.kafka.raw_client import RawClient

TIMEOUT_S = 30
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@dataclass
class Door:
    """A guarded service with a Kafka port, as its administrator sees it, and callers of their own."""

    admin: Guarded
    port: int
    ca: str

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def caller(self, name: str, *rules: tuple[str, ...]) -> Caller:
        """A new principal with these rules, each a resource, a pattern, and verbs."""
        self.admin.put_principal(name)
        for resource, pattern, *verbs in rules:
            self.admin.rule(name, resource, pattern, *verbs)
        return self.known(name)

    def known(self, name: str, **more: object) -> Caller:
        """A principal that is there, with a new key."""
        made = self.admin.key(name, **more)
        return Caller(self, name, made["key_id"], made["key"])

    def raw(self, client_id: str | None = None) -> RawClient:
        return RawClient(self.port, self.ca, client_id)


@dataclass
class Caller:
    """A principal with one of its keys."""

    door: Door
    name: str
    key_id: str
    key: str

    def settings(self, mechanism: str = "SCRAM-SHA-256", user: str | None = None, **more: object) -> dict[str, object]:
        """Return the settings of a client of librdkafka."""
        found: dict[str, object] = {
            "bootstrap.servers": self.door.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.door.ca,
            "sasl.mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            found["oauth_cb"] = lambda _: (self.key, time.time() + 3_600)
        else:
            found |= {"sasl.username": user or self.name, "sasl.password": self.key}
        return found | more

    def raw(self, client_id: str | None = None) -> RawClient:
        """A connection that has authenticated."""
        client = self.door.raw(client_id)
        assert client.plain(self.name, self.key).error_code == 0
        return client


def everything(name: str) -> tuple[tuple[str, ...], ...]:
    """Rules for a producer and consumer of the topic and the group of this name."""
    return ("topic", name, "publish", "subscribe"), ("group", name, "subscribe")


def send(settings: dict[str, object], topic: str, *bodies: str) -> None:
    """Send with librdkafka; raise what the broker says."""
    errors: list[KafkaError] = []
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"message.timeout.ms": 10_000, "error_cb": failed.append, **settings})
    for body in bodies:
        producer.produce(topic, body, on_delivery=note)
    deadline = time.monotonic() + TIMEOUT_S
    while producer.flush(0.1):
        assert time.monotonic() < deadline
        # It would log in again and again, until there is no time left.
        if any(error.code() == KafkaError._AUTHENTICATION for error in failed):
            producer.purge()
            errors = failed
    if errors:
        raise KafkaException(errors[0])


def consume(settings: dict[str, object], topic: str, group: str, count: int) -> list[bytes]:
    """Read and commit as a member of a group."""
    more = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**settings, **more})
    try:
        consumer.subscribe([topic])
        found: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += [one.value() or b"" for one in consumer.consume(count, 0.1) if one.error() is None]
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()
