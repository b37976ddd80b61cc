"""What a process that runs tasks of `revive` and `delay` keeps: open logs and a bounded cache.

Spark reuses its Python workers for later tasks. A new worker, started because one was killed or the application has
just begun, reads the same from the tables.
"""

from __future__ import annotations

import threading
from typing import Final

import msgspec
from msgspec.structs import replace

from deltamq.jobs.queue.batch_bounds import BOUNDS, BatchBounds
from deltamq.jobs.queue.due_in_tasks import DueShard
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.mq.limits import MIB
from deltamq.tables.config import Config
from deltamq.tables.config_sections import WarehouseSettings
from deltamq.tables.delta.reader import RowCache
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.delay_marks import DelayMarks
from deltamq.tables.queue.delay_times import DeliverTimes
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.queue.open_checkpoints import OpenCheckpoints
from deltamq.tables.queue.refs import DELAY, system_ref
from deltamq.tables.settings import LogSettings

#: Bytes that a process caches of data files and logs between tasks.
_CACHE_BYTES_MAX: Final = 96 * MIB


class WarehouseAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a task needs to find and open the warehouse."""

    uri: str
    cluster: str
    log: LogSettings

    @classmethod
    def of(cls, conf: Config) -> WarehouseAddress:
        return cls(uri=conf.warehouse.uri, cluster=conf.warehouse.cluster, log=conf.log)

    def warehouse(self) -> Warehouse:
        """Return the warehouse as this process has it open."""
        settings = WarehouseSettings(uri=self.uri, cluster=self.cluster)
        return warehouse_of(replace(Config(), warehouse=settings, log=self.log))


class TaskMemory:
    """The open logs and the cache for one warehouse. For one thread."""

    def __init__(self, warehouse: Warehouse, bounds: BatchBounds = BOUNDS) -> None:
        self.warehouse = warehouse
        self.bounds = bounds
        self.meta = MetaLog(warehouse)
        self.cache = RowCache(_CACHE_BYTES_MAX)
        self.shard = DueShard(warehouse, OpenCheckpoints(warehouse.store, self.cache), self.cache)
        self.deliver_times = DeliverTimes(self.cache)
        self._marks: dict[tuple[str, str], DelayMarks] = {}

    def marks(self, cluster: str, broker: str) -> DelayMarks:
        """Return the marks of a delay log, folded as far as this process has read them."""
        marks_read = self._marks.get((cluster, broker))
        if marks_read is None:
            marks_read = self._marks[cluster, broker] = DelayMarks(self.warehouse, cluster, broker)
        return marks_read

    def delay_log(self, cluster: str, broker: str) -> PartitionLog | None:
        """Return the delay log of a broker, refreshed; None if nothing has been delayed there yet."""
        ref = system_ref(DELAY, cluster, broker)
        if not self.warehouse.exists(ref):
            return None
        log = self.warehouse.open_partition(ref)
        log.refresh()
        return log


_lock: Final = threading.Lock()
_memories: Final[dict[WarehouseAddress, TaskMemory]] = {}


def memory_of(address: WarehouseAddress) -> TaskMemory:
    """Return this process's memory, which is of one warehouse at a time."""
    with _lock:
        memory = _memories.get(address)
        if memory is None:
            _memories.clear()
            memory = _memories[address] = TaskMemory(address.warehouse())
        return memory
