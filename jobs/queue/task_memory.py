"""What a process that carries out tasks of `revive` and `delay` has open: a cache, bounded, and nothing else.

Spark uses its Python workers again for later tasks. A worker that is new, because one was killed or the application
has just started, reads the same from the tables.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Final

from jobs.queue.batch_bounds import BOUNDS, BatchBounds
from jobs.queue.due_shard import DueShard
from jobs.tasks import warehouse_of
from mq.limits import MIB
from tables.config import Config
from tables.config_sections import WarehouseSettings
from tables.delta import RowCache
from tables.log import PartitionLog, Warehouse
from tables.queue import DELAY, DelayMarks, DeliverTimes, MetaLog, OpenCheckpoints, system_ref
from tables.settings import LogSettings

__all__ = ["Place", "TaskMemory", "memory_of"]

#: What is remembered of data files and of logs between two tasks of a process.
_CACHE_BYTES_MAX: Final = 96 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a task works: of the settings, what it needs."""

    uri: str
    cluster: str
    log: LogSettings

    @classmethod
    def of(cls, conf: Config) -> Place:
        return cls(uri=conf.warehouse.uri, cluster=conf.warehouse.cluster, log=conf.log)

    def warehouse(self) -> Warehouse:
        """The warehouse as this process has it open."""
        settings = WarehouseSettings(uri=self.uri, cluster=self.cluster)
        return warehouse_of(replace(Config(), warehouse=settings, log=self.log))


class TaskMemory:
    """One warehouse. For one thread."""

    def __init__(self, warehouse: Warehouse, bounds: BatchBounds = BOUNDS) -> None:
        self.warehouse = warehouse
        self.bounds = bounds
        self.meta = MetaLog(warehouse)
        self.cache = RowCache(_CACHE_BYTES_MAX)
        self.shard = DueShard(warehouse, OpenCheckpoints(warehouse.store, self.cache), self.cache)
        self.deliver_times = DeliverTimes(self.cache)
        self._marks: dict[tuple[str, str], DelayMarks] = {}

    def marks(self, cluster: str, broker: str) -> DelayMarks:
        """The marks of a delay log, folded as far as this process has read them."""
        found = self._marks.get((cluster, broker))
        if found is None:
            found = self._marks[cluster, broker] = DelayMarks(self.warehouse, cluster, broker)
        return found

    def delay_log(self, cluster: str, broker: str) -> PartitionLog | None:
        """The delay log of a broker as it is now; None when nothing was delayed there yet."""
        ref = system_ref(DELAY, cluster, broker)
        if not self.warehouse.exists(ref):
            return None
        log = self.warehouse.open_partition(ref)
        log.refresh()
        return log


_lock: Final = threading.Lock()
_memories: Final[dict[Place, TaskMemory]] = {}


def memory_of(place: Place) -> TaskMemory:
    """The memory of this process; that of one place at a time."""
    with _lock:
        found = _memories.get(place)
        if found is None:
            _memories.clear()
            found = _memories[place] = TaskMemory(place.warehouse())
        return found
