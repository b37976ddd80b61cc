"""A service with a Kafka port for each module, a topic and a group for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.kafka.door import KafkaApi, kafka_running


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaApi]:
    with kafka_running(tmp_path_factory.mktemp("warehouse")) as found:
        yield found


@pytest.fixture
def topic(topic: str) -> str:
    """A long name: for an answer about all topics librdkafka has four times its bytes, and short names need more."""
    return f"{topic}.of.the.tests.of.kafka"


@pytest.fixture
def group(topic: str) -> str:
    return f"group.of.{topic}"
