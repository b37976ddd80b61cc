"""A service with a Kafka door, for tests."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltamq import Admin, PullConsumer
from deltamq.mq.client.messages.received import ReceivedMessage
from tests.api.running import Api, config_for, running
from tests.free_ports import free_port

__all__ = ["KafkaApi", "kafka_running", "stored_messages"]

_TIMEOUT_S = 60


@dataclass
class KafkaApi:
    """A running service, and the address of its Kafka door."""

    api: Api
    address: str
    port: int

    def connect(self) -> socket.socket:
        """Return a plain connection to the door."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@contextlib.contextmanager
def kafka_running(warehouse: Path, **service: Any) -> Iterator[KafkaApi]:
    """Run a service with a Kafka door until the block ends."""
    port = free_port()
    with running(config_for(warehouse, kafka_port=port, **service)) as api:
        yield KafkaApi(api, f"127.0.0.1:{port}", port)


def stored_messages(url: str, topic: str) -> dict[tuple[int, int], ReceivedMessage]:
    """Return all messages of a topic, of which none was removed, by partition and offset, read through the SDK."""
    with Admin(url) as admin:
        info = admin.get_topic(topic)
    order = {one.partition: index for index, one in enumerate(info.partitions)}
    wanted = sum(info.max_offsets().values())
    found: dict[tuple[int, int], ReceivedMessage] = {}
    deadline = time.monotonic() + _TIMEOUT_S
    with PullConsumer(url, topic, start="first") as consumer:
        while len(found) < wanted:
            assert time.monotonic() < deadline, f"{len(found)} messages of {wanted} came"
            found |= {(order[one.partition], one.offset): one for one in consumer.poll()}
    return found
