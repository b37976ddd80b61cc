"""Fetch: from the tail (memory) and from history (parquet files in the page cache), over REST and in process.

History is far larger than the service's cache of decoded rows and is read from its start on, so hardly a row group is
decoded for nothing or found decoded. The client opens every Arrow answer and counts its rows; a gap or a wrong row
ends the benchmark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from tests.bench.figure import Figure
from tests.bench.load import Connection, LoadError, checked, in_parallel, request
from tests.bench.log.append import open_logs, upkeep
from tests.bench.payloads import arrow_stream, record_batch
from tests.bench.registry import bench
from tests.bench.rest.produce import ARROW
from tests.bench.service import Service, cores_mark, cores_used, fetch_path, running_service
from tests.bench.session import Session, Window

__all__ = ["Reader", "fill"]

_PARTITIONS: Final = 4
_CLIENTS: Final = 2
#: Messages in one large fetch.
_LARGE: Final = 100_000
_BYTES_MAX: Final = 64 << 20
_SMALL: Final = 1_000
_FILL_ROWS: Final = 200_000


def fill(service: Service, messages: int) -> list[str]:
    """A topic of 4 partitions with so many messages of 100 B, as Arrow streams; its partitions."""
    partitions = service.make_topic("bench", _PARTITIONS)
    rows = min(_FILL_ROWS, messages // (2 * _PARTITIONS))
    data = request("POST", "/v1/topics/bench/messages", kind=ARROW, body=arrow_stream(record_batch(rows, 100)))
    connection = Connection(service.address)
    for _ in range(-(-messages // rows)):
        checked(connection.exchange(data))
    connection.close()
    return partitions


class Reader:
    """One client's place in a partition."""

    def __init__(self, partition: str, low: int, high: int) -> None:
        self.partition = partition
        self.low, self.high = low, high
        self.at = low

    def step(self, connection: Connection, count: int) -> int:
        """Fetch up to `count` messages from where we are, and start again at the end."""
        if self.at >= self.high:
            self.at = self.low
        path = fetch_path("bench", self.partition, offset=self.at, max_messages=count, max_bytes=_BYTES_MAX)
        answer = checked(connection.exchange(request("GET", path, accept=ARROW)))
        rows = pa.ipc.open_stream(pa.py_buffer(answer.body)).read_all()
        after = int(answer.header(b"mq-next-offset"))
        if rows.num_rows != after - self.at or rows.column("offset")[0].as_py() != self.at:
            raise LoadError(f"{self.partition}: asked at {self.at}, got {rows.num_rows} rows up to {after}")
        self.at = after
        return int(rows.num_rows)


def _rates(session: Session, service: Service, readers: list[Reader], count: int) -> list[Window]:
    turns = [readers[i::_CLIENTS] for i in range(_CLIENTS)]
    numbers = [0] * _CLIENTS

    def step(connection: Connection, client: int) -> int:
        numbers[client] += 1
        return turns[client][numbers[client] % len(turns[client])].step(connection, count)

    def window(seconds: float) -> dict[str, float]:
        mark = cores_mark(service)
        messages, elapsed = in_parallel(service.address, _CLIENTS, seconds, step)
        return {"rate": messages / elapsed, **cores_used(service, mark)}

    return session.windows(window)


def _latencies(session: Session, service: Service, requests: Iterator[bytes]) -> list[Window]:
    connection = Connection(service.address)

    def window(seconds: float) -> dict[str, float]:
        mark = cores_mark(service)
        took = _one_by_one(connection, requests, seconds)
        return {
            "p50": float(np.percentile(took, 50)),
            "p99": float(np.percentile(took, 99)),
            **cores_used(service, mark),
        }

    windows = session.windows(window)
    connection.close()
    return windows


def _one_by_one(connection: Connection, requests: Iterator[bytes], seconds: float) -> list[float]:
    took: list[float] = []

    def step(_: Connection, __: int) -> int:
        data = next(requests)
        began = time.perf_counter()
        answer = checked(connection.exchange(data))
        took.append((time.perf_counter() - began) * 1e3)
        if int(answer.header(b"mq-next-offset") or _SMALL) < _SMALL:
            raise LoadError("a fetch of 1,000 messages found fewer")
        return 1

    end = time.perf_counter() + seconds
    while not took or time.perf_counter() < end:
        step(connection, 0)
    return took


