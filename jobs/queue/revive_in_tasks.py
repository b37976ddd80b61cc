"""The job `revive` with the Spark engine: tasks for each broker's queues return counts to the driver (SPEC SPARK-7).

A broker's queues append to the same retry partitions, and a partition takes one append at a time: two tasks keep it
busy, more would race. For Spark, a task with nothing to do costs far more than one more queue in a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltamq.jobs.queue.revive_task import COUNTS, ReviveItem, revive_shards
from deltamq.jobs.queue.task_driver import BrokerList, Looked, Tasks, end_of, summed
from deltamq.jobs.queue.task_memory import WarehouseAddress
from deltamq.jobs.run.registry import Facts
from deltamq.mq.limits import REVIVE_QUEUES
from deltamq.tables.config import Config
from deltamq.tables.log.appearing import Appearing
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.refs import revive_ref

_TASKS_OF_A_BROKER: Final = 2


class TaskReviver:
    """The driver's state between runs: when each queue was last looked at. For one thread."""

    def __init__(self, warehouse: Warehouse, conf: Config) -> None:
        self._warehouse = warehouse
        self._cluster = conf.warehouse.cluster
        self._address = WarehouseAddress.of(conf)
        self._brokers = BrokerList(warehouse, conf)
        self._looked = Looked()
        self._appearing = Appearing(warehouse)
        self._existing: set[tuple[str, int]] = set()

    def run(self, tasks: Tasks, now_ms: int, brokers: Sequence[str] | None = None) -> Facts:
        """Deliver again what is due at `now_ms`, which must have been taken before the call.

        Parameters
        ----------
        brokers
            The brokers that this application has; None: all.
        """
        mine = self._brokers.at(now_ms) if brokers is None else brokers
        items = [self._item(*queue, now_ms) for queue in self._queues(mine) if not self._is_quiet(queue, now_ms)]
        groups = _groups(items)
        reports = tasks(groups, revive_shards, COUNTS)
        self._looked.note(reports, now_ms)
        facts = dict(
            summed(
                reports,
                revived="revived",
                dead="dead",
                lost="lost",
                skipped="skipped",
                late_ms="late_ms",
                behind_ms="behind_ms",
                waiting="waiting",
            )
        )
        facts["behind_ms"] = max(int(facts["behind_ms"]), self._looked.held_ms(now_ms))
        revived = int(facts.pop("revived"))
        if not facts["waiting"]:
            del facts["waiting"]
        return {"rows": revived + int(facts["dead"]), **facts, "tasks": len(groups)}

    def _is_quiet(self, queue: tuple[str, int], now_ms: int) -> bool:
        ref = revive_ref(self._cluster, queue[1], queue[0])
        return self._looked.is_quiet(queue, lambda: end_of(self._warehouse, ref), now_ms)

    def _item(self, broker: str, queue: int, now_ms: int) -> ReviveItem:
        since_ms = self._looked.since_ms((broker, queue))
        return ReviveItem(address=self._address, broker=broker, queue=queue, now_ms=now_ms, since_ms=since_ms)

    def _queues(self, brokers: Sequence[str]) -> list[tuple[str, int]]:
        """A queue without a log has no checkpoints, and is left out."""
        queues = [(broker, queue) for broker in brokers for queue in range(REVIVE_QUEUES)]
        for broker, queue in set(queues) - self._existing:
            if self._appearing.is_there(revive_ref(self._cluster, queue, broker)):
                self._existing.add((broker, queue))
        return [pair for pair in queues if pair in self._existing]


def _groups(items: Sequence[ReviveItem]) -> list[tuple[ReviveItem, ...]]:
    """Group items by task; neighbouring queues, which the service fills in turn, go to different tasks."""
    groups: dict[tuple[str, int], list[ReviveItem]] = {}
    for item in items:
        groups.setdefault((item.broker, item.queue % _TASKS_OF_A_BROKER), []).append(item)
    return [tuple(group) for group in groups.values()]
