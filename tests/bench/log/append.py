"""Durable append in process: what the log itself costs, without HTTP.

Each window appends as fast as the log takes it, one thread for each partition, while one more thread does the upkeep
(roll-ups, checkpoints, clean-up) that the service would do: its cost is inside every figure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.settings import Flush, LogSettings
from tests.bench.figure import Figure
from tests.bench.payloads import record_batch
from tests.bench.registry import bench
from tests.bench.session import Session

__all__ = ["open_logs", "upkeep"]

_BODY_BYTES: Final = 100
_SIZES: Final = (1, 100, 1_000, 10_000, 100_000)
_UPKEEP_PAUSE_S: Final = 0.01


@contextmanager
def upkeep(logs: list[PartitionLog]) -> Iterator[None]:
    """Do upkeep in the background, as the service does after commits."""
    stopped = threading.Event()

    def forever() -> None:
        while not stopped.is_set():
            done = [log.maintain() for log in logs]
            if not any(done):
                stopped.wait(_UPKEEP_PAUSE_S)

    thread = threading.Thread(target=forever, name="bench-upkeep")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@contextmanager
def open_logs(folder: Path, partitions: int, settings: LogSettings | None = None) -> Iterator[list[PartitionLog]]:
    """New partitions in a new warehouse."""
    warehouse = Warehouse.open(str(folder), settings=settings)
    try:
        refs = [PartitionRef(Space.TOPICS, "bench", f"bench#{i}@broker-a") for i in range(partitions)]
        yield [warehouse.create(ref) for ref in refs]
    finally:
        warehouse.close()


def _append_for(log: PartitionLog, batch: Batch, flush: Flush, seconds: float) -> list[float]:
    """Append until the time is over; how long each append took, in milliseconds."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end or not took:
        log.append([batch], flush=flush)
        took.append((time.perf_counter() - began) * 1e3)
    return took


def _append_window(logs: list[PartitionLog], batch: Batch, flush: Flush, seconds: float) -> dict[str, float]:
    took: list[float] = []
    cpu, began = time.process_time(), time.perf_counter()
    threads = [
        threading.Thread(target=lambda log=log: took.extend(_append_for(log, batch, flush, seconds))) for log in logs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    messages = len(took) * batch.rows.num_rows
    return {
        "rate": messages / elapsed,
        "p50": float(np.percentile(took, 50)),
        "p99": float(np.percentile(took, 99)),
        "commits": len(took) / elapsed,
        "per_cpu": messages / max(cpu, 1e-9),
        "cores": cpu / elapsed,
    }


def _append(session: Session, name: str, rows: int, flush: Flush, partitions: int) -> Iterator[Figure]:
    batch = Batch(record_batch(rows, _BODY_BYTES))
    with open_logs(session.fresh(name), partitions) as logs, upkeep(logs):
        windows = session.windows(lambda seconds: _append_window(logs, batch, flush, seconds))
    how = "fsynced" if flush is Flush.SYNC else "async flush"
    said = f"append in process, {how}, {partitions} partition{'s' * (partitions > 1)}, batches of {rows:,} x 100 B"
    yield session.figure_of(f"{name}.rate", said, "msg/s", "rate", windows)
    if rows >= 10_000:
        yield session.figure_of(
            f"{name}.per_cpu", f"{said}: messages for each second of CPU", "msg/s", "per_cpu", windows
        )
    else:
        yield session.figure_of(f"{name}.p50", f"{said}: time of one append", "ms", "p50", windows)
        yield session.figure_of(f"{name}.p99", f"{said}: time of one append, 99th percentile", "ms", "p99", windows)


def _register() -> None:
    for partitions in (1, 4):
        for flush in (Flush.SYNC, Flush.ASYNC):
            for rows in _SIZES:
                suffix = "" if partitions == 1 else f".{partitions}p"
                name = f"append.{rows}.{flush.value}{suffix}"

                def run(
                    session: Session,
                    name: str = name,
                    rows: int = rows,
                    flush: Flush = flush,
                    partitions: int = partitions,
                ) -> Iterator[Figure]:
                    return _append(session, name, rows, flush, partitions)

                bench(name)(run)


_register()
