"""The life cycle of a group's consumer: started, run until it is stopped or refused, and closed."""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from deltamq.mq.client.http.forks import Birthplace
from deltamq.mq.errors import DeltaMQError, Refused

log = logging.getLogger("deltamq.client")

CLOSE_TIMEOUT_S: Final = 30.0
#: Interval at which `run` wakes by itself, in seconds.
_LOOK_S: Final = 0.2

#: The type of what a consumer left undone when it closed.
Closed = TypeVar("Closed")


class ConsumerLife(ABC, Generic[Closed]):
    """The common life cycle of consumers with threads of their own; a subclass makes the threads, and closes."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._birthplace = Birthplace(type(self).__name__)
        #: The error that ended this consumer, if there was one.
        self.error: DeltaMQError | None = None
        self._threads: Sequence[threading.Thread] = ()
        self._lock = threading.Lock()
        self._closing = False
        self._closed: Closed | None = None
        #: Not an event: a signal handler may put into this queue, whatever it interrupted.
        self._stop: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to consume, in threads of its own, until `close`."""
        self._birthplace.check()
        with self._lock:
            if self._closing:
                raise Refused("the consumer is closed; make another one", code="consumer_closed")
            if self._threads:
                return
            self._threads = self._make_threads()
            for thread in self._threads:
                thread.start()

    @abstractmethod
    def _make_threads(self) -> Sequence[threading.Thread]:
        """Return the threads that consume, made by `_thread`."""

    def run(self) -> None:
        """Consume until `stop` is called (from a handler, another thread, a signal handler), then close.

        Raises
        ------
        DeltaMQError
            When the service refuses this consumer for good: its requests are invalid, or not allowed.
        """
        self.start()
        self._wait_stopped()
        self.close()
        if self.error is not None:
            raise self.error

    def _wait_stopped(self) -> None:
        """Wait for `stop`, in short waits.

        The system may deliver a signal to any thread, as it does after a process was suspended. Only the main thread
        runs the signal handler, and only when it is awake; during an endless wait the handler would never run.
        """
        while True:
            try:
                return self._stop.get(timeout=_LOOK_S)
            except queue.Empty:
                continue

    def stop(self) -> None:
        """Make `run` end; returns at once."""
        self._stop.put(None)

    @abstractmethod
    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> Closed:
        """End the consumer; closing twice is harmless."""

    def _begin_close(self) -> Closed | None:
        """Prevent a later `start`, and make `run` end; returns the result of an earlier close, if there was one."""
        self._birthplace.check()
        with self._lock:
            if self._closed is not None:
                return self._closed
            self._closing = True
        self.stop()
        return None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._birthplace.is_here:
            return  # its threads, and what they hold, are the parent's
        self.close()
        if error is None and self.error is not None:
            raise self.error

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Make a thread whose failure ends the consumer, so that it never looks alive while nothing is consumed."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                log.exception("event=consumer_failed thread=%s", name)
                self._fail(DeltaMQError(f"{name} failed: {error}", code="consumer_failed"))

        return threading.Thread(target=run, name=name, daemon=True)

    def _fail(self, error: DeltaMQError) -> None:
        """End the consumer; `run` raises `error`, unless there was an earlier one."""
        log.error("event=consumer_ends group=%s code=%s detail=%s", self.group, error.code, error.detail)
        self.error = self.error or error
        self.stop()
