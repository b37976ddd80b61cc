"""Programs in Java that talk to the Kafka door: jars of Maven Central, pinned, fetched when a test first needs them."""

from __future__ import annotations

from tests.java.programs import (
    BROKER,
    CONNECT,
    DEBEZIUM,
    GENERATIONS,
    REGISTRY,
    SPARK_KAFKA,
    Java,
    JavaProgram,
    fetched,
)

__all__ = ["BROKER", "CONNECT", "DEBEZIUM", "GENERATIONS", "REGISTRY", "SPARK_KAFKA", "Java", "JavaProgram", "fetched"]
