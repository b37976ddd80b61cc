"""The calls of producers, for both shells: what `Producer` and `AsyncProducer` have in common (SPEC SEND)."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypedDict, Unpack

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.message import Message, Sent, SentBatch, as_messages, check_message, made
from deltamq.mq.client.produce.entry import Entry
from deltamq.mq.client.produce.executor import Executor, completing
from deltamq.mq.client.produce.routers import Closed, PartFuture, Parts, Routers, wait_for
from deltamq.mq.client.produce.shared import Buffer, ProducerStats, SendSettings, Shared
from deltamq.mq.client.produce.slices import Slice, checked_rows, chunk_of, chunk_starts, with_headers
from deltamq.mq.client.produce.topic_router import Selector, TopicRouter
from deltamq.mq.client.shells.both import Client, both
from deltamq.mq.client.shells.shell import Outcome, Stop
from deltamq.mq.errors import DeltaMQError, Refused, Unavailable
from deltamq.mq.limits import ARROW_MESSAGES_MAX, MESSAGE_BYTES_MAX, MIB

if TYPE_CHECKING:
    from deltamq.mq.client.produce.repeatable_sends import Progress, TableSendState
    from deltamq.mq.client.tracing.spans import BatchSpan

log = logging.getLogger("deltamq.client")

_CLOSE_TIMEOUT_S: Final = 30.0


class MessageOptions(TypedDict, total=False):
    """What a message may have besides its body; see `Message`."""

    key: str | None
    tag: str | None
    headers: dict[str, str] | None
    #: `NAME@BROKER`, or a logical queue's name; by default chosen by the key, or at random without a key.
    partition: str | None
    message_id: str | None
    #: Deliver the message after this delay, or at `deliver_time` (SPEC RETRY-4). The result then says where it waits;
    #: until it is due, `Admin.cancel_message` cancels it by its `message_id`.
    delay_ms: int | None
    deliver_time: datetime | None
    #: In place of the body: the fields of the topic's schema.
    value: object


class ProducerCalls(Client):
    """The calls of `Producer` and `AsyncProducer`."""

    #: Whether a send that waits may carry its request out itself.
    _sends_here: ClassVar[bool]

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        retries: int = 10,
        timeout_s: float = 30.0,
        request_timeout_s: float = 10.0,
        first_wait_ms: float = 50.0,
        wait_ms_max: float = 5_000.0,
        linger_ms: float = 0.0,
        batch_messages_max: int = 10_000,
        batch_bytes_max: int = 8 * MIB,
        buffer_bytes_max: int = 64 * MIB,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        when_full: Literal["wait", "raise"] = "wait",
        requests_in_flight_max: int = 16,
        route_age_s_max: float = 30.0,
        route_age_s_min: float = 1.0,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        **access: Unpack[ClientAccess],
    ) -> None:
        self._settings = SendSettings(
            patience=Patience(
                retries=retries,
                timeout_s=timeout_s,
                request_timeout_s=request_timeout_s,
                first_wait_ms=first_wait_ms,
                wait_ms_max=wait_ms_max,
            ),
            linger_ms=linger_ms,
            batch_messages_max=batch_messages_max,
            batch_bytes_max=batch_bytes_max,
            buffer_bytes_max=buffer_bytes_max,
            message_bytes_max=message_bytes_max,
            when_full=when_full,
            requests_in_flight_max=requests_in_flight_max,
            route_age_s_max=route_age_s_max,
            route_age_s_min=route_age_s_min,
        )
        self.shell = self._make_shell()
        self._hosts = Hosts(url, shell=self.shell, **access)
        self._hosts.follow()
        self._new_id = new_id
        self.url = self._hosts.url
        self._begin()

    def _begin(self) -> None:
        self._shared = Shared(
            shell=self.shell,
            hosts=self._hosts,
            settings=self._settings,
            workers=self.shell.workers(self._settings.requests_in_flight_max, "deltamq-producer"),
            buffer=Buffer(self._settings.buffer_bytes_max, self.shell),
            stop=Stop(self.shell),
            new_id=self._new_id,
        )
        self._routers = Routers(self._shared)

    # One message ------------------------------------------------------------------------------------------------

    @both
    async def send(
        self,
        topic: str,
        body: bytes | str | None = None,
        *,
        selector: Selector | None = None,
        selector_argument: object = None,
        expected_offset: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Sent:
        """Send one message and wait until it is stored; `MessageOptions` lists the further options.

        Parameters
        ----------
        selector, selector_argument
            `selector(partitions, message, selector_argument)` returns the partition; its time counts towards the
            timeout.
        expected_offset
            Store only if this is the end offset of `partition`, else raise `OffsetMismatch`.
        """
        self._may_wait()
        deadline = self._deadline(timeout_s)
        future: Outcome[Sent] = self.shell.future()
        message = made(body, options)
        if expected_offset is not None and message.partition is None:
            raise Refused("expected_offset needs a partition", field="expected_offset")
        self._check(message)
        router = self._routers.router(topic)
        if selector is not None:
            message = await router.chosen(message, selector, selector_argument, deadline)
        executor, entry = await self._put(router, message, deadline, future, expected_offset, waits=True)
        return await wait_for(self.shell, executor, entry, future, deadline)

    def _queued(
        self,
        topic: str,
        body: bytes | str | Message | None,
        future: Outcome[Sent] | None,
        selector: Selector | None,
        selector_argument: object,
        options: MessageOptions,
    ) -> Coroutine[Any, Any, object] | None:
        """Queue one message; returns what is to be awaited if it cannot be queued at once."""
        message = made(body, options)
        now = self.shell.now()
        deadline = now + self._settings.patience.timeout_s
        self._check(message)
        router = self._routers.router(topic)
        if selector is not None:
            return self._queue_chosen(router, message, deadline, future, selector, selector_argument)
        executor = router.known_executor(message, now) if self._hosts.tracing.spans is None else None
        if executor is not None and self._routers.gather(executor, message, deadline, future):
            return None
        return self._put(router, message, deadline, future)

    async def _queue_chosen(
        self,
        router: TopicRouter,
        message: Message,
        deadline: float,
        future: Outcome[Sent] | None,
        selector: Selector,
        selector_argument: object,
    ) -> None:
        message = await router.chosen(message, selector, selector_argument, deadline)
        await self._put(router, message, deadline, future)

    @both
    async def send_oneway(
        self,
        topic: str,
        body: bytes | str | Message | None = None,
        *,
        selector: Selector | None = None,
        selector_argument: object = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Queue one message without a result; a lost one is logged and counted (`stats().oneway_lost`)."""
        if (turn := self.shell.others()) is not None:
            await turn
        waiting = self._queued(topic, body, None, selector, selector_argument, options)
        if waiting is not None:
            await waiting

    # Many messages ----------------------------------------------------------------------------------------------

    @both
    async def send_batch(
        self, topic: str, messages: Iterable[Message | bytes | str], *, timeout_s: float | None = None
    ) -> SentBatch:
        """Send `messages`, in one request for each partition (or more, if they are too large), and wait for all.

        Raises
        ------
        PartlySent
            When some are stored and others are not known to be; the error says which.
        """
        self._may_wait()
        deadline = self._deadline(timeout_s)
        batch = as_messages(messages)
        for index, message in enumerate(batch):
            try:
                self._check(message)
            except DeltaMQError as error:
                error.add_note(f"message {index} of the batch")
                raise
        router = self._routers.router(topic)
        with self._batch_span(topic, len(batch), (message.headers for message in batch)) as span:
            if span is not None:
                batch = [replace(message, headers=span.headers(message.headers)) for message in batch]
            parts = Parts(self.shell, len(batch), span)
            await self._routers.put_slice(parts, router, Slice(None, batch, None, np.arange(len(batch))), deadline)
            return await parts.result(deadline)

    @both
    async def send_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        partition: str | None = None,
        timeout_s: float | None = None,
    ) -> SentBatch:
        """Send the rows of an Arrow table and wait for all; no Python object is made for a message.

        The columns are a message's fields (`body`, `key`, `tag`, `headers`, `message_id`, `born_time`, `delay_ms`,
        `deliver_time`); only `body` is needed, or in a topic with a schema `value`, a struct. Rows of one key keep
        their order. In a sampled trace, the rows get a header with the context of the batch's span.
        """
        self._may_wait()
        deadline = self._deadline(timeout_s)
        router = self._routers.router(topic)
        given = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        rows = checked_rows(given, self._settings.message_bytes_max)
        with self._batch_span(topic, len(rows), [rows]) as span:
            parts = Parts(self.shell, len(rows), span)
            # Half the buffer, so that the next chunk is split while one is being sent.
            chunk_bytes = self._settings.buffer_bytes_max // 2
            for low, high in pairwise(chunk_starts(rows, chunk_bytes, ARROW_MESSAGES_MAX)):
                chunk = chunk_of(rows, low, high)
                if span is not None and span.is_sampled:
                    chunk = with_headers(chunk, span.headers)
                piece = Slice(partition, (), chunk, np.arange(low, high), named=partition is not None)
                await self._routers.put_slice(parts, router, piece, deadline)
            return await parts.result(deadline)

    @both
    async def send_table(
        self,
        topic: str,
        table: pa.Table,
        *,
        progress: bool | Progress = True,
        state: TableSendState | None = None,
    ) -> SentBatch:
        """Send a long table chunk by chunk, with a progress bar; an interrupted send can be resumed.

        Parameters
        ----------
        progress
            True draws a bar on stderr; a function is called with each `TableProgress`.
        state
            State of an interrupted send of the same table, also in another process (`TableSendInterrupted.state`,
            `TableProgress.state`): the send goes on from there, and stores nothing twice.

        Raises
        ------
        TableSendInterrupted
            With the state from which to resume.
        """
        from deltamq.mq.client.produce.repeatable_sends import TableSend

        self._may_wait()
        router = self._routers.router(topic)
        rows = checked_rows(table, self._settings.message_bytes_max)
        view = await router.view(self._deadline(None)) if state is None else None
        # The rows stay as they are: a resumed send repeats the very same requests.
        with self._batch_span(topic, len(rows), [rows], is_injected=False) as span:
            return await TableSend(self._shared, topic, rows, view=view, state=state, span=span).run(progress)

    async def _fixed(
        self, topic: str, messages: Sequence[Message], *, producer_id: str, producer_seq: int, timeout_s: float
    ) -> PartFuture:
        """Queue `messages` as one request with a name that the caller has stored; a repeated one is stored once.

        All messages have a `born_time`, and either all name the same partition or none does. Sequences of one
        `producer_id` grow, and a request follows only when the outcome of the one before is known.
        """
        from deltamq.mq.client.produce.repeatable_sends import send_fixed

        for message in messages:
            self._check(message)
        self._routers.router(topic)  # checks the name, and that the producer is open
        spans = self._hosts.tracing.spans
        span = None if spans is None else spans.send_stored(topic, [message.headers for message in messages])
        try:
            return await send_fixed(
                self._shared,
                topic,
                messages,
                producer_id=producer_id,
                producer_seq=producer_seq,
                deadline=self._deadline(timeout_s),
                span=span,
            )
        except DeltaMQError as error:
            if span is not None:
                span.failed(error)
            raise

    # Upkeep -----------------------------------------------------------------------------------------------------

    @both
    async def partitions(self, topic: str) -> tuple[str, ...]:
        """Return the topic's partitions in route order, or the logical queues of a static topic."""
        return (await self._routers.router(topic).view(self._deadline(None))).partitions

    def resume(self, topic: str) -> None:
        """Let the stopped executors of a strict topic accept new messages again (SEND-2)."""
        self._routers.router(topic).restart()

    def stats(self) -> ProducerStats:
        """Return the counts since the producer was made."""
        return self._shared.counters.read(self._shared.buffer.messages)

    @both
    async def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all messages are resolved; returns False after the timeout."""
        self._may_wait()
        return await self._shared.buffer.wait_empty(self._deadline(timeout_s))

    @both
    async def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> Closed:
        """Flush for at most `timeout_s`, then give up; returns what is left undone. Closing twice is harmless."""
        self._may_wait()
        return await self._routers.close(timeout_s)

    def _left(self, closed: Closed, error: BaseException | None) -> None:
        if not closed and error is None:
            raise Unavailable(
                f"the producer closed with {closed.not_sent:,} messages not sent and {closed.unresolved:,} unresolved",
                code="closed_unsettled",
            )

    # Inside -----------------------------------------------------------------------------------------------------

    def _deadline(self, timeout_s: float | None) -> float:
        return self.shell.now() + (self._settings.patience.timeout_s if timeout_s is None else timeout_s)

    def _may_wait(self) -> None:
        if completing.active:
            raise Refused(
                "a future's callback must not wait for another send; use send_soon there", code="wait_in_callback"
            )

    def _batch_span(
        self, topic: str, count: int, carriers: Iterable[dict[str, str] | pa.Table | None], *, is_injected: bool = True
    ) -> AbstractContextManager[BatchSpan | None]:
        spans = self._hosts.tracing.spans
        return nullcontext() if spans is None else spans.send_many(topic, count, carriers, is_injected=is_injected)

    async def _put(
        self,
        router: TopicRouter,
        message: Message,
        deadline: float,
        future: Outcome[Sent] | None,
        expected_offset: int | None = None,
        *,
        waits: bool = False,
    ) -> tuple[Executor, Entry]:
        """Queue one message, in a span of its own if the caller traces; the caller may be one that `waits`."""
        here = waits and self._sends_here
        spans = self._hosts.tracing.spans
        if spans is None:
            entry = self._entry(message, deadline, future, expected_offset, waits=waits)
            executor = None if here else self._routers.put_now(router, message, entry)
            return executor or await self._routers.put(router, message, entry, waits=waits, here=here), entry
        span = spans.send(router.topic, message.headers, body_size=len(message.body), message_id=message.message_id)
        message = replace(message, headers=span.headers(message.headers))
        entry = self._entry(message, deadline, future, expected_offset, waits=waits)
        entry.span = span
        try:
            return await self._routers.put(router, message, entry, waits=waits, here=here), entry
        except DeltaMQError as error:
            span.failed(error)
            raise

    def _check(self, message: Message) -> None:
        check_message(message, message_bytes_max=self._settings.message_bytes_max)

    def _entry(
        self,
        message: Message,
        deadline: float,
        future: Outcome[Sent] | None,
        expected_offset: int | None,
        *,
        waits: bool,
    ) -> Entry:
        return Entry(
            [message],
            1,
            self._shared.buffer.fitted(message.size_bytes()),
            deadline,
            [future],
            [time.time_ns() // 1000],
            single=True,
            named=message.partition is not None,
            expected_offset=expected_offset,
            alone=expected_offset is not None,
            waited_for=waits,
        )
