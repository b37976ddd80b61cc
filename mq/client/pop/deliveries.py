"""Popped messages on their way through the handlers: waiting, being handled, or released.

    pop ──► pieces of work ──► waiting for a thread ──► handler ──► outcome of each message
                                      └── the consumer closes: released unhandled

Slots limit how much a consumer takes: one for each handler, and one for each message or batch to be prefetched. The
user's handler may return or raise what it likes; `Handling` turns that into a result for each message.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.client.messages.received import Dead, PopBatch, PoppedMessage, PopTable, Result, Retry
from deltamq.mq.client.pop.lease import Lease, Leases, Release
from deltamq.mq.client.pop.telemetry import CONSUME_TIMEOUT_S, ConsumerCounters, Ending, call_hook, ending_of
from deltamq.mq.client.shells.shell import Inside, Shell
from deltamq.mq.client.tracing.tracing import Tracing
from deltamq.mq.errors import Refused

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import ProcessSpan, Spans

log = logging.getLogger("deltamq.client")


class Slots:
    """A number of slots, taken before a pop and given back when its messages are handled."""

    def __init__(self, count: int, shell: Shell) -> None:
        assert count >= 1
        self._count = count
        self._free = count
        self._freed = shell.condition()
        self._closed = False

    def grow(self, count: int) -> None:
        """Add slots; a negative number removes slots, as they become free."""
        with self._freed.lock:
            self._count += count
            self._free += count
            self._freed.notify()

    async def take(self, most: int) -> int:
        """Take free slots, at most `most`, and return their number; waits for the first one. Returns 0 once closed."""
        return max(0, await self._freed.until(partial(self._taken, most)))

    def _taken(self, most: int) -> int:
        """Take what is free; returns -1 once closed."""
        if self._closed:
            return -1
        taken = max(0, min(self._free, most))
        self._free -= taken
        return taken

    def give_back(self, count: int) -> None:
        """Give slots back."""
        if count:
            with self._freed.lock:
                self._free += count
                assert self._free <= self._count, "more came back than was taken"
                self._freed.notify()

    async def wait_all(self, timeout_s: float) -> bool:
        """Wait until all slots are free; returns False after `timeout_s`."""
        return await self._freed.until(lambda: self._free == self._count, timeout_s)

    def close(self) -> None:
        """Let every `take` return 0."""
        with self._freed.lock:
            self._closed = True
            self._freed.notify()


#: The argument of a handler: one message, a batch of them, or a batch as an Arrow table.
Handled: TypeAlias = PoppedMessage | Sequence[PoppedMessage] | pa.Table
Handler: TypeAlias = Callable[[Any], object]
Before: TypeAlias = Callable[[Any], object]
After: TypeAlias = Callable[[Any, Sequence[Result], Ending], object]

_NO_RESULT: Final = (
    "a handler returns None, Result.OK, Result.RETRY or Result.DEAD; a handler of batches may return a list with one "
    "result for each message"
)


class Handling(msgspec.Struct, frozen=True):
    """The handler with its hooks (SPEC CONS-6)."""

    shell: Shell
    handler: Handler
    counters: ConsumerCounters
    before: Before | None = None
    after: After | None = None
    consume_timeout_s: float = CONSUME_TIMEOUT_S
    tracing: Tracing = msgspec.field(default_factory=Tracing)
    group: str = ""

    async def run(self, topic: str, subject: Handled, count: int, place: str) -> list[Result]:
        """Handle one message of a topic, or a batch of `count`; raises nothing of the handler. `place` is for logs."""
        if (spans := self.tracing.spans) is None:
            return (await self._run(subject, count, place))[0]
        with self._span(spans, topic, subject, count) as span:
            results, error = await self._run(subject, count, place)
            span.ended(error, _outcome(results))
        return results

    def _span(self, spans: Spans, topic: str, subject: Handled, count: int) -> AbstractContextManager[ProcessSpan]:
        if isinstance(subject, pa.Table):
            return spans.process_batch(topic, self.group, [subject], count)
        if not isinstance(subject, PoppedMessage):
            return spans.process_batch(topic, self.group, (message.headers for message in subject), count)
        # A message that is delivered again is named as its producer knows it.
        first = subject if subject.origin is None else subject.origin
        return spans.process(
            topic,
            self.group,
            subject.headers,
            partition=first.partition,
            offset=first.offset,
            message_id=subject.message_id,
            body_size=len(subject.body),
            attempt=subject.delivery_attempt,
        )

    async def _run(self, subject: Handled, count: int, place: str) -> tuple[list[Result], BaseException | None]:
        call_hook(self.before, subject)
        began = time.monotonic()
        born_ms = _age_ms(subject)
        error: BaseException | None = None
        try:
            results = _results(await self.shell.call(self.handler, subject), count)
        # BaseException: even if a handler ends its thread or the program, the message is sent back.
        except BaseException as caught:
            if self.shell.gives_up(caught):
                raise
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
        return results, error


def _outcome(results: Sequence[Result]) -> str:
    """Return what spans say of messages that are not done: `dead` or `retry`; empty if all are done."""
    if any(isinstance(result, Dead) for result in results):
        return "dead"
    return "retry" if any(isinstance(result, Retry) for result in results) else ""


def _results(returned: object, count: int) -> list[Result]:
    """Return one result for each message; raises if `returned` is not valid."""
    if returned is None:
        return [Result.OK] * count
    if isinstance(returned, Result):
        return [returned] * count
    if isinstance(returned, list | tuple) and len(returned) == count:
        results = [Result.OK if result is None else result for result in returned]
        if all(isinstance(result, Result) for result in results):
            return results
    raise Refused(f"{_NO_RESULT}; this one returned {type(returned).__name__}", code="invalid_handler_result")


def _age_ms(subject: Handled) -> float | None:
    """Return the age of the oldest message since its `born_time`; None if no message has one."""
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


class Ticket:
    """The slots of one pop, given back one by one as pieces are done, the last one only when all pieces are."""

    def __init__(self, slots: int, works: int) -> None:
        self._slots = slots
        self._left = works
        self._lock = threading.Lock()

    def done(self) -> int:
        """Note a finished piece; returns the number of slots to give back now."""
        with self._lock:
            self._left -= 1
            return 1 if self._left < self._slots else 0


class Work(msgspec.Struct, frozen=True, eq=False):
    """Messages for one handler, handed over one by one, or all at once as a batch."""

    leases: Sequence[Lease]
    messages: Sequence[PoppedMessage] | pa.Table
    ticket: Ticket
    #: Whether all messages are handed over at once.
    batch: bool

    def subject(self, index: int) -> Handled:
        """Return the argument of the handler: the message at `index`, or the batch."""
        return self.messages if self.batch else self.messages[index]


def leases_of(topic: str, popped: PopBatch | PopTable) -> list[Lease]:
    """Make a lease for each message; their invisible times are counted from now."""
    popped_at = time.monotonic()
    if isinstance(popped, PopBatch):
        origins = [one.origin for one in popped.messages]
        places = [None if origin is None else _place(origin.partition, origin.offset) for origin in origins]
        rows = [
            (one.partition, one.offset, one.handle, place) for one, place in zip(popped.messages, places, strict=True)
        ]
    else:
        columns = [popped.rows.column(name).to_pylist() for name in ("partition", "offset", "handle")]
        rows = list(zip(*columns, _places(popped.rows), strict=True))
    return [
        Lease(topic, partition, offset, handle, place, invisible_ms=popped.invisible_ms, popped_at=popped_at)
        for partition, offset, handle, place in rows
    ]


def _places(rows: pa.Table) -> Iterable[str | None]:
    """Return where rows that are delivered again were first stored, for logs."""
    if "origin" not in rows.column_names:
        return repeat(None, rows.num_rows)
    origins = rows.column("origin").to_pylist()
    return [None if one is None else _place(one["partition"], one["offset"]) for one in origins]


def _place(partition: str | None, offset: int | None) -> str | None:
    return None if partition is None or offset is None else f"{partition}:{offset}"


def works_of(
    popped: PopBatch | PopTable, leases: Sequence[Lease], slots: int, *, batch: bool, in_order: bool
) -> list[Work]:
    """Cut a pop into pieces: the whole batch, a run for each partition (in order, POP-16), or each message by itself.

    The messages of a run are handled one after another.
    """
    if isinstance(popped, PopTable):
        return [Work(leases, popped.rows, Ticket(slots, 1), True)]
    if batch:
        return [Work(leases, popped.messages, Ticket(slots, 1), True)]
    if not in_order:
        ticket = Ticket(slots, len(leases))
        return [
            Work((lease,), (message,), ticket, False) for lease, message in zip(leases, popped.messages, strict=True)
        ]
    runs: dict[str, list[int]] = {}
    for at, lease in enumerate(leases):
        runs.setdefault(lease.partition, []).append(at)
    ticket = Ticket(slots, len(runs))
    return [
        Work([leases[at] for at in run], [popped.messages[at] for at in run], ticket, False) for run in runs.values()
    ]


#: Active where a handler runs.
in_handler: Final = Inside("deltamq-handler")


class Deliveries:
    """The pieces of work of one consumer."""

    def __init__(
        self,
        handling: Handling,
        leases: Leases,
        slots: Slots,
        counters: ConsumerCounters,
        *,
        concurrency: int,
        batch: bool,
    ) -> None:
        self._handling = handling
        self._leases = leases
        self._slots = slots
        self._counters = counters
        self._batch = batch
        self._workers = handling.shell.workers(concurrency, "deltamq-handler")
        self._lock = threading.Lock()
        #: Pieces that wait for a handler.
        self._queued: dict[Work, None] = {}
        self._closing = False

    def deliver(self, topic: str, in_order: bool, popped: PopBatch | PopTable, slots: int) -> None:
        """Queue the messages of a pop for the handlers; the pop holds this number of slots."""
        leases = leases_of(topic, popped)
        self._counters.add(received=len(leases))
        self._leases.hold(leases)
        works = works_of(popped, leases, slots, batch=self._batch, in_order=in_order)
        self._slots.give_back(max(0, slots - len(works)))
        with self._lock:
            closing = self._closing
            if not closing:
                self._queued |= dict.fromkeys(works)
        for work in works:
            if closing:
                self._release(work)
            else:
                self._workers.submit(partial(self._begin, work))

    async def _begin(self, work: Work) -> None:
        """Handle a piece, unless it was released while it waited."""
        with self._lock:
            if work not in self._queued:
                return
            del self._queued[work]
        try:
            with in_handler:
                await self._handle(work)
        finally:
            self._slots.give_back(work.ticket.done())

    async def _handle(self, work: Work) -> None:
        """Call the handler with each message; after a failure the rest of a run is released."""
        if work.batch:
            await self._handle_batch(work)
            return
        for at, lease in enumerate(work.leases):
            if self._closing or not self._leases.is_valid(lease):
                self._give_back(work, at)
                return
            (result,) = await self._handling.run(lease.topic, work.subject(at), 1, lease.place)
            self._leases.finish((lease,), result)
            if result != Result.OK:
                self._give_back(work, at + 1)
                return

    async def _handle_batch(self, work: Work) -> None:
        first = work.leases[0]
        if self._closing or not self._leases.is_valid(first):
            self._give_back(work, 0)
            return
        results = await self._handling.run(first.topic, work.subject(0), len(work.leases), first.place)
        for lease, result in zip(work.leases, results, strict=True):
            self._leases.finish((lease,), result)

    def _give_back(self, work: Work, start: int) -> None:
        rest = work.leases[start:]
        self._counters.add(released=len(rest))
        self._leases.finish(rest, Release())

    def _release(self, work: Work) -> None:
        self._give_back(work, 0)
        self._slots.give_back(work.ticket.done())

    # The end ----------------------------------------------------------------------------------------------------

    def give_back_queued(self) -> None:
        """Begin no further pieces, and release those that wait."""
        with self._lock:
            self._closing = True
            queued = list(self._queued)
            self._queued.clear()
        self._slots.close()
        for work in queued:
            self._release(work)

    async def close(self) -> None:
        """End the workers as they become idle."""
        await self._workers.close()
