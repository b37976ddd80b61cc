"""Logs that may not exist yet, for one reader that asks for them again and again.

On a disk each look is cheap. On an object store it is a list, which costs as much as a put: there a log that does not
exist is looked for seldomer and seldomer, down to twice a minute.
"""

from __future__ import annotations

from typing import Final

from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef

_FIRST_WAIT_MS: Final = 1_000
_LONGEST_WAIT_MS: Final = 30_000


class Appearing:
    """The logs that one reader asks for. For one thread, blocking."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._is_far = warehouse.is_far
        self._there: set[PartitionRef] = set()
        #: When each of the others is looked for again, by the boot clock, and how long that was after the last look.
        self._absent: dict[PartitionRef, tuple[int, int]] = {}

    def is_there(self, ref: PartitionRef) -> bool:
        """Whether the log exists, as far as this reader has looked; the first look is made at once."""
        if ref in self._there:
            return True
        now_ms = self._warehouse.clock.boot_ms()
        again_ms, waited_ms = self._absent.get(ref, (now_ms, _FIRST_WAIT_MS // 2))
        if now_ms < again_ms:
            return False
        if self._warehouse.exists(ref):
            self._absent.pop(ref, None)
            self._there.add(ref)
            return True
        if self._is_far:
            wait_ms = min(2 * waited_ms, _LONGEST_WAIT_MS)
            self._absent[ref] = now_ms + wait_ms, wait_ms
        return False
