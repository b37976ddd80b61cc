"""Produce over REST: what a producer waits for, and how much goes through.

Client and service share the machine. Keyless messages of random capital letters, as the peers' own load generators
send; the topic has 4 partitions, and every acknowledgement follows the fsync unless the name says async. After each
benchmark the partitions' end offsets must add up to what was acknowledged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from tests.bench.figure import Figure
from tests.bench.load import Connection, LoadError, checked, in_parallel, request, synchronous
from tests.bench.payloads import arrow_stream, json_request, ndjson, record_batch
from tests.bench.registry import bench
from tests.bench.service import Service, cores_mark, cores_used, running_service
from tests.bench.session import Session

__all__ = ["ARROW"]

ARROW: Final = "application/vnd.apache.arrow.stream"
_JSON: Final = "application/json"
_NDJSON: Final = "application/x-ndjson"
_PARTITIONS: Final = 4
#: More clients than this are served by one thread that waits for all of them.
_THREADS_MAX: Final = 4
#: Peers warm up for six seconds. Small commits are level when enough dead files are there to be written again.
_SMALL_WARMUPS: Final = 4
_PATH: Final = "/v1/topics/bench/messages"


class _Counted:
    """Checks that what was acknowledged is what is stored."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.acknowledged = 0

    def check(self) -> None:
        stored = sum(self._service.stored("bench").values())
        if stored != self.acknowledged:
            raise LoadError(f"{self.acknowledged} messages were acknowledged, {stored} are stored")


# One message a request ----------------------------------------------------------------------------------------


def _synchronous(session: Session, clients: int, flush: str) -> Iterator[Figure]:
    name = f"rest.sync{clients}.{flush}"
    data = request("POST", f"{_PATH}?flush={flush}", kind=_JSON, body=json_request(1, 100))
    with running_service(session.fresh(name)) as service:
        service.make_topic("bench", _PARTITIONS)
        counted = _Counted(service)

        def window(seconds: float) -> dict[str, float]:
            mark = cores_mark(service)
            took, elapsed = synchronous(service.address, data, clients, seconds)
            counted.acknowledged += len(took)
            return {
                "p50": float(np.percentile(took, 50)),
                "p99": float(np.percentile(took, 99)),
                "rate": len(took) / elapsed,
                **cores_used(service, mark),
            }

        windows = session.windows(window, warmups=_SMALL_WARMUPS)
        counted.check()
    how = "fsynced" if flush == "sync" else "async flush"
    who = "one synchronous client" if clients == 1 else f"{clients} synchronous clients"
    said = f"produce over REST, {who}, one 100 B message a request, JSON, {how}, 4 partitions"
    yield session.figure_of(f"{name}.p50", f"{said}: request to answer", "ms", "p50", windows)
    yield session.figure_of(f"{name}.p99", f"{said}: 99th percentile", "ms", "p99", windows)
    yield session.figure_of(f"{name}.rate", f"{said}: rate", "msg/s", "rate", windows)


def _register_synchronous() -> None:
    for clients, flush in itertools.product((1, 16), ("sync", "async")):

        def run(session: Session, clients: int = clients, flush: str = flush) -> Iterator[Figure]:
            return _synchronous(session, clients, flush)

        bench(f"rest.sync{clients}.{flush}")(run)


# Batches ------------------------------------------------------------------------------------------------------


def _batches(
    session: Session, name: str, kind: str, body: bytes, count: int, size: int, clients: int, said: str
) -> Iterator[Figure]:
    data = request("POST", _PATH, kind=kind, body=body)

    def step(connection: Connection, _: int) -> int:
        checked(connection.exchange(data))
        return count

    with running_service(session.fresh(name)) as service:
        service.make_topic("bench", _PARTITIONS)
        counted = _Counted(service)

        def window(seconds: float) -> dict[str, float]:
            mark = cores_mark(service)
            if clients > _THREADS_MAX:
                took, elapsed = synchronous(service.address, data, clients, seconds)
                messages = len(took) * count
            else:
                messages, elapsed = in_parallel(service.address, clients, seconds, step)
            counted.acknowledged += messages
            rate = messages / elapsed
            return {"rate": rate, "mb": rate * size / 1e6, **cores_used(service, mark)}

        windows = session.windows(window)
        counted.check()
    text = f"produce over REST, {said}, {clients} clients, {size:,} B bodies, fsynced, 4 partitions"
    yield session.figure_of(f"{name}.rate", text, "msg/s", "rate", windows)
    yield session.figure_of(f"{name}.mb", f"{text}: bodies only", "MB/s", "mb", windows)


def _size_name(size: int) -> str:
    return "1KiB" if size == 1024 else f"{size}B"


def _register_batches() -> None:
    for size in (100, 1024):
        lines = 20_000 if size == 100 else 4_000
        rows = 200_000 if size == 100 else 20_000

        def run_json(session: Session, size: int = size) -> Iterator[Figure]:
            name, said = f"rest.json100.{_size_name(size)}", "JSON requests of 100 messages"
            return _batches(session, name, _JSON, json_request(100, size), 100, size, 32, said)

        def run_ndjson(session: Session, size: int = size, lines: int = lines) -> Iterator[Figure]:
            name, said = f"rest.ndjson.{_size_name(size)}", f"NDJSON requests of {lines:,} lines"
            return _batches(session, name, _NDJSON, ndjson(lines, size), lines, size, 4, said)

        def run_arrow(session: Session, size: int = size, rows: int = rows) -> Iterator[Figure]:
            name, said = f"rest.arrow.{_size_name(size)}", f"Arrow streams of {rows:,} rows"
            body = arrow_stream(record_batch(rows, size))
            return _batches(session, name, ARROW, body, rows, size, 4, said)

        def run_keyed(session: Session, size: int = size, rows: int = rows) -> Iterator[Figure]:
            name, said = f"rest.arrow_keyed.{_size_name(size)}", f"Arrow streams of {rows:,} rows with 4,000 keys"
            body = arrow_stream(record_batch(rows, size, keys=4_000))
            return _batches(session, name, ARROW, body, rows, size, 4, said)

        bench(f"rest.json100.{_size_name(size)}")(run_json)
        bench(f"rest.ndjson.{_size_name(size)}")(run_ndjson)
        bench(f"rest.arrow.{_size_name(size)}")(run_arrow)
        bench(f"rest.arrow_keyed.{_size_name(size)}")(run_keyed)


_register_synchronous()
_register_batches()
