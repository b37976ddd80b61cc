"""The floor below every durable figure: what this disk asks for one fsync, and for a stream of bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from tests.bench.figure import Figure
from tests.bench.registry import bench
from tests.bench.session import Session

_PAGE: Final = os.urandom(4096)
_STREAM: Final = os.urandom(8 << 20)


def _fsyncs(path: Path, seconds: float) -> dict[str, float]:
    """Write one page anew and fsync it, again and again."""
    took: list[float] = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end or not took:
            os.pwrite(fd, _PAGE, 0)
            os.fsync(fd)
            took.append((time.perf_counter() - began) * 1e3)
    finally:
        os.close(fd)
    return {"p50": float(np.percentile(took, 50)), "p99": float(np.percentile(took, 99))}


def _stream(path: Path, seconds: float) -> dict[str, float]:
    """Write new blocks, fsync after each 8 MiB."""
    count = 0
    began = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while time.perf_counter() - began < seconds or not count:
            os.write(fd, _STREAM)
            os.fsync(fd)
            count += 1
    finally:
        os.close(fd)
    return {"mb": count * len(_STREAM) / 1e6 / (time.perf_counter() - began)}


def _commits(folder: Path, seconds: float) -> dict[str, float]:
    """The system calls of one durable commit, with nothing between: two new files, a link, a rename, two folders."""
    took: list[float] = []
    log = folder / "log"
    log.mkdir(exist_ok=True)
    end = time.perf_counter() + seconds
    number = time.monotonic_ns()
    while (began := time.perf_counter()) < end or not took:
        number += 1
        _durable_file(folder / f"{number}.data")
        _sync_folder(folder)
        _durable_file(log / f"{number}.tmp")
        os.link(log / f"{number}.tmp", log / f"{number}.json")
        os.rename(log / f"{number}.tmp", log / "head")
        _sync_folder(log)
        took.append((time.perf_counter() - began) * 1e3)
    return {"p50": float(np.percentile(took, 50)), "p99": float(np.percentile(took, 99))}


def _durable_file(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, _PAGE)
    os.fsync(fd)
    os.close(fd)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def _measured(
    session: Session, name: str, measure: Callable[[Path, float], dict[str, float]]
) -> list[dict[str, float]]:
    place = session.fresh(name)
    path = place if measure is _commits else place / "file"
    return [dict(w) for w in session.windows(lambda seconds: measure(path, seconds))]


@bench("disk")
def disk(session: Session) -> Iterator[Figure]:
    """fsync of one page, a commit's system calls, and a synced stream."""
    windows = _measured(session, "disk-fsync", _fsyncs)
    yield session.figure_of("disk.fsync.p50", "one page overwritten and fsynced", "ms", "p50", windows)
    windows = _measured(session, "disk-commit", _commits)
    said = "the system calls of one durable commit and nothing else (two new 4 KiB files, both folders)"
    yield session.figure_of("disk.commit.p50", said, "ms", "p50", windows)
    windows = _measured(session, "disk-stream", _stream)
    yield session.figure_of("disk.stream.mb", "new blocks, fsynced after each 8 MiB", "MB/s", "mb", windows)
