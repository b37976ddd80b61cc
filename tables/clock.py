"""Time as a port: a wall clock for what people read, a boot clock for what decides."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


class Clock(Protocol):
    """The two clocks of a process."""

    def wall_us(self) -> int:
        """UTC microseconds since 1970; may jump. Only ever shown or stored, never compared for safety."""

    def boot_ms(self) -> int:
        """Milliseconds that only grow, also while the process or the machine sleeps."""


class SystemClock:
    """The machine's clocks."""

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    def boot_ms(self) -> int:
        # CLOCK_MONOTONIC stops while a machine is suspended; a lease or a kept file does not.
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
SYSTEM_CLOCK = SystemClock()
