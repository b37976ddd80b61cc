"""Threads of clients: bounded daemons that run tasks, a mark on user code, and what a fork leaves (SPEC SEND-8).

Threads are started when needed, and ended when idle for a while. Where the mark is set, calls that would wait for the
same thread are refused.

The child of a fork has copies of clients, without their threads. Connections would be shared with the parent, locks may
be held by threads of the parent, and a copied producer would go on with numbers that the parent uses, too. So clients
that only send requests are renewed in the child (`in_child`), and consumers refuse to work there (`Birthplace`).
`multiprocessing` with `fork`, gunicorn's --preload and Celery make such children; a new program inherits none of this.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from deltamq.mq.errors import Refused

log = logging.getLogger("deltamq.client")


_IDLE_S: Final = 30.0


class Workers:
    """Up to `threads_max` threads. Unlike with `ThreadPoolExecutor`, the interpreter's exit never waits for a task."""

    def __init__(self, threads_max: int, name: str, *, idle_s: float = _IDLE_S) -> None:
        assert threads_max >= 1
        self._threads_max = threads_max
        self._name = name
        self._idle_s = idle_s
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        #: Number of tasks queued or running; a `submit` that takes it above the number of threads starts one.
        self._pending = 0

    def submit(self, task: Callable[[], None]) -> None:
        """Run `task` soon, in one of the threads."""
        with self._lock:
            self._pending += 1
            start = self._threads < min(self._pending, self._threads_max)
            self._threads += start
        self._tasks.put(task)
        if start:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=self._idle_s)
            except queue.Empty:
                if self._may_end():
                    return
                continue
            if task is None:
                return
            try:
                task()
            except Exception:
                # A task resolves its own futures; an exception that still escapes must not end the thread.
                log.exception("event=client_task_failed")
            with self._lock:
                self._pending -= 1

    def _may_end(self) -> bool:
        """Return whether an idle thread may end; decided under the lock, so that no task is left without a thread."""
        with self._lock:
            if self._pending >= self._threads:
                return False
            self._threads -= 1
            return True

    def close(self) -> None:
        """End the threads as they become idle; tasks already submitted are still run."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._tasks.put(None)


class Inside(threading.local):
    """A thread-local flag: `active` is True within a `with` block of this object."""

    active = False

    def __enter__(self) -> None:
        self.active = True

    def __exit__(self, *_: object) -> None:
        self.active = False


#: How many forks lie between the first process of this program and this one.
_forks = 0
_renewals: Final[list[Callable[[], Callable[[], None] | None]]] = []


class ForkedClient(Refused):
    """The object was made before this process was forked, and is its parent's."""

    code = "forked_client"


def in_child(renew: Callable[[], None]) -> None:
    """Call `renew` in each child of this process, right after the fork.

    A bound method is called as long as its object lives. No thread but the caller's runs then.
    """
    if hasattr(renew, "__self__"):
        _renewals.append(weakref.WeakMethod(renew))
        if len(_renewals) % 1_024 == 0:
            _renewals[:] = [renewal for renewal in _renewals if renewal() is not None]
    else:
        _renewals.append(lambda: renew)


def _forked() -> None:
    global _forks
    _forks += 1
    for renewal in list(_renewals):
        renew = renewal()
        if renew is not None:
            renew()


# Windows has no fork.
_at_fork: Final[Any] = getattr(os, "register_at_fork", None)
if _at_fork is not None:
    _at_fork(after_in_child=_forked)


class Birthplace:
    """The process in which an object was made: it works only there."""

    __slots__ = ("_forks", "_kind", "_pid")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._forks = _forks
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return self._forks == _forks

    def check(self) -> None:
        """Raise `ForkedClient` in a child of that process."""
        if self._forks != _forks:
            raise ForkedClient(
                f"this {self._kind} was made in process {self._pid}, before the fork that made process {os.getpid()}: "
                "it belongs to the parent; make one here",
                field="process",
            )
