"""Flatness: what a commit, an opening, a fetch and a Spark count cost as a log grows.

The log grows in two ways: by commits of one row, and by messages in appends of 100,000 rows, with upkeep in the
background as in the service. At each mark a commit is timed in turns with one to a young log of the same process
(version 100 to some 1,000), so that their ratio holds whatever else the machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import Flush, LogSettings
from tests.bench.figure import Figure
from tests.bench.log.append import open_logs, upkeep
from tests.bench.payloads import record_batch
from tests.bench.registry import bench
from tests.bench.session import Session, Window
from tests.bench.spark import SparkCounter

_YOUNG_VERSION: Final = 100
_COMMITS: Final = 60
_FETCHES: Final = 20
_FETCH_ROWS: Final = 1_000
#: Every fetch decodes what it reads.
_UNCACHED: Final = LogSettings(cache_bytes_max=1)
_ONE: Final = Batch(record_batch(1, 100))


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def _commits(old: PartitionLog, young: PartitionLog, _: float) -> dict[str, float]:
    """Fsynced commits of one row, in turns."""
    took: dict[PartitionLog, list[float]] = {old: [], young: []}
    for _ in range(_COMMITS):
        for log, times in took.items():
            times.append(_milliseconds(partial(log.append, [_ONE], flush=Flush.SYNC)))
    p50, reference = float(np.median(took[old])), float(np.median(took[young]))
    return {"p50": p50, "ratio": p50 / reference, "young_p50": reference}


def _open(old: PartitionLog, folder: Path, _: float) -> dict[str, float]:
    """Open the partition in a warehouse object of its own, then fetch from random places, without a cache of rows."""
    warehouse = Warehouse.open(str(folder), settings=_UNCACHED)
    try:
        took = _milliseconds(lambda: warehouse.open_partition(old.ref))
        log = warehouse.open_partition(old.ref)
        places = np.random.default_rng(time.monotonic_ns()).integers(0, max(1, log.end_offset - _FETCH_ROWS), _FETCHES)
        fetches = [_milliseconds(partial(_fetch, log, int(at))) for at in places]
        return {"open": took, "fetch": float(np.median(fetches)), "files": log.stats().files}
    finally:
        warehouse.close()


def _fetch(log: PartitionLog, offset: int) -> None:
    wanted = min(_FETCH_ROWS, log.end_offset - offset)
    found = log.read(offset, max_messages=wanted, max_bytes=64 << 20)
    assert found.rows.num_rows == wanted, f"{found.rows.num_rows} of {wanted} rows at {offset}"


class _Course:
    """One growing log, and the figures at its marks."""

    def __init__(
        self, session: Session, kind: str, folder: Path, logs: list[PartitionLog], spark: SparkCounter
    ) -> None:
        self._session = session
        self._kind = kind
        self._folder = folder
        self._log, self._young = logs
        self._spark = spark

    def run(self, marks: tuple[int, ...], grow: Callable[[PartitionLog, int], None]) -> Iterator[Figure]:
        """Grow to each mark and measure there."""
        while self._young.version < _YOUNG_VERSION:
            self._young.append([_ONE])
        for mark in marks:
            grow(self._log, mark)
            self._log.flush()
            yield from self._at(mark, last=mark == marks[-1])

    def _at(self, mark: int, *, last: bool) -> Iterator[Figure]:
        session, size = self._session, f"{mark:,} {self._kind}"
        name = f"flat.{self._kind}.{mark}"
        windows = session.windows(lambda seconds: _commits(self._log, self._young, seconds))
        yield session.figure_of(f"{name}.commit", f"fsynced commit of one row after {size}", "ms", "p50", windows)
        if last and self._kind == "commits":
            said = f"a commit after {size} to one at version {_YOUNG_VERSION}, in turns"
            yield session.figure_of("flat.commit.ratio", said, "x", "ratio", windows)
        opened = session.windows(lambda seconds: _open(self._log, self._folder, seconds))
        yield from self._opened(name, size, opened, last=last)
        counted = self._spark.windows(session, self._log.location, self._log.end_offset)
        if counted:
            yield session.figure_of(f"{name}.spark_count", f"Spark SQL count(*) after {size}", "ms", "took", counted)

    def _opened(self, name: str, size: str, windows: list[Window], *, last: bool) -> Iterator[Figure]:
        session = self._session
        said = f"opening a partition of {size}, warm page cache"
        yield session.figure_of(f"{name}.open", said, "ms", "open", windows)
        fetched = f"read of 1,000 messages from random places after {size}, nothing cached but by the system"
        yield session.figure_of(f"{name}.fetch", fetched, "ms", "fetch", windows)
        if last and self._kind == "commits":
            yield session.figure_of("flat.open.last", said, "ms", "open", windows)
        elif last:
            yield session.figure_of("flat.fetch.last", fetched, "ms", "fetch", windows)


def _grow_commits(log: PartitionLog, mark: int) -> None:
    while log.version < mark:
        log.append([_ONE], flush=Flush.ASYNC)


def _grow_messages(log: PartitionLog, mark: int) -> None:
    batch = Batch(record_batch(min(100_000, mark), 100))
    while log.end_offset < mark:
        log.append([batch], flush=Flush.ASYNC)


@bench("flat")
def flat(session: Session) -> Iterator[Figure]:
    """By commits, then by messages."""
    effort = session.effort
    courses = (("commits", effort.flat_commits, _grow_commits), ("messages", effort.flat_messages, _grow_messages))
    with SparkCounter(session) as spark:
        for kind, marks, grow in courses:
            folder = session.fresh(f"flat-{kind}")
            with open_logs(folder, 2) as logs, upkeep(logs):
                yield from _Course(session, kind, folder, logs, spark).run(marks, grow)
