"""The driver's side of `revive` and `delay` as Spark jobs: the shards, and the reports of their tasks.

Between runs, the driver remembers a few numbers for each shard, however much is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.jobs.queue.brokers import brokers_of
from deltamq.jobs.run.registry import Facts
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.config import Config
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef

#: Interval at which new brokers are looked for, in milliseconds.
_BROKERS_EVERY_MS: Final = 5_000
_TROUBLES_SHOWN: Final = 3
#: Facts of a run that are the maximum over its shards; all others are sums.
_GREATEST: Final = ("late_ms", "behind_ms")

#: A shard within a job: the broker and the number of the queue.
Shard = tuple[str, int]


class Tasks(Protocol):
    """Carries out each item in a task of its own: Spark (`jobs.tasks.tasks`), or a test."""

    def __call__(
        self, items: Sequence[Any], work: Callable[[Any], Iterable[pa.RecordBatch]], schema: pa.Schema
    ) -> pa.Table: ...


class BrokerList:
    """The brokers of a warehouse, looked up at intervals."""

    def __init__(self, warehouse: Warehouse, conf: Config) -> None:
        self._warehouse = warehouse
        self._conf = conf
        self._known: list[str] = []
        self._looked_ms: int | None = None

    def at(self, now_ms: int) -> list[str]:
        """Return the brokers that are known at `now_ms`."""
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _BROKERS_EVERY_MS:
            self._looked_ms = now_ms
            self._known = brokers_of(self._warehouse, self._conf)
        return self._known


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

    def note(self, reports: pa.Table, now_ms: int) -> None:
        """Record what the tasks of a run reported; a shard that was held counts as not looked at."""
        columns = [reports.column(name).to_pylist() for name in ("broker", "queue", "held", "log_end", "next_ms")]
        before, self._held_ms = self._held_ms, {}
        for broker, queue, held, log_end, next_ms in zip(*columns, strict=True):
            if held:
                self._held_ms[broker, queue] = before.get((broker, queue), now_ms)
                self._quiet.pop((broker, queue), None)
            else:
                self._since_ms[broker, queue] = now_ms
                self._quiet[broker, queue] = (log_end, next_ms)

    def held_ms(self, now_ms: int) -> int:
        """Return the longest time that a shard of the last run has been held; 0 if none is."""
        return max((now_ms - since_ms for since_ms in self._held_ms.values()), default=0)


def end_of(warehouse: Warehouse, ref: PartitionRef) -> int | None:
    """Return the end offset of a log; None if it cannot be read, which a task then reports."""
    try:
        log = warehouse.open_partition(ref)
        log.refresh()
    except (DeltaMQError, OSError):
        return None
    return log.end_offset


def summed(reports: pa.Table, **named: str) -> Facts:
    """Return the facts of a run; `named` maps each name to a column of the tasks' reports."""
    facts: dict[str, int | str] = {}
    for name, column in named.items():
        together = pc.max if name in _GREATEST else pc.sum
        facts[name] = together(reports.column(column)).as_py() or 0
    troubles = sorted({trouble for troubles in reports.column("troubles").to_pylist() for trouble in troubles})
    if troubles:
        facts["trouble"] = "; ".join(troubles[:_TROUBLES_SHOWN])
    return facts
