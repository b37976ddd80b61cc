"""The errors that the producer itself makes for sends; each says whether anything may be stored."""

from __future__ import annotations

from typing import Final

from deltamq.mq.errors import Conflict, DeltaMQError, Unavailable, Unknown

NOT_SENT: Final = "not_sent"
STOPPED: Final = "executor_stopped"


def timed_out_in_queue() -> Unavailable:
    """Return the error of a send whose deadline passed while it was queued."""
    return Unavailable("the send timed out in the queue; nothing was stored", code=NOT_SENT)


def producer_closed() -> Unavailable:
    """Return the error of a send that was queued when the producer closed."""
    return Unavailable("the producer was closed before this was sent; nothing was stored", code=NOT_SENT)


def sending_stopped(partition: str | None, cause: DeltaMQError) -> Conflict:
    """Return the error of a send to a strict topic behind an unresolved message, which it may not overtake (SEND-2)."""
    error = Conflict(
        f"sending to {partition} stopped, nothing was stored: an earlier message is not resolved "
        f"({cause.code}: {cause.detail}); resume() goes on without it",
        code=STOPPED,
    )
    error.__cause__ = cause
    return error


def outcome_unknown(cause: DeltaMQError) -> Unknown:
    """Return the error of a send of which an attempt before the last one may have been applied (SEND-5)."""
    if isinstance(cause, Unknown):
        return cause
    unknown = Unknown(f"the outcome is not known; the last attempt ended with {cause.code}: {cause.detail}")
    unknown.__cause__ = cause
    return unknown
