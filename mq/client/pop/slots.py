"""How much more a consumer may take: one slot for each handler that is free, and for what may wait behind the busy."""

from __future__ import annotations

import threading

__all__ = ["Slots"]


class Slots:
    """A number of slots, taken before a pop and given back when what it brought is handled."""

    def __init__(self, count: int) -> None:
        assert count >= 1
        self._count = count
        self._free = count
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._closed = False

    def grow(self, count: int) -> None:
        """Have so many more slots; with a negative number so many fewer, once they are free."""
        with self._lock:
            self._count += count
            self._free += count
            self._freed.notify_all()

    def take(self, most: int) -> int:
        """Take what is free, at most `most`; waits for the first one. 0 once closed."""
        with self._lock:
            self._freed.wait_for(lambda: self._free > 0 or self._closed)
            if self._closed:
                return 0
            taken = min(self._free, most)
            self._free -= taken
            return taken

    def give_back(self, count: int) -> None:
        """Return slots that are not needed any more."""
        if count:
            with self._lock:
                self._free += count
                assert self._free <= self._count, "more came back than was taken"
                self._freed.notify_all()

    def wait_all(self, timeout_s: float) -> bool:
        """Wait until all slots are free; False when the time was not enough."""
        with self._lock:
            return self._freed.wait_for(lambda: self._free == self._count, max(0.0, timeout_s))

    def close(self) -> None:
        """Let everyone go who waits for a slot."""
        with self._lock:
            self._closed = True
            self._freed.notify_all()
