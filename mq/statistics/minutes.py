"""The minutes that a process counts, and which of them are to be stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from deltamq.mq.statistics.consumed import MINUTE_MS, Consumed, MinuteKey

#: Minutes that a process keeps in memory, the running one included.
KEPT_MINUTES: Final = 16
#: Bound on what is kept of all minutes: one for each group, topic and broker.
_ROWS_MAX: Final = 20_000


class Minutes:
    """What this process counted in the last `KEPT_MINUTES` minutes."""

    def __init__(self) -> None:
        self._rows: dict[MinuteKey, Consumed] = {}
        #: What has changed since it was stored.
        self._unsaved: set[MinuteKey] = set()

    def add(self, key: MinuteKey, consumed: Consumed) -> None:
        """Add what was counted in a minute."""
        self._unsaved.add(key)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Consumed()
        row.add(consumed)

    def take_unsaved(self, now_ms: int, *, broker: str | None = None, whole: bool = False) -> dict[MinuteKey, Consumed]:
        """Return copies of the rows to be stored: those of minutes that are over, or all with `whole`."""
        taken = {
            key: msgspec.structs.replace(self._rows[key])
            for key in self._unsaved
            if (whole or key.minute_ms + MINUTE_MS <= now_ms or key.minute_ms > now_ms) and broker in (None, key.broker)
        }
        self._unsaved -= taken.keys()
        return taken

    def not_saved(self, keys: Collection[MinuteKey]) -> None:
        """Note that these rows could not be stored."""
        self._unsaved |= self._rows.keys() & keys

    def since(self, first_ms: int, group: str) -> dict[str, Consumed]:
        """Return by topic what the group did in minutes from `first_ms` on."""
        found: dict[str, Consumed] = {}
        for key, row in self._rows.items():
            if key.group == group and key.minute_ms >= first_ms:
                found.setdefault(key.topic, Consumed()).add(row)
        return found

    def forget_old(self, now_ms: int) -> None:
        """Forget minutes that are older than those kept; of too many rows, the oldest minutes."""
        oldest_ms = now_ms - now_ms % MINUTE_MS - (KEPT_MINUTES - 1) * MINUTE_MS
        gone = [key for key in self._rows if key.minute_ms < oldest_ms]
        if len(self._rows) - len(gone) > _ROWS_MAX:
            gone = sorted(self._rows)[: len(self._rows) - _ROWS_MAX]
        for key in gone:
            if key not in self._unsaved:
                del self._rows[key]

    def forget_group(self, group: str) -> None:
        """Forget a group that was deleted."""
        for key in [key for key in self._rows if key.group == group]:
            del self._rows[key]
            self._unsaved.discard(key)
