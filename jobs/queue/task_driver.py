"""The driver of `revive` and `delay` with the Spark engine: it gives shards to tasks, which report counts (SPARK-7).

Between runs, the driver remembers a few numbers for each shard, however much is in flight. A broker's queues append to
the same retry partitions, and a partition takes one append at a time: two tasks keep it busy, more would race. For
Spark, a task with nothing to do costs far more than one more queue in a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from deltamq.jobs.queue.brokers import BrokerList, trouble_of
from deltamq.jobs.queue.shard_work import ShardItem, ShardReport, ShardWork
from deltamq.jobs.queue.task_memory import WarehouseAddress
from deltamq.jobs.run.registry import Facts
from deltamq.jobs.tasks.items import Runner
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.config import Config
from deltamq.tables.log.appearing import Appearing
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef

_TASKS_OF_A_BROKER: Final = 2

#: A shard within a job: the broker and the number of the queue.
Shard = tuple[str, int]


#: Created at import: msgspec crashes when several threads meet a type for the first time.
_reports: Final = msgspec.msgpack.Decoder(list[ShardReport])


class Looked:
    """When a task last looked at each shard; what was tried before then need not be tried again.

    A shard is quiet if nothing was due there, nothing has been appended to its log since, and the time at which
    something falls due has not come: then it needs no task. So an idle warehouse costs the driver a look at each log.
    """

    def __init__(self) -> None:
        self._since_ms: dict[Shard, int] = {}
        self._held_ms: dict[Shard, int] = {}
        #: The end of its log at the last look, and when to look again; None if only an append can bring work.
        self._quiet: dict[Shard, tuple[int, int | None]] = {}

    def is_quiet(self, shard: Shard, log_end: Callable[[], int | None], now_ms: int) -> bool:
        """Return whether a shard needs no task at `now_ms`; `log_end` returns its log's end, None if it cannot."""
        end, next_ms = self._quiet.get(shard, (None, None))
        if end is None or (next_ms is not None and now_ms >= next_ms):
            return False
        return log_end() == end

    def since_ms(self, shard: Shard) -> int:
        """Return when a task last finished with a shard; 0 for never."""
        return self._since_ms.get(shard, 0)

    def note(self, reports: Iterable[ShardReport], now_ms: int) -> None:
        """Record what the tasks of a run reported; a shard that was held counts as not looked at."""
        before, self._held_ms = self._held_ms, {}
        for report in reports:
            shard = report.broker, report.queue
            if report.held:
                self._held_ms[shard] = before.get(shard, now_ms)
                self._quiet.pop(shard, None)
            else:
                self._since_ms[shard] = now_ms
                self._quiet[shard] = (report.log_end, report.next_ms)

    def held_ms(self, now_ms: int) -> int:
        """Return the longest time that a shard of the last run has been held; 0 if none is."""
        return max((now_ms - since_ms for since_ms in self._held_ms.values()), default=0)


class TaskDriver:
    """The driver's state of a job between runs: when each shard was last looked at. For one thread."""

    def __init__(self, work: ShardWork, warehouse: Warehouse, conf: Config) -> None:
        self._work = work
        self._warehouse = warehouse
        self._cluster = conf.warehouse.cluster
        self._address = WarehouseAddress.of(conf)
        self._brokers = BrokerList(warehouse, conf)
        self._looked = Looked()
        self._appearing = Appearing(warehouse)

    def run(self, run: Runner, now_ms: int, brokers: Sequence[str] | None = None) -> Facts:
        """Do what is due at `now_ms`, which must have been taken before the call.

        `brokers` are the brokers that this application has; None: all.
        """
        mine = self._brokers.at(now_ms) if brokers is None else brokers
        shards = [(broker, queue) for broker in mine for queue in range(self._work.queues)]
        # A shard without a log has no work.
        there = (shard for shard in shards if self._appearing.is_there(self._ref(shard)))
        busy = [shard for shard in there if not self._is_quiet(shard, now_ms)]
        groups = _groups([self._item(*shard, now_ms) for shard in busy])
        reports = [report for some in run(groups, self._work, _reports) for report in some]
        self._looked.note(reports, now_ms)
        facts = {name: sum(report.counts[name] for report in reports) for name in self._work.counts}
        facts["late_ms"] = max([0, *(report.late_ms for report in reports)])
        facts["behind_ms"] = max([self._looked.held_ms(now_ms), *(report.behind_ms for report in reports)])
        return {**facts, **trouble_of(why for report in reports for why in report.troubles), "tasks": len(groups)}

    def _is_quiet(self, shard: Shard, now_ms: int) -> bool:
        return self._looked.is_quiet(shard, lambda: _end_of(self._warehouse, self._ref(shard)), now_ms)

    def _ref(self, shard: Shard) -> PartitionRef:
        broker, queue = shard
        return self._work.log(self._cluster, queue, broker)

    def _item(self, broker: str, queue: int, now_ms: int) -> ShardItem:
        since_ms = self._looked.since_ms((broker, queue))
        return ShardItem(address=self._address, broker=broker, queue=queue, now_ms=now_ms, since_ms=since_ms)


def _groups(items: Sequence[ShardItem]) -> list[tuple[ShardItem, ...]]:
    """Group items by task; neighbouring queues, which the service fills in turn, go to different tasks."""
    groups: dict[tuple[str, int], list[ShardItem]] = {}
    for item in items:
        groups.setdefault((item.broker, item.queue % _TASKS_OF_A_BROKER), []).append(item)
    return [tuple(group) for group in groups.values()]


def _end_of(warehouse: Warehouse, ref: PartitionRef) -> int | None:
    """Return the end offset of a log; None if it cannot be read, which a task then reports."""
    try:
        log = warehouse.open_partition(ref)
        log.refresh()
    except (DeltaMQError, OSError):
        return None
    return log.end_offset
