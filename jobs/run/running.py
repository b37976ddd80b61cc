"""Records of long runs: a small file while a run is under way, so that other processes see when it began.

A kill leaves the file. It has no meaning then, because its application no longer owns the shards in it.

    jobs/<job>/running/<application>.json
"""

from __future__ import annotations

import msgspec

from deltamq.tables.ops.job_runs import RunningRun, read_running
from deltamq.tables.store.store import Store


def note_running(store: Store, run: RunningRun) -> None:
    """Record a run, and remove the records of killed runs of the same shards."""
    store.replace(_key(run), msgspec.json.encode(run))
    for left in read_running(store, run.job):
        if left.application != run.application and set(left.shards) <= set(run.shards):
            store.delete(_key(left))


def forget_running(store: Store, run: RunningRun) -> None:
    """Remove the record of a run that has ended."""
    store.delete(_key(run))


def _key(run: RunningRun) -> str:
    return f"jobs/{run.job}/running/{run.application}.json"
