"""The threads that run blocking work for the event loop.

Workers take their work in the order of its arrival. A `ThreadPoolExecutor` spends about 20 microseconds a task on a
future. A commit answers through its own callback and needs none, so a queue is enough for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

__all__ = ["Threads", "Workers"]

log = logging.getLogger("deltamq.api")

Task = Callable[[], None]


class Workers:
    """`count` threads; a task that raises is logged and does not end its thread."""

    def __init__(self, count: int, *, name: str) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self.submit: Callable[[Task], None] = self._tasks.put
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def wanted(self) -> bool:
        """Whether a task waits for a free thread."""
        return not self._tasks.empty()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                log.exception("event=task_failed thread=%s", threading.current_thread().name)

    def stop(self) -> None:
        """Run all submitted tasks, then end the threads."""
        for _ in self._threads:
            self._tasks.put(None)
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
