"""The open warehouses of a process that runs jobs: one for each location, shared by all jobs and their threads.

A job that follows logs keeps its partitions open between runs, and two jobs that follow the same log read it once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar, cast
from urllib.parse import urlsplit

from msgspec.structs import replace

from deltamq.mq.limits import MIB
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.call_counts import CallsSoFar

S = TypeVar("S")

# A job's process seldom reads its own appends, and everything else once: little memory is enough.
_TAIL_BYTES_MAX: Final = 4 * MIB
_TAILS_BYTES_MAX: Final = 64 * MIB
_CACHE_BYTES_MAX: Final = 128 * MIB

_lock: Final = threading.RLock()
_opened: Final[dict[tuple[str, LogSettings], Warehouse]] = {}
_states: Final[dict[tuple[Warehouse, object], object]] = {}


def warehouse_of(conf: Config) -> Warehouse:
    """Return the warehouse of these settings; the first call opens it.

    Raises
    ------
    StoreUnsafe
        The store does not support put-if-absent.
    Unavailable
        `store_gone`: there is no warehouse.
    """
    settings = with_little_memory(conf.log, _CACHE_BYTES_MAX)
    key = (absolute(conf.warehouse.uri), settings)
    with _lock:
        warehouse = _opened.get(key)
        if warehouse is None:
            warehouse = _opened[key] = Warehouse.open(key[0], settings=settings, create=False)
        return warehouse


def with_little_memory(log: LogSettings, cache_bytes_max: int) -> LogSettings:
    """Return settings whose memory limits, which are meant for a service, are lowered."""
    return replace(
        log,
        tail_bytes_max=min(log.tail_bytes_max, _TAIL_BYTES_MAX),
        tails_bytes_max=min(log.tails_bytes_max, _TAILS_BYTES_MAX),
        cache_bytes_max=min(log.cache_bytes_max, cache_bytes_max),
    )


def state_of(conf: Config, kind: Callable[[Warehouse, Config], S]) -> S:
    """Return the state that a job keeps between its runs in a warehouse; the first call makes it.

    `kind` makes and identifies the state: a job has one for each engine. It lasts as long as the warehouse is open.
    """
    warehouse = warehouse_of(conf)
    with _lock:
        state = _states.get((warehouse, kind))
        if state is None:
            state = _states[warehouse, kind] = kind(warehouse, conf)
        return cast(S, state)


def store_calls() -> list[CallsSoFar]:
    """Return this process's calls of object stores, one for each warehouse of its that lies on one."""
    with _lock:
        counts = [warehouse.store_calls for warehouse in _opened.values()]
    return [counted.so_far() for counted in counts if counted is not None]


def close_warehouses() -> None:
    """Close all warehouses: at the end of the application, when no job runs any more."""
    with _lock:
        opened = list(_opened.values())
        _opened.clear()
        _states.clear()
    for warehouse in opened:
        warehouse.close()


def absolute(uri: str) -> str:
    """Return a warehouse's URI or absolute path, which any process can open, whatever its working directory."""
    return uri if len(urlsplit(uri).scheme) > 1 else str(Path(uri).resolve())
