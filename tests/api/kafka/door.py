"""A service with a Kafka door, for tests."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.api.running import Api, config_for, running

__all__ = ["KafkaApi", "free_port", "kafka_running"]


@dataclass
class KafkaApi:
    """A running service, and the address of its Kafka door."""

    api: Api
    address: str
    port: int

    def connect(self) -> socket.socket:
        """Return a plain connection to the door."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def kafka_running(warehouse: Path, **service: Any) -> Iterator[KafkaApi]:
    """Run a service with a Kafka door until the block ends."""
    port = free_port()
    with running(config_for(warehouse, kafka_port=port, **service)) as api:
        yield KafkaApi(api, f"127.0.0.1:{port}", port)
