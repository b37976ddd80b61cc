"""The sockets of the Kafka door."""

from __future__ import annotations

from deltamq.api.kafka.server.listener import bind_kafka
from deltamq.api.kafka.server.server import KafkaServer

__all__ = ["KafkaServer", "bind_kafka"]
