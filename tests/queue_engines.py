"""The jobs `revive` and `delay` with both engines, for tests that must hold for each (SPEC SPARK-7).

The Spark engine runs here without Spark: driver and tasks are the real ones, but the tasks run in this process and not
in executors. `tests/spark` tests them with Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

from deltamq.jobs.queue.batch_bounds import BOUNDS, BatchBounds
from deltamq.jobs.queue.delay import Forwarder
from deltamq.jobs.queue.delay_task import TaskForwarder
from deltamq.jobs.queue.revive import Reviver
from deltamq.jobs.queue.revive_task import TaskReviver
from deltamq.jobs.queue.shard_work import ShardItem, ShardReport, ShardWork
from deltamq.jobs.queue.task_memory import TaskMemory
from deltamq.jobs.run.registry import Facts
from deltamq.jobs.tasks.items import in_this_process
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse

__all__ = ["COLD", "ENGINES", "QueueJob", "delay_job", "revive_job"]

ENGINES: Final = ("local", "spark")
#: The Spark engine with each task in a new process, without cached state.
COLD: Final = "cold"


class QueueJob(Protocol):
    """A job that can run several times."""

    def run(self, now_ms: int) -> Facts: ...


class _InProcess:
    """Runs tasks in this process, one after another."""

    def __init__(self, warehouse: Warehouse, bounds: BatchBounds, *, cold: bool) -> None:
        self._new_memory = partial(TaskMemory, warehouse, bounds)
        self._memory = None if cold else self._new_memory()

    def __call__(self, groups: Sequence[Sequence[ShardItem]], work: ShardWork, unpack: Any) -> list[list[ShardReport]]:
        def in_memory(items: Sequence[ShardItem]) -> list[ShardReport]:
            return [work.report(self._memory or self._new_memory(), item) for item in items]

        return in_this_process(groups, in_memory, unpack)


class _ByTasks:
    """A job with its driver, and with tasks in this process."""

    def __init__(self, driver: Any, tasks: _InProcess) -> None:
        self._driver = driver
        self._tasks = tasks

    def run(self, now_ms: int) -> Facts:
        facts: Facts = self._driver.run(self._tasks, now_ms)
        return facts


def revive_job(engine: str, warehouse: Warehouse, conf: Config, bounds: BatchBounds = BOUNDS) -> QueueJob:
    """Return a new job `revive`."""
    if engine == "local":
        return Reviver(warehouse, conf, bounds)
    return _ByTasks(TaskReviver(warehouse, conf), _InProcess(warehouse, bounds, cold=engine == COLD))


def delay_job(engine: str, warehouse: Warehouse, conf: Config, bounds: BatchBounds = BOUNDS) -> QueueJob:
    """Return a new job `delay`."""
    if engine == "local":
        return Forwarder(warehouse, conf, bounds)
    return _ByTasks(TaskForwarder(warehouse, conf), _InProcess(warehouse, bounds, cold=engine == COLD))
