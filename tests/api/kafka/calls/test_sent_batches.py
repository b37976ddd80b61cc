"""A batch that came compressed goes out as it came, while its rows are in memory (SPEC KAFKA-24)."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.kafka.calls.sent_batches import SentBatch, SentBatches
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from deltamq.api.kafka.records.batch import HEADER_BYTES, Compression, batches_of, with_offset
from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.decode import decode_batches, expanded_batch
from deltamq.api.kafka.records.encode import encode_records
from deltamq.jobs.tasks.warehouses import close_warehouses
from deltamq.jobs.upkeep.erase import erase
from deltamq.mq.limits import MIB
from tests.api.kafka.door import KafkaApi, kafka_running
from tests.api.kafka.raw_client import RawClient
from tests.api.running import until

VALUES = [random.Random(i).randbytes(300) for i in range(10)]
NONE, GZIP, ZSTD = Compression.NONE, Compression.GZIP, Compression.ZSTD


def _batch(
    values: list[bytes],
    by: Compression = GZIP,
    key: bytes | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    time_ms: int = 1_700_000_000_000,
) -> bytes:
    records = Records(
        pa.array([key] * len(values), pa.binary()),
        pa.array(values, pa.binary()),
        None,
        np.full(len(values), time_ms, np.int64),
    )
    return encode_records(records, base_offset=0, compression=by, producer=producer)


def _send(kafka: KafkaApi, topic: str, batch: bytes) -> int:
    parts = [ProducePartition(0, batch)]
    with RawClient(kafka.port) as raw:
        request = ProduceRequest(None, -1, 30_000, [ProduceTopic(name=topic, partitions=parts)])
        (made,) = raw.ask(request).topics[0].partitions
    assert made.error_code == ErrorCode.NONE, made
    return int(made.base_offset)


def _fetch(kafka: KafkaApi, topic: str, offset: int, bytes_max: int = MIB) -> bytes:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    with RawClient(kafka.port) as raw:
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=MIB, topics=[FetchTopic(name=topic, partitions=[wanted])]
        )
        (answered,) = raw.ask(request).topics[0].partitions
    assert answered.error_code == ErrorCode.NONE, answered
    return bytes(answered.records)


def _read(data: bytes) -> list[tuple[int, list[bytes | None]]]:
    """The first offset and the values of each batch."""
    batches = [expanded_batch(batch, 8 * MIB) for batch in batches_of(data)]
    return [(batch.base_offset, decode_batches([batch]).value.to_pylist()) for batch in batches]


def test_kafka_24_a_compressed_batch_goes_out_as_it_came_while_its_rows_are_in_memory(tmp_path: Path) -> None:
    first, second = _batch(VALUES, producer=(7, 0, 0)), _batch([b"x"], ZSTD)
    with kafka_running(tmp_path) as kafka:
        kafka.api.put_topic("t", partitions=1)
        assert (_send(kafka, "t", first), _send(kafka, "t", second)) == (0, 10)
        both = with_offset(first, 0) + with_offset(second, 10)
        for offset in range(10):
            assert _fetch(kafka, "t", offset) == both, "all of the batch, as from Kafka"
        assert _fetch(kafka, "t", 10) == with_offset(second, 10)
        assert _read(_fetch(kafka, "t", 3, len(first))) == [(0, VALUES)]
        ((start, values),) = _read(_fetch(kafka, "t", 3, len(first) - 1))
        assert (start, values[:5]) == (3, VALUES[3:8]), "rows, for a client that takes less than the batch"
    with kafka_running(tmp_path) as kafka:
        assert _read(_fetch(kafka, "t", 5)) == [(5, [*VALUES[5:], b"x"])], "tables do not keep how records came"


def test_kafka_24_a_large_batch_of_few_bytes_goes_out_whole(kafka: KafkaApi, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    values = [bytes(MIB)] * 3
    _send(kafka, topic, _batch(values))
    assert _read(_fetch(kafka, topic, 0)) == [(0, values)]


class _Case(NamedTuple):
    batch: bytes
    setting: str = "producer"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(_Case(_batch(VALUES, NONE)), id="not compressed"),
        pytest.param(_Case(_batch(VALUES), "zstd"), id="the topic says how"),
        pytest.param(_Case(_batch(VALUES, time_ms=-1)), id="no times: each reader is told the same one"),
    ],
)
def test_kafka_24_other_batches_are_made_of_rows(kafka: KafkaApi, topic: str, case: _Case) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address})
    (made,) = admin.create_topics([NewTopic(topic, 1, config={"compression.type": case.setting})]).values()
    made.result(30)
    _send(kafka, topic, case.batch)
    assert _read(_fetch(kafka, topic, 5)) == [(5, VALUES[5:])]


def test_kafka_24_a_repeat_with_other_records_is_not_what_readers_get(kafka: KafkaApi, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    _send(kafka, topic, _batch([b"stored"], NONE, producer=(9, 0, 0)))
    assert _send(kafka, topic, _batch([b"repeat"], producer=(9, 0, 0))) == 0
    assert _read(_fetch(kafka, topic, 0)) == [(0, [b"stored"])]


def test_kafka_24_records_that_were_deleted_do_not_come_with_their_batch(kafka: KafkaApi, topic: str) -> None:
    kafka.api.put_topic(topic, partitions=1)
    _send(kafka, topic, _batch(VALUES))
    assert _read(_fetch(kafka, topic, 6)) == [(0, VALUES)]
    request = DeleteRecordsRequest([DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, 4)])], 10_000)
    with RawClient(kafka.port) as raw:
        assert raw.ask(request).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert _read(_fetch(kafka, topic, 6)) == [(6, VALUES[6:])]


def test_kafka_24_records_that_were_erased_do_not_come_with_their_batch(tmp_path: Path) -> None:
    with kafka_running(tmp_path) as kafka:
        kafka.api.put_topic("t", partitions=1)
        _send(kafka, "t", _batch([b"of ada", b"of ada, too"], key=b"ada"))
        assert kafka.api.call("POST", "/v1/topics/t/erase", {"keys": ["ada"]}).status == 200
        assert _read(_fetch(kafka, "t", 0)) == [(0, [b"of ada", b"of ada, too"])]
        erase(None, kafka.api.service.config, datetime.now(UTC))
        until(lambda: _read(_fetch(kafka, "t", 0)) == [(0, [None, None])])
        _send(kafka, "t", _batch([b"later"]))
        assert _read(_fetch(kafka, "t", 0)) == [(0, [None, None, b"later"])]
        assert _read(_fetch(kafka, "t", 2)) == [(2, [b"later"])]
    close_warehouses()


class _Log:
    """A log whose rows from some offset on are in memory."""

    def __init__(self) -> None:
        self.tail_start = 0

    def in_tail(self, offset: int) -> bool:
        return offset >= self.tail_start


@given(st.data())
def test_kafka_24_what_is_kept_is_bounded_and_found_by_any_of_its_offsets(data: st.DataObject) -> None:
    sent = SentBatches(bytes_max=2_000)
    logs = [_Log(), _Log()]
    stored: dict[_Log, list[SentBatch]] = {log: [] for log in logs}
    for _ in range(data.draw(st.integers(1, 30))):
        log = data.draw(st.sampled_from(logs))
        start = (stored[log][-1].end if stored[log] else 0) + data.draw(st.sampled_from([0, 0, 0, 2]))
        batch = SentBatch(start, start + data.draw(st.integers(1, 5)), GZIP, bytes(data.draw(st.integers(1, 300))))
        stored[log].append(batch)
        sent.keep(log, batch)  # type: ignore[arg-type]
        assert sent.bytes <= 2_000
        assert sent.find(log, start, 300, None)[:1] == [batch], "the newest stays"  # type: ignore[arg-type]
    for log in logs:
        log.tail_start = data.draw(st.integers(0, 10))
        for offset in range(stored[log][-1].end + 3 if stored[log] else 1):
            bytes_max = data.draw(st.integers(0, 1_000))
            found = sent.find(log, offset, bytes_max, None)  # type: ignore[arg-type]
            if found:
                assert found[0].start <= offset < found[0].end and found[0].start >= log.tail_start
                assert all(one.end == other.start for one, other in itertools.pairwise(found))
                assert sum(len(one.data) for one in found) <= bytes_max
            assert sent.find(log, offset, bytes_max, ZSTD) == []  # type: ignore[arg-type]


def test_a_batch_with_its_offset_is_whole() -> None:
    batch = _batch(VALUES)
    (header,) = batches_of(with_offset(batch, 1 << 40))
    assert header.base_offset == 1 << 40 and bytes(header.records) == batch[HEADER_BYTES:]
