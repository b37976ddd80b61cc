"""Batches that take much more than they are sent as: what they may take, and that it is reserved (SPEC KAFKA-6)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.log_messages import ProducedPartition, ProducePartition, ProduceRequest, ProduceTopic
from deltamq.api.kafka.records.batch import Compression, batches_of, compressed, pack_header
from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.encode import encode_records
from deltamq.api.wire.request import Ticket
from deltamq.mq.limits import KIB, MIB
from tests.api.kafka.door import KafkaApi
from tests.api.kafka.raw_client import RawClient


def _batch(count: int, size: int) -> bytes:
    """Return a batch of so many equal records, of a few bytes each when it is compressed."""
    values = pa.array([b"x" * size] * count, pa.binary())
    records = Records(pa.nulls(count, pa.binary()), values, None, np.full(count, 1_700_000_000_000, np.int64))
    (plain,) = batches_of(encode_records(records, base_offset=0))
    data = compressed(bytes(plain.records), Compression.ZSTD)
    return pack_header(data, base_offset=0, count=count, times_ms=(0, 0), compression=Compression.ZSTD) + data


def _send(port: int, topic: str, *batches: bytes) -> list[ProducedPartition]:
    parts = [ProducePartition(number, batch) for number, batch in enumerate(batches)]
    with RawClient(port) as client:
        request = ProduceRequest(None, -1, 30_000, [ProduceTopic(name=topic, partitions=parts)])
        found: list[ProducedPartition] = client.ask(request).topics[0].partitions
    return found


@contextmanager
def _reserved(kafka: KafkaApi, left: int) -> Iterator[None]:
    """Somebody else's requests hold all bytes of the service but `left`."""
    service = kafka.api.service
    admission, loop = service.admission, service.loop
    held: list[Ticket] = []
    done = threading.Event()

    def hold() -> None:
        held.append(admission.enter(service.settings.queue_bytes_max - admission.bytes - left))
        done.set()

    loop.call_soon_threadsafe(hold)
    assert done.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(held[0].release)


def test_kafka_06_the_batches_of_a_request_share_what_they_may_take(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=3)
    batch = _batch(30, MIB)
    assert len(batch) < 64 * KIB, "so it would be expanded on the event loop, if that went by its bytes"
    found = _send(kafka.port, topic, batch, batch, batch)
    assert [one.error_code for one in found] == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE]
    assert [one.base_offset for one in found] == [0, 0, -1]


def test_kafka_06_nobody_waits_for_the_expansion_of_a_batch(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=4)
    bomb = compressed(bytes(60 * MIB), Compression.ZSTD)
    batch = pack_header(bomb, base_offset=0, count=1, times_ms=(0, 0), compression=Compression.ZSTD) + bomb
    answered: list[list[ProducedPartition]] = []
    sending = threading.Thread(target=lambda: answered.append(_send(kafka.port, topic, *[batch] * 4)))
    others = 0
    sending.start()
    while sending.is_alive():
        assert kafka.api.call("GET", "/healthz").status == 200
        others += 1
    assert {one.error_code for one in answered[0]} <= {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE}
    assert others > 3, "the event loop stood still: one would have waited, and another have come behind it"


@pytest.mark.parametrize(("count", "size"), [(20, MIB), (50, KIB)])
def test_kafka_06_what_a_batch_takes_is_reserved_until_it_is_answered(kafka, topic, count, size) -> None:
    kafka.api.put_topic(topic, partitions=1)
    batch = _batch(count, size)
    with _reserved(kafka, left=len(batch) + 2 * KIB):
        (found,) = _send(kafka.port, topic, batch)
        assert found.error_code == ErrorCode.REQUEST_TIMED_OUT, "the producer tries again later"
    (found,) = _send(kafka.port, topic, batch)
    assert (found.error_code, found.base_offset) == (ErrorCode.NONE, 0)
