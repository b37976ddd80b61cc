"""Whose turn it is to change a partition's log: one thread's, or one coroutine's while its file calls are made.

A thread may take its turn again within it. A coroutine of an event loop must not wait for a thread, and the loop's
thread does other work while the coroutine waits: so it asks for the turn, and holds it apart from its thread.
"""

from __future__ import annotations

import threading

from deltamq.mq.errors import Unavailable


class Turn:
    """A lock that threads wait for, and coroutines ask for."""

    __slots__ = ("_counting", "_depth", "_lock", "_thread", "_threads_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._threads_waiting = 0
        #: The thread whose turn it is, or that runs the coroutine whose turn it is; None if the turn is free.
        self._thread: int | None = None
        #: How often the thread has taken its turn; 0 if it is a coroutine's.
        self._depth = 0

    def __enter__(self) -> None:
        this = threading.get_ident()
        if self._thread != this:
            if not self._lock.acquire(blocking=False):
                self._wait()
            self._thread = this
        elif not self._depth:
            # The coroutine would wait for its thread, and its thread for the coroutine.
            raise Unavailable("the log is being appended to; try again", code="contention")
        self._depth += 1

    def wait(self, thread: int) -> None:
        """Take the turn, as `ask` does, for a coroutine that a thread of this number runs; blocking."""
        self._wait()
        self._thread = thread

    def _wait(self) -> None:
        with self._counting:
            self._threads_waiting += 1
        self._lock.acquire()
        with self._counting:
            self._threads_waiting -= 1

    def __exit__(self, *_: object) -> None:
        assert self._depth > 0 and self._thread == threading.get_ident(), "another thread holds the turn"
        self._depth -= 1
        if not self._depth:
            self._thread = None
            self._lock.release()

    def ask(self) -> bool:
        """Take the turn for a coroutine, which gives it back; return False if it is taken, or if a thread waits for it.

        Coroutines that follow each other at once would keep threads waiting for ever.
        """
        is_free = not self.is_wanted and self._lock.acquire(blocking=False)
        if is_free:
            self._thread = threading.get_ident()
        return is_free

    @property
    def is_wanted(self) -> bool:
        """Whether a thread waits for the turn."""
        return self._threads_waiting > 0

    def give_back(self) -> None:
        """End a coroutine's turn."""
        assert self._thread is not None and not self._depth, "a coroutine holds the turn"
        self._thread = None
        self._lock.release()
