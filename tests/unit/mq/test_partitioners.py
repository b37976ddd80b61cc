"""From keys to slots: the same for one key and for columns, and by Kafka's rule (SPEC ROUTE-4, KAFKA-12)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.partitioners import (
    Partitioner,
    hash_bytes,
    kafka_hash,
    kafka_table,
    logical_partition,
    slot_of,
    slots_of,
)
from deltamq.mq.testing.queue import MemoryQueue
from tests.unit.mq.test_murmur2 import buffers

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
partitioners = st.sampled_from(["lp", "kafka"])


@given(keys, st.integers(1, 1024))
def test_kafka_12_the_slot_is_that_of_kafkas_default_partitioner(key: str, partitions: int) -> None:
    slot = slot_of(key, "kafka", partitions)
    assert slot == (hash_bytes(key.encode()) & 0x7FFFFFFF) % partitions
    assert kafka_table(partitions)[slot] == slot


@given(st.lists(keys, max_size=40), st.integers(1, 70_000), partitioners)
def test_kafka_12_columns_and_single_keys_have_the_same_slots(
    found: list[str], slots: int, partitioner: Partitioner
) -> None:
    size = slots if partitioner == "kafka" else 1024
    column = pa.array(found, pa.string())
    of_column = slots_of(*buffers(column), partitioner, size)
    assert of_column.tolist() == [slot_of(key, partitioner, size) for key in found]
    assert ((of_column >= 0) & (of_column < size)).all()


@given(keys, st.integers(1, 100), st.integers(1, 64))
def test_kafka_12_a_longer_table_moves_no_key(key: str, partitions: int, times: int) -> None:
    assert slot_of(key, "kafka", partitions * times) % partitions == slot_of(key, "kafka", partitions)


def test_kafka_12_the_hash_is_never_negative() -> None:
    assert hash_bytes(b"21") < 0 < kafka_hash("21")


def test_route_4_slots_of_lp_are_logical_partitions() -> None:
    assert slot_of("orders", "lp", 1024) == logical_partition("orders")


@pytest.mark.parametrize("partitions", [1, 3, 1024])
def test_a_table_is_read_only(partitions: int) -> None:
    table = kafka_table(partitions)
    assert table.tolist() == list(range(partitions)) and not table.flags.writeable and table.dtype == np.int16


def test_kafka_12_the_twin_in_memory_places_keys_in_the_same_way() -> None:
    queue = MemoryQueue()
    queue.create_topic("orders", 5, partitioner="kafka")
    queue.create_topic("bills", 5)
    names = queue.tables.topics["orders"].route.partitions
    for number in range(100):
        key = f"key-{number}"
        assert queue.send("orders", b"", key=key).partition == names[kafka_hash(key) % 5]
        assert (
            queue.send("bills", b"", key=key).partition
            == (queue.tables.topics["bills"].route.partitions[queue.tables.topics["bills"].route.partition_of(key)])
        )
