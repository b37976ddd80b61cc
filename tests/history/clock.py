"""A service whose clocks do what a file says, from the next look on (RELIABILITY F8).

    python -m tests.history.clock FILE serve --warehouse ...

The file holds an offset in seconds and a rate: "3600 1" is an hour ahead, "0 2" runs twice as fast, "0 0" stands still.
Only `time` is changed, before anything else is imported; timers of the event loop go on as they were.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

__all__ = ["program", "set_clock"]

_LOOK_S: Final = 0.02


def program(path: Path) -> tuple[str, ...]:
    """What to start instead of the command line."""
    return (sys.executable, "-m", "tests.history.clock", str(path))


def set_clock(path: Path, *, offset_s: float = 0.0, rate: float = 1.0) -> None:
    """What the clocks do from now on; offset is of the wall clock, rate is of both."""
    fresh = path.with_suffix(".new")
    fresh.write_text(f"{offset_s} {rate}", encoding="ascii")
    os.replace(fresh, path)


class _Clocks:
    """The wall clock jumps and drifts; the others, which count lengths, only drift, and never go back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wall, self._mono, self._gettime = time.time_ns, time.monotonic_ns, time.clock_gettime_ns
        self._lock = threading.Lock()
        self._said = ""
        self._offset_ns = 0
        self._rate = 1.0
        #: By how much the drift has put them ahead, and since when this rate holds.
        self._ahead_ns = 0
        self._since_ns = self._mono()
        self._look()

    def _look(self) -> None:
        said = self._path.read_text(encoding="ascii")
        if said == self._said:
            return
        offset_s, rate = map(float, said.split())
        with self._lock:
            self._ahead_ns = self._ahead()
            self._since_ns = self._mono()
            self._said, self._offset_ns, self._rate = said, int(offset_s * 1e9), rate

    def _ahead(self) -> int:
        return self._ahead_ns + int((self._mono() - self._since_ns) * (self._rate - 1))

    def follow(self) -> None:
        """Look at the file again and again."""
        pause = threading.Event()
        while not pause.wait(_LOOK_S):
            self._look()

    def install(self) -> None:
        """From now on, this is what time it is."""

        def ahead() -> int:
            with self._lock:
                return self._ahead()

        time.time_ns = lambda: self._wall() + self._offset_ns + ahead()
        time.time = lambda: time.time_ns() / 1e9
        time.monotonic_ns = lambda: self._mono() + ahead()
        time.monotonic = lambda: time.monotonic_ns() / 1e9
        time.clock_gettime_ns = lambda clock: self._gettime(clock) + ahead()
        threading.Thread(target=self.follow, name="clocks", daemon=True).start()


if __name__ == "__main__":
    _Clocks(Path(sys.argv.pop(1))).install()
    from mq.client.cli import main

    main()
