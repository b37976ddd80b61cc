"""What a consumer may be made with: checked before anything is asked of the service."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Final

from mq.errors import Refused
from mq.names import check_topic
from mq.queue_limits import POP_MESSAGES_MAX

__all__ = ["check_handler", "check_settings", "checked_topics"]

#: Each handler has a thread.
_CONCURRENCY_MAX: Final = 1_024


def checked_topics(topics: str | Sequence[str]) -> tuple[str, ...]:
    """The topics, each once."""
    names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not names:
        raise Refused("at least one topic is needed", field="topics")
    return tuple(map(check_topic, names))


def check_handler(handler: object) -> None:
    """Refuse what a thread cannot call."""
    if not callable(handler) or inspect.iscoroutinefunction(handler):
        raise Refused("handler must be a plain function: it runs in a thread of its own", field="handler")


def check_settings(*, concurrency: int, prefetch: int, batch_messages: int | None, format: str, order: object) -> None:
    """Refuse settings out of bounds, naming them."""
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
