"""The settings of consumers, checked before the first request to the service."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deltamq.mq.errors import Refused
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
    """Refuse a handler that a thread cannot call."""
    if not callable(handler) or inspect.iscoroutinefunction(handler):
        raise Refused("handler must be a plain function: it runs in a thread of its own", field="handler")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderlyManner:
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
        names = [one.value for one in OnFailure]
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
