"""Refusals, counted by minute, principal, call and reason, in bounded memory (SPEC SEC-41)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from deltamq.mq.audit_limits import REFUSAL_MINUTES_MAX, REFUSALS_COUNTED_MAX

_MINUTE_MS: Final = 60_000
#: In place of principal and call where too many are counted apart; neither can have this name.
OTHER: Final = "(other)"


class RefusalKey(NamedTuple):
    """What is counted together."""

    minute_ms: int
    principal: str
    call: str
    status: int
    code: str


@dataclass(slots=True)
class RefusalTally:
    """How many there were, and from where the last came."""

    count: int = 0
    address: str = ""


class Refusals:
    """What a process refused and has not stored."""

    def __init__(self) -> None:
        self._rows: dict[RefusalKey, RefusalTally] = {}

    def add(self, now_ms: int, principal: str, call: str, status: int, code: str, address: str) -> None:
        """Count one refusal."""
        self._add(RefusalKey(now_ms - now_ms % _MINUTE_MS, principal, call, status, code), RefusalTally(1, address))

    def _add(self, key: RefusalKey, more: RefusalTally) -> None:
        row = self._rows.get(key)
        if row is None and len(self._rows) >= REFUSALS_COUNTED_MAX:
            # The caller chooses neither statuses nor codes: of these rows there are few in a minute.
            key = key._replace(principal=OTHER, call=OTHER)
            row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = RefusalTally()
        row.count += more.count
        row.address = more.address

    def take(self, now_ms: int, *, whole: bool = False) -> Mapping[RefusalKey, RefusalTally]:
        """Return and forget what is to be stored: the minutes that are over, or all with `whole`.

        A minute that the clock puts into the future is over, too: the clock was set back since.
        """
        running = now_ms - now_ms % _MINUTE_MS
        taken = {key: row for key, row in self._rows.items() if whole or key.minute_ms != running}
        for key in taken:
            del self._rows[key]
        return taken

    def give_back(self, taken: Mapping[RefusalKey, RefusalTally]) -> int:
        """Count again what could not be stored; return how many refusals are dropped because they are too old."""
        for key, row in taken.items():
            self._add(key, row)
        minutes = sorted({key.minute_ms for key in self._rows})
        gone = set(minutes[:-REFUSAL_MINUTES_MAX])
        dropped = [key for key in self._rows if key.minute_ms in gone]
        return sum(self._rows.pop(key).count for key in dropped)
