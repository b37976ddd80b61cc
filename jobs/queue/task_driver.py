"""The driver's side of `revive` and `delay` as Spark jobs: which shards there are, and what tasks told of them.

What the driver remembers from run to run is one time for each shard, however much is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from jobs.queue.brokers import brokers_of
from jobs.run import Facts
from mq.errors import DeltaMQError
from tables.config import Config
from tables.log import Warehouse
from tables.paths import PartitionRef

__all__ = ["BrokerList", "Looked", "Tasks", "end_of", "summed"]

#: How often brokers are looked for that are new, in milliseconds.
_BROKERS_EVERY_MS: Final = 5_000
_TROUBLES_SHOWN: Final = 3
#: Facts of a run that are the greatest of its shards; all others are added up.
_GREATEST: Final = ("late_ms", "behind_ms")

#: Names a shard within a job.
Shard = tuple[str, int]


class Tasks(Protocol):
    """What does the work of each item, in a task of its own: Spark (`jobs.tasks.tasks`), or a test."""

    def __call__(
        self, items: Sequence[Any], work: Callable[[Any], Iterable[pa.RecordBatch]], schema: pa.Schema
    ) -> pa.Table: ...


class BrokerList:
    """The brokers of a warehouse, looked for now and then."""

    def __init__(self, warehouse: Warehouse, conf: Config) -> None:
        self._warehouse = warehouse
        self._conf = conf
        self._found: list[str] = []
        self._looked_ms: int | None = None

    def at(self, now_ms: int) -> list[str]:
        """Those that are known now."""
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _BROKERS_EVERY_MS:
            self._looked_ms = now_ms
            self._found = brokers_of(self._warehouse, self._conf)
        return self._found


class Looked:
    """When each shard was last looked at by a task that told of it: what had its turn until then need not be tried.

    A shard is quiet when nothing was due there, nothing has been appended to its log since, and the time has not come
    at which something falls due: then it needs no task. So a warehouse at rest costs the driver a look at each log.
    """

    def __init__(self) -> None:
        self._since_ms: dict[Shard, int] = {}
        self._held_ms: dict[Shard, int] = {}
        #: Where its log ended at the last look, and when to look again; None when only an append can bring work.
        self._quiet: dict[Shard, tuple[int, int | None]] = {}

    def is_quiet(self, shard: Shard, log_end: Callable[[], int | None], now_ms: int) -> bool:
        """Whether a shard needs no task at `now_ms`; `log_end` tells where its log ends now, None when it cannot."""
        end, next_ms = self._quiet.get(shard, (None, None))
        if end is None or (next_ms is not None and now_ms >= next_ms):
            return False
        return log_end() == end

    def since_ms(self, shard: Shard) -> int:
        """0 for never."""
        return self._since_ms.get(shard, 0)

    def note(self, told: pa.Table, now_ms: int) -> None:
        """Take note of what the tasks of a run told; a shard that was held counts as not looked at."""
        columns = [told.column(name).to_pylist() for name in ("broker", "queue", "held", "log_end", "next_ms")]
        before, self._held_ms = self._held_ms, {}
        for broker, queue, held, log_end, next_ms in zip(*columns, strict=True):
            if held:
                self._held_ms[broker, queue] = before.get((broker, queue), now_ms)
                self._quiet.pop((broker, queue), None)
            else:
                self._since_ms[broker, queue] = now_ms
                self._quiet[broker, queue] = (log_end, next_ms)

    def held_ms(self, now_ms: int) -> int:
        """For how long the shard has been held that is longest, of those of the last run; 0 when none is."""
        return max((now_ms - since_ms for since_ms in self._held_ms.values()), default=0)


def end_of(warehouse: Warehouse, ref: PartitionRef) -> int | None:
    """Where a log ends now; None when that cannot be told, which a task then says better."""
    try:
        log = warehouse.open_partition(ref)
        log.refresh()
    except (DeltaMQError, OSError):
        return None
    return log.end_offset


def summed(told: pa.Table, **named: str) -> Facts:
    """The facts of a run: for each name, a column of what its tasks told."""
    facts: dict[str, int | str] = {}
    for name, column in named.items():
        together = pc.max if name in _GREATEST else pc.sum
        facts[name] = together(told.column(column)).as_py() or 0
    troubles = sorted({one for each in told.column("troubles").to_pylist() for one in each})
    if troubles:
        facts["trouble"] = "; ".join(troubles[:_TROUBLES_SHOWN])
    return facts
