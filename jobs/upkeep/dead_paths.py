"""Files that tasks let go, until their time has passed: the task that let them go has ended long before.

Services delete dead files of the partitions that they have open (`tables.log.dead_files`). Of others, the application
that ran the task does it, in its later runs; what is left when it ends is swept as a file that no commit names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from tables.log import DeadFiles, Warehouse

__all__ = ["delete_due", "remember"]

_lock: Final = threading.Lock()
_dead: Final[dict[str, DeadFiles]] = {}


def remember(warehouse: Warehouse, keys: Iterable[str]) -> None:
    """Delete these files of the warehouse when their time has passed."""
    _of(warehouse).add(keys)


def delete_due(warehouse: Warehouse) -> int:
    """Delete those whose time has passed; return how many."""
    dead = _of(warehouse)
    due = dead.due(warehouse.settings.file_keep_ms)
    for key in due:
        warehouse.store.delete(key)
        dead.forget(key)
    return len(due)


def _of(warehouse: Warehouse) -> DeadFiles:
    with _lock:
        return _dead.setdefault(warehouse.uri, DeadFiles(warehouse.clock))
