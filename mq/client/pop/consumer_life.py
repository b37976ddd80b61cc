"""What the consumers of groups share: their settings, checked before the first request to the service, and their life.

A consumer is started, run until it is stopped or refused, and closed.
"""

from __future__ import annotations

import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec

from deltamq.mq.client.shells.both import Client, both
from deltamq.mq.client.shells.forks import Birthplace
from deltamq.mq.client.shells.shell import Running, Shell, Stop, Work
from deltamq.mq.errors import DeltaMQError, Refused
from deltamq.mq.limits import (
    AHEAD_MESSAGES_MAX,
    MAX_ATTEMPTS_MAX,
    POP_MESSAGES_MAX,
    RUN_MS_MAX,
    SUSPEND_MS_MAX,
    SUSPEND_MS_MIN,
)
from deltamq.mq.names import check_topic
from deltamq.mq.order.orderly import OnFailure, OrderlySettings

log = logging.getLogger("deltamq.client")

CLOSE_TIMEOUT_S: Final = 30.0
#: Interval at which `run` wakes by itself, in seconds.
_LOOK_S: Final = 0.2

#: The type of what a consumer left undone when it closed.
Closed = TypeVar("Closed")


class ConsumerLife(Client, ABC, Generic[Closed]):
    """The life of a consumer, which works in the background; a subclass says what that is, and closes."""

    def __init__(self, group: str, shell: Shell) -> None:
        self.group = group
        self.shell = shell
        self._birthplace = Birthplace(type(self).__name__)
        #: The error that ended this consumer, if there was one.
        self.error: DeltaMQError | None = None
        #: What runs in the background since the start.
        self._running: Sequence[Running] = ()
        self._lock = threading.Lock()
        self._closing = False
        self._closed: Closed | None = None
        self._stopped = Stop(shell)

    @both
    async def start(self) -> None:
        """Begin to consume, in the background, until `close`."""
        await self._start()

    async def _start(self) -> None:
        self._birthplace.check()
        self.shell.check()
        with self._lock:
            if self._closing:
                raise Refused("the consumer is closed; make another one", code="consumer_closed")
            if not self._running:
                self._running = self._begin_all()

    @abstractmethod
    def _begin_all(self) -> Sequence[Running]:
        """Begin to consume, by `_begin`."""

    @both
    async def run(self) -> None:
        """Consume until `stop` is called (from a handler, another thread or task, a signal handler), then close.

        Raises
        ------
        DeltaMQError
            When the service refuses this consumer for good: its requests are invalid, or not allowed.
        """
        await self._start()
        try:
            # In short waits: the system may deliver a signal to any thread, as it does after a process was suspended,
            # and only the main thread runs the signal handler, when it is awake.
            while not await self._stopped.wait(_LOOK_S):
                pass
        finally:
            await self._close(CLOSE_TIMEOUT_S)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Make `run` end; returns at once."""
        self._stopped.set()

    @both
    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> Closed:
        """End the consumer: wait at most `timeout_s` for what it handles. Closing twice is harmless."""
        return await self._close(timeout_s)

    @abstractmethod
    async def _close(self, timeout_s: float) -> Closed:
        """Close; see the subclass."""

    def _begin_close(self) -> Closed | None:
        """Prevent a later `start`, and make `run` end; returns the result of an earlier close, if there was one."""
        self._birthplace.check()
        with self._lock:
            if self._closed is not None:
                return self._closed
            self._closing = True
        self.stop()
        return None

    def _begin(self, name: str, work: Work) -> Running:
        """Begin work whose failure ends the consumer, so that it never looks alive while nothing is consumed."""

        async def run() -> None:
            try:
                await work()
            except Exception as error:
                log.exception("event=consumer_failed work=%s", name)
                self._fail(DeltaMQError(f"{name} failed: {error}", code="consumer_failed"))

        return Running(self.shell, name, run)

    def _fail(self, error: DeltaMQError) -> None:
        """End the consumer; `run` raises `error`, unless there was an earlier one."""
        log.error("event=consumer_ends group=%s code=%s detail=%s", self.group, error.code, error.detail)
        self.error = self.error or error
        self.stop()

    async def _enter(self) -> None:
        await self._start()

    @property
    def _is_elsewhere(self) -> bool:
        return not self._birthplace.is_here

    def _left(self, closed: Closed, error: BaseException | None) -> None:
        if error is None and self.error is not None:
            raise self.error


#: Maximum number of handlers at once; each has a thread.
_CONCURRENCY_MAX: Final = 1_024
#: Maximum interval of commits; a longer one would repeat too many messages after a crash.
_COMMIT_MS_MAX: Final = 60_000


def checked_topics(topics: str | Sequence[str]) -> tuple[str, ...]:
    """Return the checked topics, each once."""
    names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not names:
        raise Refused("at least one topic is needed", field="topics")
    return tuple(map(check_topic, names))


def check_handler(handler: object) -> None:
    """Refuse a handler that a thread cannot call: see the consumers for event loops."""
    if not callable(handler) or inspect.iscoroutinefunction(handler):
        raise Refused(
            "handler must be a plain function, which runs in a thread; AsyncPopConsumer takes coroutine functions",
            field="handler",
        )


def check_async_handler(handler: object) -> None:
    """Refuse a handler that cannot be called."""
    if not callable(handler):
        raise Refused("handler must be a coroutine function, or a plain function", field="handler")


def check_settings(*, concurrency: int, prefetch: int, batch_messages: int | None, format: str, order: object) -> None:
    """Refuse settings that are out of bounds; the error names the setting."""
    if not 1 <= concurrency <= _CONCURRENCY_MAX:
        raise Refused(f"concurrency must be 1 to {_CONCURRENCY_MAX}", field="concurrency")
    if prefetch < 0:
        raise Refused("prefetch must be at least 0", field="prefetch")
    if batch_messages is not None and not 1 <= batch_messages <= POP_MESSAGES_MAX:
        raise Refused(f"batch_messages must be 1 to {POP_MESSAGES_MAX}", field="batch_messages")
    if format not in ("messages", "arrow"):
        raise Refused("format must be 'messages' or 'arrow'", field="format")
    if order not in (None, False, True, "key"):
        raise Refused('order must be False, True or "key"', field="order")


class OrderlyManner(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an `OrderlyConsumer`; refuses a setting that is out of bounds, and names it."""

    concurrency: int
    batch_messages: int | None
    on_failure: str
    max_attempts: int | None
    suspend_ms: int
    turn_ms: int
    commit_ms: int
    keys_in_parallel: int
    ahead_messages: int
    autocommit: bool

    def __post_init__(self) -> None:
        bounds = (
            ("concurrency", self.concurrency, 1, _CONCURRENCY_MAX),
            ("batch_messages", self.batch_messages, 1, POP_MESSAGES_MAX),
            ("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS_MAX),
            ("suspend_ms", self.suspend_ms, SUSPEND_MS_MIN, SUSPEND_MS_MAX),
            ("turn_ms", self.turn_ms, 1, RUN_MS_MAX),
            ("commit_ms", self.commit_ms, 1, _COMMIT_MS_MAX),
            ("keys_in_parallel", self.keys_in_parallel, 1, self.concurrency),
            ("ahead_messages", self.ahead_messages, self.keys_in_parallel, AHEAD_MESSAGES_MAX),
        )
        for name, value, low, high in bounds:
            if value is not None and not low <= value <= high:
                raise Refused(f"{name} must be {low:,} to {high:,}", field=name)
        if self.keys_in_parallel > 1 and not self.autocommit:
            raise Refused("commits by hand need keys_in_parallel=1", field="autocommit")
        names = [choice.value for choice in OnFailure]
        if self.on_failure not in names:
            raise Refused(f"on_failure must be {', '.join(names)}", field="on_failure")

    def settings(self, *, strict: bool, max_attempts: int) -> OrderlySettings:
        """Return the settings for one topic: a strict one always repeats in place (ORDER-8).

        `max_attempts` is the group's; the consumer's own takes precedence.
        """
        return OrderlySettings(
            on_failure=OnFailure.of(strict=strict, best_tried=OnFailure(self.on_failure)),
            max_attempts=self.max_attempts or max_attempts,
            suspend_ms=self.suspend_ms,
            batch_messages=self.batch_messages or 1,
            run_ms_max=self.turn_ms,
            keys_in_parallel=self.keys_in_parallel,
            ahead_messages=self.ahead_messages,
            autocommit=self.autocommit,
        )
