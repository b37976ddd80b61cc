"""Calls the user's listener of ordered messages and turns every outcome into a verdict (SPEC ORDER-7).

The same listener hears the group's retried messages, which were moved out of order (SPEC ORDER-8, RETRY-1). They are
popped, so any client of the group may get them. A success acknowledges them; otherwise they are delivered again by the
group's retry policy, until they become dead letters. If the listener commits by hand (CONS-8), `COMMIT` and `ROLLBACK`
settle only the retried message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Unpack

import msgspec
from msgspec.structs import replace

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import OrderedMessage, PoppedMessage, Result
from deltamq.mq.client.pop.consumer import AsyncPopConsumer, PopConsumer
from deltamq.mq.client.pop.telemetry import CONSUME_TIMEOUT_S, ConsumerCounters, Ending, call_hook, ending_of
from deltamq.mq.client.shells.shell import Shell, run_now
from deltamq.mq.client.tracing.tracing import Tracing
from deltamq.mq.errors import Refused
from deltamq.mq.order.orderly import Verdict

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import ProcessSpan, Spans

log = logging.getLogger("deltamq.client")

#: The argument of a listener: one message, or a batch of them.
Heard: TypeAlias = OrderedMessage | Sequence[OrderedMessage]
Listener: TypeAlias = Callable[[Any], object]
AfterVerdict: TypeAlias = Callable[[Any, Verdict, Ending], object]

_NO_VERDICT: Final = "a listener returns Verdict.SUCCESS, Verdict.SUSPEND, Verdict.DEAD or Suspend(ms)"


class Suspend(msgspec.Struct, frozen=True):
    """A `Verdict.SUSPEND` with its own delay: the same messages again after `suspend_ms` (10 to 30,000)."""

    suspend_ms: int


class ListenerOutcome(msgspec.Struct, frozen=True):
    """The verdict of a listener, and its delay of a suspension."""

    verdict: Verdict
    suspend_ms: int | None = None


class Listening(msgspec.Struct, frozen=True):
    """The listener with its hooks (SPEC CONS-6)."""

    shell: Shell
    listener: Listener
    counters: ConsumerCounters
    before: Callable[[Any], object] | None = None
    after: AfterVerdict | None = None
    #: Whether the listener commits by its verdicts (SPEC CONS-8).
    by_hand: bool = False
    consume_timeout_s: float = CONSUME_TIMEOUT_S
    #: None if the caller has a span for each call.
    tracing: Tracing | None = None
    group: str = ""

    async def run(self, heard: Heard, count: int, place: str) -> ListenerOutcome:
        """Call the listener with a message, or a batch of `count`; what it raises is an outcome. `place`: for logs."""
        spans = None if self.tracing is None else self.tracing.spans
        if spans is None:
            return (await self._run(heard, count, place))[0]
        with self._span(spans, heard, count) as span:
            outcome, error = await self._run(heard, count, place)
            span.ended(error, "" if outcome.verdict.is_success else outcome.verdict.value)
        return outcome

    def _span(self, spans: Spans, heard: Heard, count: int) -> AbstractContextManager[ProcessSpan]:
        if not isinstance(heard, OrderedMessage):
            return spans.process_batch(heard[0].topic, self.group, (message.headers for message in heard), count)
        return spans.process(
            heard.topic,
            self.group,
            heard.headers,
            partition=heard.partition,
            offset=heard.offset,
            message_id=heard.message_id,
            body_size=len(heard.body),
            attempt=heard.attempt,
        )

    async def _run(self, heard: Heard, count: int, place: str) -> tuple[ListenerOutcome, BaseException | None]:
        call_hook(self.before, heard)
        began = time.monotonic()
        born_ms = _age_ms(heard)
        error: BaseException | None = None
        returned: object = None
        try:
            returned = await self.shell.call(self.listener, heard)
            outcome = _outcome(returned, by_hand=self.by_hand)
        # BaseException: even if a listener ends its thread or the program, the messages are handed over again.
        except BaseException as caught:
            if self.shell.gives_up(caught):
                raise
            error = caught
            outcome = ListenerOutcome(Verdict.SUSPEND)
            log.error("event=listener_failed message=%s count=%d", place, count, exc_info=caught)
        took_s, success = time.monotonic() - began, outcome.verdict.is_success
        ending = ending_of(error, took_s, self.consume_timeout_s, success=success, nothing=returned is None)
        self.counters.handled(
            ok=count if success else 0,
            retried=count if outcome.verdict in (Verdict.SUSPEND, Verdict.ROLLBACK) else 0,
            dead=count if outcome.verdict is Verdict.DEAD else 0,
            consume_ms=ending.took_ms,
            born_ms=born_ms,
        )
        call_hook(self.after, heard, outcome.verdict, ending)
        return outcome, error


def _outcome(returned: object, *, by_hand: bool) -> ListenerOutcome:
    """Return the outcome of a return value; None is a suspension, since only `SUCCESS` is a success."""
    if returned is None:
        return ListenerOutcome(Verdict.SUSPEND)
    if isinstance(returned, Verdict):
        if returned in (Verdict.COMMIT, Verdict.ROLLBACK) and not by_hand:
            raise Refused(f"Verdict.{returned.name} needs autocommit=False", code="invalid_verdict")
        return ListenerOutcome(returned)
    if isinstance(returned, Suspend):
        return ListenerOutcome(Verdict.SUSPEND, returned.suspend_ms)
    raise Refused(f"{_NO_VERDICT}; this one returned {type(returned).__name__}", code="invalid_verdict")


def _age_ms(heard: Heard) -> float | None:
    """Return the age of the oldest message since its `born_time`; None if no message has one."""
    messages = (heard,) if isinstance(heard, OrderedMessage) else heard
    oldest_us = min((message.born_us for message in messages if message.born_us is not None), default=None)
    return None if oldest_us is None else max(0.0, time.time() * 1e3 - oldest_us / 1e3)


def retries_of(
    url: str | Sequence[str],
    group: str,
    topics: Sequence[str],
    listening: Listening,
    *,
    batches: bool,
    client_id: str,
    tags: str,
    filter: str | None,
    typed: bool,
    patience: Patience | None,
    kind: type[PopConsumer] | type[AsyncPopConsumer],
    **access: Unpack[ClientAccess],
) -> PopConsumer | AsyncPopConsumer:
    """Return a consumer of the group's retried messages of these topics, one at a time."""
    listening = replace(listening, tracing=None)  # the consumer has a span for each message

    async def handle(popped: PoppedMessage) -> Result:
        message = OrderedMessage(
            popped.partition,
            popped.offset,
            popped.body,
            popped.key,
            popped.tag,
            popped.headers,
            popped.message_id,
            popped.born_us,
            popped.append_us,
            popped.value,
            popped.rescued,
            popped.topic,
            popped.delivery_attempt,
        )
        outcome = await listening.run([message] if batches else message, 1, f"{popped.partition}:{popped.offset}")
        if outcome.verdict.is_success:
            return Result.OK
        return Result.DEAD if outcome.verdict is Verdict.DEAD else Result.RETRY

    return kind(
        url,
        group,
        topics,
        handle if kind is AsyncPopConsumer else lambda popped: run_now(handle(popped)),
        concurrency=1,
        order=False,
        retry="only",
        tags=tags,
        filter=filter,
        typed=typed,
        client_id=client_id,
        patience=patience,
        **access,
    )
