"""Records of long runs: a small file while a run is under way, so that others see when it began.

A kill leaves the file. It has no meaning then, because its application no longer owns the shards in it.

    jobs/<job>/running/<application>.json
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from tables.store import FileMissing, Store

__all__ = ["Running", "forget_running", "note_running", "read_running"]


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A run under way."""

    job: str
    started_at: datetime
    shards: Sequence[str]
    application: str


_running: Final = msgspec.json.Decoder(Running)


def note_running(store: Store, run: Running) -> None:
    """Record a run, and remove the records of killed runs of the same shards."""
    store.replace(_key(run), msgspec.json.encode(run))
    for left in read_running(store, run.job):
        if left.application != run.application and set(left.shards) <= set(run.shards):
            store.delete(_key(left))


def forget_running(store: Store, run: Running) -> None:
    """Remove the record of a run that has ended."""
    store.delete(_key(run))


def read_running(store: Store, job: str) -> list[Running]:
    """Return the recorded runs of a job, which have not ended or were killed."""
    found = []
    folder = f"jobs/{job}/running"
    for name in store.names(folder):
        with contextlib.suppress(FileMissing, msgspec.DecodeError):
            found.append(_running.decode(bytes(store.read(f"{folder}/{name}"))))
    return found


def _key(run: Running) -> str:
    return f"jobs/{run.job}/running/{run.application}.json"
