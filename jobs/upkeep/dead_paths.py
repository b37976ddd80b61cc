"""Dead files that tasks leave behind: they are deleted after their keep time, when the task has long ended.

Services delete dead files of the partitions that they have open (`tables.log.dead_files`). For other partitions, the
application that ran the task does so in later runs. When it ends, its remaining files are swept as files that no commit
names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from deltamq.tables.log.dead_files import DeadFiles
from deltamq.tables.log.warehouse import Warehouse

_lock: Final = threading.Lock()
_dead: Final[dict[str, DeadFiles]] = {}


def remember(warehouse: Warehouse, keys: Iterable[str]) -> None:
    """Delete these files of the warehouse when their keep time is over, in a later call of `delete_due`."""
    _of(warehouse).add(keys)


def delete_due(warehouse: Warehouse) -> int:
    """Delete the files whose keep time is over; return their number."""
    dead = _of(warehouse)
    due = dead.due(warehouse.settings.file_keep_ms)
    for key in due:
        warehouse.store.delete(key)
        dead.forget(key)
    return len(due)


def _of(warehouse: Warehouse) -> DeadFiles:
    with _lock:
        return _dead.setdefault(warehouse.uri, DeadFiles(warehouse.clock))
