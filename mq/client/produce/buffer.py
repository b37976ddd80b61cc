"""Bounds the bytes of messages that are not resolved yet, and lets callers wait until all are resolved."""

from __future__ import annotations

import threading
import time

from deltamq.mq.errors import Overloaded


class Buffer:
    """Room for `bytes_max` bytes of unresolved messages."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._messages = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def messages(self) -> int:
        """Number of messages not resolved yet."""
        return self._messages

    @property
    def bytes(self) -> int:
        """Approximate bytes of the messages not resolved yet."""
        return self._bytes

    def fitted(self, size: int) -> int:
        """Return the room for `size` bytes: an entry larger than the buffer takes all of it."""
        return min(size, self._bytes_max)

    def take(self, size: int, messages: int, *, deadline: float, wait: bool) -> None:
        """Take room for `size` bytes (see `fitted`), after a wait if `wait`; raises `Overloaded` if there is none."""
        assert size <= self._bytes_max
        with self._lock:
            if self._bytes + size > self._bytes_max:
                self._wait_for(size, deadline if wait else 0.0)
            self._bytes += size
            self._messages += messages

    def _wait_for(self, size: int, deadline: float) -> None:
        self._waiting += 1
        try:
            timeout_s = max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(lambda: self._bytes + size <= self._bytes_max, timeout_s):
                raise Overloaded(
                    f"the producer's buffer of {self._bytes_max:,} bytes is full; nothing was sent", code="buffer_full"
                )
        finally:
            self._waiting -= 1

    def give_back(self, size: int, messages: int) -> None:
        """Return room once messages are resolved."""
        with self._lock:
            self._bytes -= size
            self._messages -= messages
            assert self._bytes >= 0 and self._messages >= 0
            if self._waiting or not self._messages:
                self._changed.notify_all()

    def wait_empty(self, deadline: float) -> bool:
        """Wait until every message is resolved; returns False at the deadline."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._messages, max(0.0, deadline - time.monotonic()))
