"""The times of a process's lease, and how often it looks at the metadata (SPEC LOOK-24).

local disk     every `service.refresh_ms`
object store   the same after a change, then seldomer and seldomer, down to twice in `service.lease_renew_ms`
"""

from __future__ import annotations

from typing import Final, Self

import msgspec

from deltamq.tables.config_sections import ServiceSettings

#: Time for the answer to a question, in milliseconds: two puts to an object store, and reading them.
_ANSWER_MS: Final = 250
#: Longest interval of looks while a question waits, in milliseconds.
_ASKED_LOOK_MS: Final = 250
#: By how much the interval of looks grows while nothing changes.
_SLOWER: Final = 1.5


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of leases, in milliseconds of the process's monotonic clock."""

    lease_ms: int
    #: A process looks at the metadata at least twice in this time.
    renew_ms: int
    margin_ms: int
    #: The shortest interval of these looks.
    look_ms: int
    #: Whether a look is paid for: then it is seldom while nothing changes.
    is_far: bool = False

    @classmethod
    def of(cls, settings: ServiceSettings, *, is_far: bool) -> Self:
        """Return the times of the settings."""
        return cls(
            lease_ms=settings.lease_ms,
            renew_ms=settings.lease_renew_ms,
            margin_ms=settings.lease_margin_ms,
            look_ms=settings.refresh_ms,
            is_far=is_far,
        )

    @property
    def silent_ms(self) -> int:
        """How long another process does not answer before it is doubted."""
        return self.renew_ms * 2 // 3

    @property
    def ended_ms(self) -> int:
        """How long a process that refuses connections has to renew its lease: to look at the metadata, and for that."""
        return self.renew_ms // 2 + _ANSWER_MS

    @property
    def fresh_ms(self) -> int:
        """How long ago a process may have read the metadata that answers from its memory: less than `ended_ms`."""
        return self.renew_ms // 2


class Pace:
    """The interval of looks at the metadata."""

    def __init__(self, times: LeaseTimes) -> None:
        self._most_ms = times.renew_ms // 2
        self._least_ms = min(times.look_ms, self._most_ms)
        self._is_far = times.is_far
        self._grown_ms: float = self._least_ms
        #: Time until the next look, in milliseconds.
        self.wait_ms: float = self._least_ms

    def looked(self, *, is_quiet: bool, is_asked: bool) -> None:
        """Note a look that found nothing new (`is_quiet`), or a question that waits for an answer (`is_asked`)."""
        if self._is_far:
            self._grown_ms = min(self._most_ms, self._grown_ms * _SLOWER) if is_quiet else self._least_ms
        self.wait_ms = min(self._grown_ms, _ASKED_LOOK_MS) if is_asked else self._grown_ms
