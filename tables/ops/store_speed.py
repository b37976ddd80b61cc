"""How fast a store answers: each kind of call that commits, fetches and restarts are made of, measured here."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from deltamq.tables.store.store import Store

#: A data file of a few small messages.
_BYTES: Final = 4_096


class Speed(msgspec.Struct, frozen=True):
    """Milliseconds of the calls of one kind: the median, and what one in a hundred exceeds."""

    calls: int
    p50_ms: float
    p99_ms: float


def measure(
    store: Store, *, calls: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Mapping[str, Speed]:
    """Make each kind of call up to `calls` times, one after the other, in about `seconds`; its files are removed.

    The kinds are `put`, `put_if_absent`, `get` and `list`, and `commit`: a put, and then a put if absent.
    """
    folder, deadline = f".mq-probe/{uuid.uuid4().hex}", clock() + seconds
    took: dict[str, list[float]] = {"put": [], "put_if_absent": [], "get": [], "list": [], "commit": []}

    def timed(kind: str, call: Callable[[], object]) -> None:
        began = clock()
        call()
        took[kind].append(clock() - began)

    try:
        for number in range(calls):
            key = f"{folder}/{number}"
            timed("put", partial(store.put, key, bytes(_BYTES), durable=True))
            timed("put_if_absent", partial(store.put_if_absent, f"{key}.json", b"{}", durable=True))
            timed("get", partial(store.read, key))
            timed("list", partial(store.names, folder))
            took["commit"].append(took["put"][-1] + took["put_if_absent"][-1])
            if clock() > deadline:
                break
    finally:
        store.delete_tree(folder)
    return {kind: _speed(sorted(each)) for kind, each in took.items()}


def _speed(took: list[float]) -> Speed:
    p50, p99 = (took[math.ceil(share * len(took)) - 1] * 1000 for share in (0.5, 0.99))
    return Speed(len(took), p50, p99)
