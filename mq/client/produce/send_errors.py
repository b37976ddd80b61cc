"""The errors that a producer raises about sends of its own accord: each says whether anything may be stored."""

from __future__ import annotations

from typing import Final

from mq.errors import Conflict, DeltaMQError, Unavailable, Unknown

__all__ = ["NOT_SENT", "STOPPED", "outcome_unknown", "producer_closed", "sending_stopped", "timed_out_in_queue"]

NOT_SENT: Final = "not_sent"
STOPPED: Final = "executor_stopped"


def timed_out_in_queue() -> Unavailable:
    """Its time was over before its turn came."""
    return Unavailable("the send timed out in the queue; nothing was stored", code=NOT_SENT)


def producer_closed() -> Unavailable:
    """The producer was closed before its turn came."""
    return Unavailable("the producer was closed before this was sent; nothing was stored", code=NOT_SENT)


def sending_stopped(partition: str | None, cause: DeltaMQError) -> Conflict:
    """An earlier message of a strict topic is not resolved, and nothing may overtake it (SEND-2)."""
    error = Conflict(
        f"sending to {partition} stopped, nothing was stored: an earlier message is not resolved "
        f"({cause.code}: {cause.detail}); resume() goes on without it",
        code=STOPPED,
    )
    error.__cause__ = cause
    return error


def outcome_unknown(cause: DeltaMQError) -> Unknown:
    """An earlier attempt may have been applied: the last error alone does not tell the outcome (SEND-5)."""
    if isinstance(cause, Unknown):
        return cause
    unknown = Unknown(f"the outcome is not known; the last attempt ended with {cause.code}: {cause.detail}")
    unknown.__cause__ = cause
    return unknown
