"""Clocks that tests move."""

from __future__ import annotations

import threading

from deltamq.tables.clock import SystemClock

__all__ = ["AheadClock", "SetClock"]


class SetClock:
    """Both clocks of `tables.clock.Clock`, moved by hand; `wall_us` may also be set back."""

    def __init__(self, wall_us: int = 1_700_000_000_000_000, boot_ms: int = 1_000_000) -> None:
        self._wall_us = wall_us
        self._boot_ms = boot_ms
        self._lock = threading.Lock()

    def wall_us(self) -> int:
        return self._wall_us

    def boot_ms(self) -> int:
        return self._boot_ms

    def advance_ms(self, ms: int) -> None:
        """Let time pass on both clocks."""
        with self._lock:
            self._boot_ms += ms
            self._wall_us += ms * 1_000

    def set_wall_us(self, wall_us: int) -> None:
        """Set the wall clock, as if the machine's time were changed."""
        self._wall_us = wall_us


class AheadClock(SystemClock):
    """The machine's clocks, with the wall clock `ahead_ms` ahead."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def wall_us(self) -> int:
        return super().wall_us() + self.ahead_ms * 1_000
