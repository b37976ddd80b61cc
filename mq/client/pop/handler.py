"""Calls the user's handler with messages, and turns whatever it does into a result for each message."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.client.messages.received import Dead, PoppedMessage, Result, Retry
from deltamq.mq.client.pop.consumer_stats import ConsumerCounters
from deltamq.mq.client.pop.hook import CONSUME_TIMEOUT_S, Ending, call_hook, ending_of
from deltamq.mq.errors import Refused

log = logging.getLogger("deltamq.client")

#: The argument of a handler: one message, a batch of them, or a batch as an Arrow table.
Handled: TypeAlias = PoppedMessage | Sequence[PoppedMessage] | pa.Table
Handler: TypeAlias = Callable[[Any], object]
Before: TypeAlias = Callable[[Any], object]
After: TypeAlias = Callable[[Any, Sequence[Result], Ending], object]

_NO_RESULT: Final = (
    "a handler returns None, Result.OK, Result.RETRY or Result.DEAD; a handler of batches may return a list with one "
    "result for each message"
)


@dataclass(frozen=True, slots=True)
class Handling:
    """The handler with its hooks (SPEC CONS-6)."""

    handler: Handler
    counters: ConsumerCounters
    before: Before | None = None
    after: After | None = None
    consume_timeout_s: float = CONSUME_TIMEOUT_S

    def run(self, subject: Handled, count: int, place: str) -> list[Result]:
        """Handle one message, or a batch of `count`; never raises. `place` is for logs."""
        call_hook(self.before, subject)
        began = time.monotonic()
        born_ms = _age_ms(subject)
        error: BaseException | None = None
        try:
            results = _results(self.handler(subject), count)
        # BaseException: even if a handler ends its thread or the program, the message is sent back.
        except BaseException as caught:
            error = caught
            results = [Result.RETRY] * count
            log.error("event=handler_failed message=%s count=%d", place, count, exc_info=caught)
        retried = sum(isinstance(result, Retry) for result in results)
        dead = sum(isinstance(result, Dead) for result in results)
        success = not retried + dead
        ending = ending_of(error, time.monotonic() - began, self.consume_timeout_s, success=success)
        self.counters.handled(
            ok=count - retried - dead, retried=retried, dead=dead, consume_ms=ending.took_ms, born_ms=born_ms
        )
        call_hook(self.after, subject, results, ending)
        return results


def _results(returned: object, count: int) -> list[Result]:
    """Return one result for each message; raises if the return value is not a valid result."""
    if returned is None:
        return [Result.OK] * count
    if isinstance(returned, Result):
        return [returned] * count
    if isinstance(returned, list | tuple) and len(returned) == count:
        each = [Result.OK if one is None else one for one in returned]
        if all(isinstance(one, Result) for one in each):
            return each
    raise Refused(f"{_NO_RESULT}; this one returned {type(returned).__name__}", code="invalid_handler_result")


def _age_ms(subject: Handled) -> float | None:
    """Return the age of the oldest message, in milliseconds since its `born_time`."""
    born_us = _born_us(subject)
    return None if born_us is None else max(0.0, time.time() * 1e3 - born_us / 1e3)


def _born_us(subject: Handled) -> int | None:
    if isinstance(subject, PoppedMessage):
        return subject.born_us
    if isinstance(subject, pa.Table):
        at = subject.schema.get_field_index("born_time")
        oldest = pc.min(subject.column(at).cast(pa.int64())).as_py() if at >= 0 else None
        return None if oldest is None else int(oldest)
    return min((message.born_us for message in subject if message.born_us is not None), default=None)
