"""Whose turn it is to change a partition's log: one thread's, or one coroutine's while its file calls are made.

A thread may take its turn again within it. A coroutine of an event loop must not wait for a thread, and the loop's
thread does other work while the coroutine waits: so it asks for the turn, and holds it apart from its thread.

Turns are given in the order in which threads began to wait. A plain lock goes to whoever comes first after a release:
on a busy machine that is often the next commit, and a fence or a roll-up waited for many.
"""

from __future__ import annotations

import threading

from deltamq.mq.errors import Unavailable


class Turn:
    """A lock that threads wait for, and coroutines ask for."""

    __slots__ = ("_depth", "_is_taken", "_lock", "_thread", "_waiting")

    def __init__(self) -> None:
        #: Held for a moment only.
        self._lock = threading.Lock()
        self._is_taken = False
        #: What each waiting thread waits for, the first one first: a lock that is released when the turn is its own.
        self._waiting: list[threading.Lock] = []
        #: The thread whose turn it is, or that runs the coroutine whose turn it is; None if the turn is free.
        self._thread: int | None = None
        #: How often the thread has taken its turn; 0 if it is a coroutine's.
        self._depth = 0

    def __enter__(self) -> None:
        this = threading.get_ident()
        if self._thread != this:
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
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            own = threading.Lock()
            own.acquire()
            self._waiting.append(own)
        try:
            own.acquire()
        except BaseException:  # a signal in the main thread
            with self._lock:
                is_given = own not in self._waiting
                if not is_given:
                    self._waiting.remove(own)
            if is_given:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.pop(0).release()
            else:
                self._is_taken = False

    def __exit__(self, *_: object) -> None:
        assert self._depth > 0 and self._thread == threading.get_ident(), "another thread holds the turn"
        self._depth -= 1
        if not self._depth:
            self._thread = None
            self._pass_on()

    def ask(self) -> bool:
        """Take the turn for a coroutine, which gives it back; return False if it is taken, or if a thread waits for it.

        Coroutines that follow each other at once would keep threads waiting for ever.
        """
        with self._lock:
            if self._is_taken:
                return False
            self._is_taken = True
        self._thread = threading.get_ident()
        return True

    @property
    def is_wanted(self) -> bool:
        """Whether a thread waits for the turn."""
        return bool(self._waiting)

    def give_back(self) -> None:
        """End a coroutine's turn."""
        assert self._thread is not None and not self._depth, "a coroutine holds the turn"
        self._thread = None
        self._pass_on()
