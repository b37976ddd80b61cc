"""Threads of clients: a bounded set of daemons that run tasks, and a mark on those that run the user's code.

Threads are started when needed, and ended when idle for a while. Where the mark is set, calls that would wait for the
same thread are refused.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

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
