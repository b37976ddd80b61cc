"""The Kafka door: its codec, and librdkafka as producer and consumer against a service in a process of its own.

The client shares the machine, and runs within the interpreter that measures, so it is the bound of the rates.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from deltamq.api.kafka.records.batch import batches_of
from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.decode import decode_batches
from deltamq.api.kafka.records.encode import encode_records
from deltamq.api.kafka.rows import native_decoder, records_of, rows_of
from deltamq.tables.delta.stamped import RowsPart, Stamped
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.registry import bench
from tests.bench.service import Service, cores_mark, cores_used, running_service
from tests.bench.session import Session
from tests.free_ports import free_port

__all__ = ["PARTITIONS", "QUIET", "kafka_service", "sent"]

PARTITIONS: Final = 4
_TIME_MS: Final = 1_700_000_000_000
_TIMEOUT_S: Final = 60
#: The service ends before its clients, who would say so.
QUIET: Final = {"log_level": 0}
#: Shapes of batches: records in one batch, and batches that are decoded together, as a commit does.
_SHAPES: Final = ((1, 1), (150, 1), (150, 5), (2_400, 4))


@contextmanager
def kafka_service(session: Session, name: str) -> Iterator[tuple[Service, str]]:
    """A service with a Kafka door, and that door's address."""
    port = free_port()
    with running_service(session.fresh(name), {"DELTAMQ_SERVICE_KAFKA_PORT": str(port)}) as service:
        yield service, f"127.0.0.1:{port}"


# The codec ----------------------------------------------------------------------------------------------------


def _records(count: int, size: int) -> Records:
    body = np.random.default_rng(count).integers(65, 91, (count, size), dtype=np.uint8)
    ends = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    value = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(body)])
    times = _TIME_MS + np.arange(count, dtype=np.int64) // 100
    return Records(key=pa.nulls(count, pa.binary()), value=value, headers=None, time_ms=times)


@bench("kafka.codec")
def codec(session: Session) -> Iterator[Figure]:
    """CPU time of a record from the bytes of its batch to a row, and back: checksum included."""
    for count, together in _SHAPES:
        data = encode_records(_records(count, 100), base_offset=0, producer=(7, 0, 0))

        def decode(data: bytes = data, together: int = together) -> pa.RecordBatch:
            return rows_of(decode_batches([one for _ in range(together) for one in batches_of(data)], native_decoder()))

        parts = [RowsPart(count * together)]
        rows = Stamped(decode(), parts, batch_id="0" * 32, append_us=_TIME_MS * 1_000, start=0).table()

        def encode(rows: pa.Table = rows) -> bytes:
            return encode_records(records_of(rows), base_offset=0)

        for what, work in (("decode", decode), ("encode", encode)):
            samples = [_cpu_us(work, session.effort.window_s) / (count * together) for _ in range(5)]
            said = f"{what} batches of {count:,} records of 100 B, {together} together: CPU time of a record"
            yield session.figure(f"kafka.codec.{what}.{count}x{together}", said, "us", samples)


def _cpu_us(work: Any, seconds: float) -> float:
    work()
    began, calls = time.process_time(), 0
    while time.process_time() - began < seconds / 4:
        work()
        calls += 1
    return (time.process_time() - began) * 1e6 / calls


# Producing ----------------------------------------------------------------------------------------------------


class _Acknowledged:
    """Counts deliveries; any that failed ends the benchmark."""

    def __init__(self) -> None:
        self.count = 0

    def told(self, error: Any, _: Any) -> None:
        if error is not None:
            raise LoadError(f"a record was not delivered: {error}")
        self.count += 1


def sent(producer: Producer, topic: str, bodies: Sequence[bytes], seconds: float) -> int:
    """Send as fast as the client takes records for a while, wait for the last one, and return their number."""
    done = _Acknowledged()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for body in bodies:
            try:
                producer.produce(topic, body, on_delivery=done.told)
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    if producer.flush(_TIMEOUT_S):
        raise LoadError("records were not acknowledged")
    return done.count


def _produce(session: Session, name: str, settings: Mapping[str, Any], size: int, said: str) -> Iterator[Figure]:
    with kafka_service(session, name) as (service, address):
        service.make_topic("bench", PARTITIONS)
        producer = Producer({"bootstrap.servers": address, **QUIET, "enable.idempotence": True, **settings})
        total = 0

        def window(seconds: float) -> dict[str, float]:
            nonlocal total
            mark, cpu_s, began = cores_mark(service), service.cpu_s(), time.perf_counter()
            count = sent(producer, "bench", [bytes(size)] * 1_000, seconds)
            total += count
            rate = count / (time.perf_counter() - began)
            return {"rate": rate, "cpu_us": (service.cpu_s() - cpu_s) * 1e6 / count, **cores_used(service, mark)}

        windows = session.windows(window)
        if sum(service.stored("bench").values()) != total:
            raise LoadError(f"{total} records were acknowledged, and others are stored")
    text = f"produce with librdkafka, idempotent, {said}, {size:,} B, fsynced, {PARTITIONS} partitions"
    yield session.figure_of(f"{name}.rate", text, "msg/s", "rate", windows)
    yield session.figure_of(f"{name}.cpu", f"{text}: the service's CPU time of a record", "us", "cpu_us", windows)


