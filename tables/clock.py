"""The clocks as an interface: a wall clock for times that people read, a boot clock for decisions."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The two clocks of a process."""

    def wall_us(self) -> int:
        """Return UTC microseconds since 1970; may jump. To be shown or stored, never compared for safety."""

    def boot_ms(self) -> int:
        """Return milliseconds that only grow, also while the process or the machine sleeps."""


class SystemClock:
    """The clocks of the machine."""

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    def boot_ms(self) -> int:
        # CLOCK_MONOTONIC stops while a machine is suspended; leases and keep times go on.
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
SYSTEM_CLOCK = SystemClock()
