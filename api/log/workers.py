"""The threads that run blocking work for the event loop.

Work is begun in the order of its arrival. A `ThreadPoolExecutor` spends about 20 microseconds a task on a
future. A commit answers through its own callback and needs none, so a queue is enough for it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

__all__ = ["Threads", "Workers"]

log = logging.getLogger("deltamq.api")

Task = Callable[[], None]


class Workers:
    """`count` threads; a task that raises is logged and does not end its thread.

    The thread that was busy last gets the next task: what a commit needs is in its core's caches, and with little to do
    the same thread does it all.
    """

    def __init__(self, count: int, *, name: str) -> None:
        self._lock = threading.Lock()
        #: The queues of idle threads, the one that was busy last at the end.
        self._idle: list[SimpleQueue[Task | None]] = []
        #: Tasks for which no thread was idle, in the order of their arrival.
        self._waiting: deque[Task] = deque()
        self._is_stopping = False
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> None:
        """Run a task in the first thread that is idle."""
        with self._lock:
            if not self._idle:
                self._waiting.append(task)
                return
            idle = self._idle.pop()
        idle.put(task)

    @property
    def wanted(self) -> bool:
        """Whether a task waits for a free thread."""
        return bool(self._waiting)

    @property
    def idle(self) -> int:
        """The number of threads that wait for a task."""
        return len(self._idle)

    def _run(self) -> None:
        own: SimpleQueue[Task | None] = SimpleQueue()
        while (task := self._next(own)) is not None:
            try:
                task()
            except Exception:
                log.exception("event=task_failed thread=%s", threading.current_thread().name)

    def _next(self, own: SimpleQueue[Task | None]) -> Task | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._is_stopping:
                return None
            self._idle.append(own)
        return own.get()

    def stop(self) -> None:
        """Run all submitted tasks, then end the threads."""
        with self._lock:
            self._is_stopping = True
            idle, self._idle = self._idle, []
        for one in idle:
            one.put(None)
        for thread in self._threads:
            thread.join()


class Threads:
    """All threads of a service but those of its metadata."""

    def __init__(self, *, commits: int, work: int) -> None:
        self.commits = Workers(commits, name="mq-commit")
        self.upkeep = Workers(1, name="mq-upkeep")
        self.work = ThreadPoolExecutor(work, thread_name_prefix="mq-work")

    def stop(self) -> None:
        """Finish everything that was submitted, commits before upkeep; blocking."""
        self.commits.stop()
        self.upkeep.stop()
        self.work.shutdown()
