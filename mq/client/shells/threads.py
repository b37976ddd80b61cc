"""The shell of threads: its calls block. Bounded daemon threads run what is in the background.

Threads are started when needed, and ended when idle for a while.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from ssl import SSLContext
from typing import Any, Final, TypeVar

from deltamq.mq.client.shells.blocking_transport import BlockingTransport
from deltamq.mq.client.shells.send_future import SendFuture
from deltamq.mq.client.shells.shell import Outcome, Work, run_now

T = TypeVar("T")

log = logging.getLogger("deltamq.client")


_IDLE_S: Final = 30.0


class ThreadCondition:
    """A condition of threads. Its lock is reentrant: a signal handler may take it, whatever it interrupted."""

    __slots__ = ("_condition", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._condition = threading.Condition(self.lock)

    async def until(self, attempt: Callable[[], T], timeout_s: float | None = None) -> T:
        """Attempt until it succeeds, or the time is over; see `Condition`."""
        with self.lock:
            return self._condition.wait_for(attempt, timeout_s)

    def notify(self) -> None:
        """Let every `until` attempt again."""
        with self.lock:
            self._condition.notify_all()


class ThreadWorkers:
    """Up to `threads_max` threads. Unlike with `ThreadPoolExecutor`, the interpreter's exit never waits for a task."""

    def __init__(self, threads_max: int, name: str, *, idle_s: float = _IDLE_S) -> None:
        assert threads_max >= 1
        self._threads_max = threads_max
        self._name = name
        self._idle_s = idle_s
        self._tasks: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        #: Number of tasks queued or running; a `submit` that takes it above the number of threads starts one.
        self._pending = 0

    def submit(self, work: Work) -> None:
        """Run the work soon, in one of the threads."""
        with self._lock:
            self._pending += 1
            start = self._threads < min(self._pending, self._threads_max)
            self._threads += start
        self._tasks.put(work)
        if start:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                work = self._tasks.get(timeout=self._idle_s)
            except queue.Empty:
                if self._may_end():
                    return
                continue
            if work is None:
                return
            try:
                run_now(work())
            except Exception:
                # Work resolves its own futures; an exception that still escapes must not end the thread.
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

    async def close(self) -> None:
        """End the threads as they become idle; tasks already submitted are still run."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._tasks.put(None)


class ThreadShell:
    """The shell of clients for programs with threads."""

    def check(self) -> None:
        """Allow every call: each client says itself what it refuses after a fork."""

    #: Seconds of a monotonic clock; the function itself, since it is called some times for each send.
    now = staticmethod(time.monotonic)

    def condition(self) -> ThreadCondition:
        """Return a new condition."""
        return ThreadCondition()

    def workers(self, most: int, name: str) -> ThreadWorkers:
        """Return up to `most` threads."""
        return ThreadWorkers(most, name)

    def spawn(self, name: str, work: Work) -> None:
        """Run the work in a thread of its own."""
        threading.Thread(target=lambda: run_now(work()), name=name, daemon=True).start()

    def future(self) -> SendFuture[Any]:
        """Return a future."""
        return SendFuture()

    async def outcome(self, future: Outcome[T], deadline: float) -> T:
        """Wait for the result of a future."""
        assert isinstance(future, SendFuture)
        result: T = future.result(max(0.0, deadline - self.now()))
        return result

    async def call(self, function: Callable[[Any], object], argument: object) -> object:
        """Call a function of the user's."""
        return function(argument)

    def gives_up(self, error: BaseException) -> bool:
        """Return False: a thread cannot be cancelled."""
        return False

    def others(self) -> None:
        """Return nothing: other threads have their turns anyway."""

    async def blocking(self, function: Callable[[], T]) -> T:
        """Call the function."""
        return function()

    async def close(self) -> None:
        """Do nothing: threads end by themselves."""

    def transport(self, scheme: str, host: str, port: int, ssl_context: SSLContext | None) -> BlockingTransport:
        """Return connections to this address."""
        return BlockingTransport(scheme, host, port, ssl_context)
