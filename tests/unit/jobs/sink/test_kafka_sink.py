"""The sink places keys of a topic with Kafka's partitioner as Kafka's clients do (SPEC KAFKA-12)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from deltamq.jobs.sink.routing import token_of
from deltamq.mq.partitioners import kafka_hash
from deltamq.tables.failpoints import FailpointHit, arm
from tests.unit.jobs.sink.sinks import Sink

KEYS = ["", "é", "订单-42", "🚚", *(f"key-{number}" for number in range(300))]


def _rows(keys: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"key": pa.array(keys, pa.string()), "value": pa.array([key.encode() for key in keys], pa.binary())}
    )


def _homes(sink: Sink) -> dict[str, int]:
    """The number of each key's partition; each key is in one alone."""
    stored = sink.stored()
    found = [(key, number) for number, rows in enumerate(stored.values()) for key, _ in rows]
    homes = {str(key): number for key, number in found}
    assert len(set(found)) == len(homes)
    return homes


def test_kafka_12_the_sink_places_keys_by_kafkas_hash() -> None:
    sink = Sink()
    sink.put_topic(partitions=5, partitioner="kafka")
    sink.write(1, _rows(KEYS[:100]), _rows(KEYS[100:]))
    assert _homes(sink) == {key: kafka_hash(key) % 5 for key in KEYS}


def test_kafka_12_the_sink_stores_each_row_once_when_the_topic_grows_amidst_a_batch() -> None:
    sink = Sink()
    sink.put_topic(partitions=2, partitioner="kafka")
    staged = sink.stage(1, _rows(KEYS))
    arm("sink.after_append=raise@1")
    try:
        with pytest.raises(FailpointHit):
            sink.commit(1, staged)
    finally:
        arm("")
    sink.put_topic(partitions=5)
    sink.restart()
    sink.commit(1, staged)
    assert sink.bodies() == sorted(KEYS)


def test_kafka_12_the_token_of_a_placement_tells_its_partitioner() -> None:
    sink = Sink()
    sink.put_topic("orders", partitions=2, partitioner="kafka")
    sink.put_topic("bills", partitions=2)
    assert token_of(*sink.place.routed("orders")).endswith(":kafka")
    assert not token_of(*sink.place.routed("bills")).endswith(":kafka")
