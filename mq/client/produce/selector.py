"""Partition selectors: functions of the caller that choose a message's partition (SPEC SEND-3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltamq.mq.client.messages.message import Message
from deltamq.mq.errors import Refused

#: A function of the topic's partitions (of a static topic, its logical queues), the message and the caller's argument;
#: returns one of the partitions.
Selector = Callable[[tuple[str, ...], Message, Any], str | None]


def selected(selector: Selector, partitions: tuple[str, ...], message: Message, argument: object) -> str:
    """Return the partition that `selector` chooses.

    Raises
    ------
    Refused
        `selector_failed`: it raised, returned None, or returned no partition of the topic.
    """
    try:
        chosen = selector(partitions, message, argument)
    except Exception as error:
        raise Refused(
            f"the selector raised {type(error).__name__}: {error}; nothing was sent",
            code="selector_failed",
            field="selector",
        ) from error
    if chosen not in partitions:
        what = "nothing" if chosen is None else repr(chosen)
        raise Refused(
            f"the selector returned {what}, not one of {', '.join(partitions)}; nothing was sent",
            code="selector_failed",
            field="selector",
        )
    return chosen
