"""The job `delay` with the Spark engine: a task for each delay log returns counts to the driver (SPEC SPARK-7)."""

from __future__ import annotations

from collections.abc import Sequence

from deltamq.jobs.queue.delay_task import DELAY_COUNTS, DelayItem, forward_shard
from deltamq.jobs.queue.task_driver import BrokerList, Looked, Tasks, end_of, summed
from deltamq.jobs.queue.task_memory import WarehouseAddress
from deltamq.jobs.run.registry import Facts
from deltamq.tables.config import Config
from deltamq.tables.log.appearing import Appearing
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.refs import DELAY, system_ref


class TaskForwarder:
    """The driver's state between runs: when each delay log was last looked at. For one thread."""

    def __init__(self, warehouse: Warehouse, conf: Config) -> None:
        self._warehouse = warehouse
        self._cluster = conf.warehouse.cluster
        self._address = WarehouseAddress.of(conf)
        self._brokers = BrokerList(warehouse, conf)
        self._looked = Looked()
        self._appearing = Appearing(warehouse)
        self._existing: set[str] = set()

    def run(self, tasks: Tasks, now_ms: int, brokers: Sequence[str] | None = None) -> Facts:
        """Forward what is due at `now_ms`, which must have been taken before the call (see `mq.queue.delay`).

        `brokers` are the brokers that this application has; None: all.
        """
        mine = self._brokers.at(now_ms) if brokers is None else brokers
        items = [
            self._item(broker, now_ms) for broker in mine if self._exists(broker) and not self._is_quiet(broker, now_ms)
        ]
        reports = tasks(items, forward_shard, DELAY_COUNTS)
        self._looked.note(reports, now_ms)
        facts = summed(
            reports,
            rows="forwarded",
            cancelled="cancelled",
            dropped="dropped",
            lost="lost",
            late_ms="late_ms",
            behind_ms="behind_ms",
            waiting="waiting",
        )
        behind_ms = max(int(facts["behind_ms"]), self._looked.held_ms(now_ms))
        return {**facts, "behind_ms": behind_ms, "tasks": len(items)}

    def _is_quiet(self, broker: str, now_ms: int) -> bool:
        ref = system_ref(DELAY, self._cluster, broker)
        return self._looked.is_quiet((broker, 0), lambda: end_of(self._warehouse, ref), now_ms)

    def _item(self, broker: str, now_ms: int) -> DelayItem:
        since_ms = self._looked.since_ms((broker, 0))
        return DelayItem(address=self._address, broker=broker, now_ms=now_ms, since_ms=since_ms)

    def _exists(self, broker: str) -> bool:
        if broker not in self._existing and self._appearing.is_there(system_ref(DELAY, self._cluster, broker)):
            self._existing.add(broker)
        return broker in self._existing
