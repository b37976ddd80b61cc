"""A service or a driver whose clocks do what a file says, at once and all alike (fault F8).

    python -m tests.history.runs.clock FILE serve --warehouse ...

The file is mapped into every process: an offset of the wall clock, a rate of all clocks, and since when. A jump or a
change of rate is there for all of them with the next look at a clock, as it is on one machine. Only `time` is changed,
before anything else is imported; timers of the event loop go on as they were.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Final

__all__ = ["program", "set_clock"]

#: The wall clock's offset, the rate, the true monotonic time since which it holds, and how far all were ahead then;
#: in nanoseconds, with the number of the change before and after it.
_STATE: Final = struct.Struct("<qqdqqq")


def program(path: Path) -> tuple[str, ...]:
    """What to start instead of the command line."""
    return (sys.executable, "-m", "tests.history.runs.clock", str(path))


def set_clock(path: Path, *, offset_s: float = 0.0, rate: float = 1.0) -> None:
    """What the clocks do from now on: the offset is of the wall clock, the rate is of all."""
    if not path.exists():
        path.write_bytes(_STATE.pack(0, 0, 1.0, time.monotonic_ns(), 0, 0))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), _STATE.size) as shared:
        number, *_ = _STATE.unpack(shared)
        since = time.monotonic_ns()
        changed = (number + 1, int(offset_s * 1e9), rate, since, _ahead(_STATE.unpack(shared), since), number + 1)
        shared[:] = _STATE.pack(*changed)


def _ahead(state: tuple[int, int, float, int, int, int], true_ns: int) -> int:
    _, _, rate, since, before, _ = state
    return before + int((true_ns - since) * (rate - 1))


class _Clocks:
    """The wall clock jumps and drifts; the others, which count lengths, only drift, and never go back."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._shared = mmap.mmap(file.fileno(), _STATE.size, access=mmap.ACCESS_READ)
        self._wall, self._mono, self._gettime = time.time_ns, time.monotonic_ns, time.clock_gettime_ns

    def _look(self) -> tuple[int, int]:
        """The wall clock's offset, and how far all clocks are ahead; read again when it changed meanwhile."""
        while True:
            state = _STATE.unpack(self._shared)
            if state[0] == state[-1]:
                return state[1], _ahead(state, self._mono())

    def install(self) -> None:
        """From now on, this is what time it is."""
        time.time_ns = lambda: self._wall() + sum(self._look())
        time.time = lambda: time.time_ns() / 1e9
        time.monotonic_ns = lambda: self._mono() + self._look()[1]
        time.monotonic = lambda: time.monotonic_ns() / 1e9
        time.clock_gettime_ns = lambda clock: self._gettime(clock) + self._look()[1]


if __name__ == "__main__":
    _Clocks(Path(sys.argv.pop(1))).install()
    from deltamq.mq.client.cli.root import main

    main()