def _small(partition: str, offset: int) -> str:
    return fetch_path("bench", partition, offset=offset, max_messages=_SMALL, max_bytes=_BYTES_MAX)


def _random(ends: dict[str, int], accept: str) -> Iterator[bytes]:
    """Requests for 1,000 messages from random places of random partitions."""
    draw = np.random.default_rng(7)
    names = sorted(ends)
    while True:
        name = names[draw.integers(len(names))]
        yield request("GET", _small(name, int(draw.integers(max(1, ends[name] - _SMALL)))), accept=accept)


def _repeated(data: bytes) -> Iterator[bytes]:
    while True:
        yield data


@bench("fetch.rest")
def rest(session: Session) -> Iterator[Figure]:
    """Rates and latencies over REST."""
    stored = session.effort.history_messages
    with running_service(session.fresh("fetch-rest")) as service:
        fill(service, stored)
        ends = service.stored("bench")
        if sum(ends.values()) < stored:
            raise LoadError(f"{stored} messages were wanted, {ends} are stored")
        how = f"Arrow over REST, {_LARGE:,} messages of 100 B a fetch, {_CLIENTS} clients, 4 partitions"
        tail = [Reader(name, end - min(end, _LARGE), end) for name, end in ends.items()]
        windows = _rates(session, service, tail, _LARGE)
        yield session.figure_of("fetch.rest.tail.rate", f"fetch of the tail: {how}", "msg/s", "rate", windows)
        history = [Reader(name, 0, end) for name, end in ends.items()]
        windows = _rates(session, service, history, _LARGE)
        said = f"fetch of history, {stored:,} messages from the start on: {how}"
        yield session.figure_of("fetch.rest.history.rate", said, "msg/s", "rate", windows)
        yield from _small_fetches(session, service, ends)


def _small_fetches(session: Session, service: Service, ends: dict[str, int]) -> Iterator[Figure]:
    name, end = next(iter(ends.items()))
    stored = sum(ends.values())
    for accept, kind in ((ARROW, ""), ("application/json", "_json")):
        format_ = "JSON" if kind else "Arrow"
        last = _repeated(request("GET", _small(name, end - _SMALL), accept=accept))
        windows = _latencies(session, service, last)
        said = f"fetch of the last 1,000 messages of 100 B over REST, {format_}, one client"
        yield session.figure_of(f"fetch.rest.tail1000{kind}.p50", said, "ms", "p50", windows)
        windows = _latencies(session, service, _random(ends, accept))
        said = f"fetch of 1,000 messages from random places of {stored:,} over REST, {format_}, one client"
        yield session.figure_of(f"fetch.rest.random1000{kind}.p50", said, "ms", "p50", windows)


# In process ---------------------------------------------------------------------------------------------------


def _scan(log: PartitionLog, low: int, high: int, seconds: float) -> dict[str, float]:
    count, at = 0, low
    began, cpu = time.perf_counter(), time.process_time()
    while not count or time.perf_counter() - began < seconds:
        at = low if at >= high else at
        found = log.read(at, max_messages=_LARGE, max_bytes=_BYTES_MAX)
        count += found.rows.num_rows
        at = found.next_offset
    return {
        "rate": count / (time.perf_counter() - began),
        "cores": (time.process_time() - cpu) / (time.perf_counter() - began),
    }


@bench("fetch.log")
def in_process(session: Session) -> Iterator[Figure]:
    """The rate of `PartitionLog.read` over history; the tail costs nothing there, since its rows are not copied."""
    stored = session.effort.history_messages // 4
    rows = min(100_000, stored // 4)
    with open_logs(session.fresh("fetch-log"), 1) as (log,), upkeep([log]):
        batch = Batch(record_batch(rows, 100))
        while log.end_offset < stored:
            log.append([batch])
        end = log.end_offset
        how = f"read in process as Arrow, {_LARGE:,} messages of 100 B a call, one thread"
        windows = session.windows(partial(_scan, log, 0, end))
        yield session.figure_of("fetch.log.history.rate", f"history of {stored:,}: {how}", "msg/s", "rate", windows)
