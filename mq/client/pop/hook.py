"""Calls the user's hooks around handlers and listeners, and tells them how these ended (SPEC CONS-6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

log = logging.getLogger("deltamq.client")

#: Default of the seconds after which hooks are told that a handler took too long.
CONSUME_TIMEOUT_S: Final = 900.0


class HandlerEnd(StrEnum):
    """How a handler or a listener ended."""

    SUCCESS = "success"
    #: It returned that some message is to come again, or is dead.
    FAILED = "failed"
    #: It raised an exception, or returned what is no result.
    EXCEPTION = "exception"
    #: A listener returned None, which is no verdict; the messages come again.
    NOTHING = "nothing"
    #: It ended with a result, and took longer than the consumer's `consume_timeout_s`.
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Ending:
    """What an `after` hook is told of a handler's run, which took `took_ms` milliseconds."""

    how: HandlerEnd
    took_ms: float
    error: BaseException | None = None


def ending_of(
    error: BaseException | None, took_s: float, timeout_s: float, *, success: bool, nothing: bool = False
) -> Ending:
    """Return the ending of a run that took `took_s` seconds; `nothing` if it returned none of the results."""
    took_ms = took_s * 1000
    if error is not None:
        return Ending(HandlerEnd.EXCEPTION, took_ms, error)
    if nothing:
        return Ending(HandlerEnd.NOTHING, took_ms)
    if took_s >= timeout_s:
        return Ending(HandlerEnd.TIMED_OUT, took_ms)
    return Ending(HandlerEnd.SUCCESS if success else HandlerEnd.FAILED, took_ms)


def call_hook(hook: Callable[..., object] | None, *arguments: object) -> None:
    """Call a hook, if there is one; its failure is logged, and changes nothing."""
    if hook is None:
        return
    try:
        hook(*arguments)
    except Exception:
        log.exception("event=hook_failed")