@bench("kafka.produce")
def produce(session: Session) -> Iterator[Figure]:
    """A producer with small batches, and one with large batches."""
    small = {"batch.size": 16_384, "linger.ms": 1}
    large = {"batch.size": 262_144, "linger.ms": 5}
    yield from _produce(session, "kafka.produce.100B", small, 100, "batches of 16 KiB")
    yield from _produce(session, "kafka.produce.100B.large", large, 100, "batches of 256 KiB")
    yield from _produce(session, "kafka.produce.1KiB", small, 1024, "batches of 16 KiB")


@bench("kafka.sync")
def synchronous(session: Session) -> Iterator[Figure]:
    """Producers that wait for each record's acknowledgement."""
    for clients in (1, 16):
        name = f"kafka.sync{clients}"
        with kafka_service(session, name) as (service, address):
            service.make_topic("bench", PARTITIONS)
            producers = [
                Producer({"bootstrap.servers": address, **QUIET, "linger.ms": 0, "socket.nagle.disable": True})
                for _ in range(clients)
            ]

            def window(seconds: float, producers: list[Producer] = producers) -> dict[str, float]:
                took, elapsed = _one_by_one(producers, seconds)
                p50, p99 = float(np.percentile(took, 50)), float(np.percentile(took, 99))
                return {"p50": p50, "p99": p99, "rate": len(took) / elapsed}

            windows = session.windows(window, warmups=4)
        text = f"{clients} clients of librdkafka that wait for each 100 B record, fsynced, {PARTITIONS} partitions"
        yield session.figure_of(f"{name}.p50", f"{text}: send to acknowledgement", "ms", "p50", windows)
        yield session.figure_of(f"{name}.rate", f"{text}: rate", "msg/s", "rate", windows)


def _one_by_one(producers: list[Producer], seconds: float) -> tuple[list[float], float]:
    """Return the milliseconds that each record took, and the seconds of all."""
    took: list[float] = []
    began = time.perf_counter()

    def run(producer: Producer) -> None:
        body, done = bytes(100), _Acknowledged()
        while time.perf_counter() < began + seconds:
            sent = time.perf_counter()
            producer.produce("bench", body, on_delivery=done.told)
            if producer.flush(_TIMEOUT_S):
                raise LoadError("a record was not acknowledged")
            took.append((time.perf_counter() - sent) * 1e3)

    threads = [threading.Thread(target=run, args=(one,)) for one in producers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took, time.perf_counter() - began


# Consuming ----------------------------------------------------------------------------------------------------


@bench("kafka.consume")
def consume(session: Session) -> Iterator[Figure]:
    """A consumer that reads a topic from its beginning: records as they are, and compressed ones from memory."""
    messages = max(100_000, session.effort.history_messages // 4)
    yield from _consume(session, "kafka.consume", {}, [bytes(100)] * 1_000, messages, "100 B")
    events = [
        json.dumps({"id": i, "customer": f"customer {i % 97}", "lines": [f"article {j * i % 89}" for j in range(60)]})
        for i in range(1_000)
    ]
    texts, lz4 = [event.encode() for event in events], {"compression.type": "lz4"}
    yield from _consume(session, "kafka.consume.lz4", lz4, texts, 40_000, "1 KiB of JSON in lz4, from memory")


def _consume(
    session: Session, name: str, settings: Mapping[str, Any], bodies: Sequence[bytes], messages: int, said: str
) -> Iterator[Figure]:
    with kafka_service(session, name) as (service, address):
        service.make_topic("bench", PARTITIONS)
        batches = {"batch.size": 262_144, "linger.ms": 5}
        producer = Producer({"bootstrap.servers": address, **QUIET, **batches, **settings})
        stored = 0
        while stored < messages:
            stored += sent(producer, "bench", bodies, 0.5)

        def window(_: float) -> dict[str, float]:
            mark, cpu_s = cores_mark(service), service.cpu_s()
            count, elapsed = _read(address, messages)
            used = (service.cpu_s() - cpu_s) * 1e6 / count
            return {"rate": count / elapsed, "cpu_us": used, **cores_used(service, mark)}

        windows = session.windows(window)
    text = f"consume with librdkafka from the first record on, {said}, {PARTITIONS} partitions"
    yield session.figure_of(f"{name}.rate", text, "msg/s", "rate", windows)
    yield session.figure_of(f"{name}.cpu", f"{text}: the service's CPU time", "us", "cpu_us", windows)


def _read(address: str, messages: int) -> tuple[int, float]:
    # librdkafka waits for a second, by default, before it fetches more for a queue that was full.
    settings = {"group.id": "unused", "enable.auto.commit": False, "fetch.queue.backoff.ms": 1}
    consumer = Consumer({"bootstrap.servers": address, **QUIET, **settings})
    consumer.assign([TopicPartition("bench", index, 0) for index in range(PARTITIONS)])
    count, began = 0, time.perf_counter()
    for _ in itertools.count():
        count += len(consumer.consume(10_000, 0.5))
        if count >= messages:
            break
        if time.perf_counter() - began > 2 * _TIMEOUT_S:
            raise LoadError(f"{count} of {messages} records came")
    elapsed = time.perf_counter() - began
    consumer.close()
    return count, elapsed
