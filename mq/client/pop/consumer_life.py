"""The life of a group's consumer, as its user sees it: started, run until it is stopped or refused, and closed."""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from mq.errors import DeltaMQError, Refused

__all__ = ["CLOSE_TIMEOUT_S", "ConsumerLife"]

log = logging.getLogger("deltamq.client")

CLOSE_TIMEOUT_S: Final = 30.0
#: How often a run wakes by itself.
_LOOK_S: Final = 0.2

#: What a consumer left behind when it closed.
Closed = TypeVar("Closed")


class ConsumerLife(ABC, Generic[Closed]):
    """What a consumer in threads of its own has in common with any other: each makes the threads, and closes."""

    def __init__(self, group: str) -> None:
        self.group = group
        #: Why the service refuses this consumer for good.
        self.error: DeltaMQError | None = None
        self._threads: Sequence[threading.Thread] = ()
        self._lock = threading.Lock()
        self._closing = False
        self._closed: Closed | None = None
        #: Not an event: a signal's handler may put into it, whatever it interrupted.
        self._stop: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to consume, in threads of its own; once started, it goes on until `close`."""
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
        """The threads of `_thread` that consume."""

    def run(self) -> None:
        """Consume until `stop` is called (from a handler, another thread, a signal's handler), then close.

        Raises
        ------
        DeltaMQError
            When the service refuses this consumer for good: what it asks for is wrong, or not allowed.
        """
        self.start()
        self._wait_stopped()
        self.close()
        if self.error is not None:
            raise self.error

    def _wait_stopped(self) -> None:
        """Wait for `stop`, awake now and then.

        The system may hand a signal to any thread, as it does with one for a process that was suspended. Its handler
        is run by the main thread alone, and only once that is awake: a wait without an end would never hear of it.
        """
        while True:
            try:
                return self._stop.get(timeout=_LOOK_S)
            except queue.Empty:
                continue

    def stop(self) -> None:
        """Let `run` end; returns at once."""
        self._stop.put(None)

    @abstractmethod
    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> Closed:
        """End it; closing twice is harmless."""

    def _begin_close(self) -> Closed | None:
        """Let nothing be started any more, and `run` end; what was left behind, if it is closed already."""
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
        self.close()
        if error is None and self.error is not None:
            raise self.error

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """A thread whose failure ends the consumer: it must not look alive while nothing is consumed."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                log.exception("event=consumer_failed thread=%s", name)
                self._fail(DeltaMQError(f"{name} failed: {error}", code="consumer_failed"))

        return threading.Thread(target=run, name=name, daemon=True)

    def _fail(self, error: DeltaMQError) -> None:
        """There is no going on: end, and let `run` say why."""
        log.error("event=consumer_ends group=%s code=%s detail=%s", self.group, error.code, error.detail)
        self.error = self.error or error
        self.stop()
