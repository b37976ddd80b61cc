"""The producer: sends messages, returns their partitions and offsets; a failure never stores one twice (SPEC SEND).

    with Producer("http://127.0.0.1:8080") as producer:
        producer.send("orders", b"...", key="order-17")            # waits: Sent(partition, offset)
        future = producer.send_async("orders", b"...")              # batches by itself
        producer.send_batch("orders", [Message(b"..."), ...])       # one request for each partition
        producer.send_arrow("orders", table)                        # the fastest way

An error says what is known. `Refused`, `Conflict`, `Overloaded` and `Unavailable`: nothing was stored. `Unknown`: the
deadline passed without a conclusive answer; the message may be stored. A caller that repeats a send after `Unknown` may
store the message twice; a longer `timeout_s` is the better remedy.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, Unpack

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.http.threads import Workers, in_child
from deltamq.mq.client.messages.message import Message, Sent, SentBatch, SentRange, as_bytes, as_messages, check_message
from deltamq.mq.client.produce.entry import Entry, SendFuture
from deltamq.mq.client.produce.executor import Executor, completing
from deltamq.mq.client.produce.repeatable_sends import Progress, TableSend, TableSendState, send_fixed
from deltamq.mq.client.produce.routers import Closed, Parts, Routers, wait_for
from deltamq.mq.client.produce.shared import Buffer, ProducerStats, SendSettings, Shared, flushed_at_exit
from deltamq.mq.client.produce.slices import Slice, checked_rows, chunk_of, chunk_starts, with_headers
from deltamq.mq.client.produce.topic_router import Selector, TopicRouter
from deltamq.mq.errors import DeltaMQError, Refused, Unavailable
from deltamq.mq.limits import ARROW_MESSAGES_MAX, MESSAGE_BYTES_MAX, MIB

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import BatchSpan

_CLOSE_TIMEOUT_S: Final = 30.0


class Producer:
    """Sends to any number of topics. Safe for any number of threads, and in children of a fork.

    A program that ends without `close` waits up to 30 s for what is queued, and logs how many messages are left.

    Parameters
    ----------
    url
        The service, `http://HOST:PORT`, or several of its processes, as a list or separated by commas. The producer
        finds the cluster's other processes: a request goes to the host of its broker, or to another if that one does
        not answer.
    retries, timeout_s, request_timeout_s
        Maximum number of retries of a request, and maximum seconds of a whole send and of each attempt. In a `strict`
        topic, a request is retried until `timeout_s`, without a limit of retries; then its executor stops until
        `resume`.
    linger_ms
        Milliseconds that the first message of a batch waits for more; 0 sends at once. A waiting `send` never lingers.
    batch_messages_max, batch_bytes_max
        Maximum size of one request.
    buffer_bytes_max, when_full
        Maximum bytes of messages not yet resolved, and what `send_async` does when that is reached: `wait` (up to
        `timeout_s`) or `raise` `Overloaded`.
    requests_in_flight_max
        Maximum number of requests at once, each for another partition; more partitions take turns.
    route_age_s_max, route_age_s_min
        Seconds after which a topic's route is fetched again; and the minimum age of a route that is fetched again
        before that, because an answer shows that it may be outdated.
    new_id
        Makes producer ids. Every id must be new, also across restarts: the service drops requests that it has seen.
    access
        How the service is reached, for example `token`; see `Calls`.
    """

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
        self._hosts = Hosts(url, **access)
        self._hosts.follow()
        self._new_id = new_id
        self.url = self._hosts.url
        self._begin()
        in_child(self._begin_in_child)

    def _begin(self) -> None:
        self._shared = Shared(
            hosts=self._hosts,
            settings=self._settings,
            workers=Workers(self._settings.requests_in_flight_max, "deltamq-producer"),
            buffer=Buffer(self._settings.buffer_bytes_max),
            new_id=self._new_id,
        )
        self._routers = Routers(self._shared)
        flushed_at_exit(self._shared.buffer)

    def _begin_in_child(self) -> None:
        """Begin again in a child of a fork, with new ids; the parent sends what is queued (SPEC SEND-8)."""
        if not self._routers.is_closed:
            self._begin()

    # One message ------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tag: str | None = None,
        headers: dict[str, str] | None = None,
        partition: str | None = None,
        message_id: str | None = None,
        delay_ms: int | None = None,
        deliver_time: datetime | None = None,
        selector: Selector | None = None,
        selector_argument: object = None,
        expected_offset: int | None = None,
        timeout_s: float | None = None,
    ) -> Sent:
        """Send one message and wait until it is stored.

        Parameters
        ----------
        partition
            `NAME@BROKER`, or a logical queue's name; by default chosen by the key, or at random without a key.
        delay_ms, deliver_time
            Deliver the message after this delay, or at this time (SPEC RETRY-4). The result then says where it waits;
            until it is due, `Admin.cancel_message` cancels it by its `message_id`.
        selector, selector_argument
            `selector(partitions, message, selector_argument)` returns the partition; its time counts towards the
            timeout.
        expected_offset
            Store only if this is the end offset of `partition`, else raise `OffsetMismatch`.
        """
        self._may_wait()
        deadline = self._deadline(timeout_s)
        future: SendFuture[Sent] = SendFuture()
        message = Message(
            as_bytes(body), key, tag, headers, partition, message_id, delay_ms=delay_ms, deliver_time=deliver_time
        )
        if expected_offset is not None and partition is None:
            raise Refused("expected_offset needs a partition", field="expected_offset")
        self._check(message)
        router = self._routers.router(topic)
        if selector is not None:
            message = router.chosen(message, selector, selector_argument, deadline)
        executor, entry = self._put(router, message, deadline, future, expected_offset, here=True)
        return wait_for(executor, entry, future, deadline)

    def send_async(
        self,
        topic: str,
        body: bytes | str | Message,
        *,
        key: str | None = None,
        tag: str | None = None,
        headers: dict[str, str] | None = None,
        partition: str | None = None,
        message_id: str | None = None,
        delay_ms: int | None = None,
        deliver_time: datetime | None = None,
        selector: Selector | None = None,
        selector_argument: object = None,
    ) -> SendFuture[Sent]:
        """Queue one message; the future's result is where it is stored, or the error.

        An invalid message raises at once. The first message of a topic waits for its route. A future's callbacks run
        between two requests: they must be quick, and must not wait for another send.
        """
        future: SendFuture[Sent] = SendFuture()
        message = self._message(body, key, tag, headers, partition, message_id, delay_ms, deliver_time)
        self._queue(topic, message, future, selector, selector_argument)
        return future

    def send_oneway(
        self,
        topic: str,
        body: bytes | str | Message,
        *,
        key: str | None = None,
        tag: str | None = None,
        headers: dict[str, str] | None = None,
        partition: str | None = None,
        delay_ms: int | None = None,
        deliver_time: datetime | None = None,
        selector: Selector | None = None,
        selector_argument: object = None,
    ) -> None:
        """Queue one message without a result; a lost one is logged and counted (`stats().oneway_lost`)."""
        message = self._message(body, key, tag, headers, partition, None, delay_ms, deliver_time)
        self._queue(topic, message, None, selector, selector_argument)

    # Many messages ----------------------------------------------------------------------------------------------

    def send_batch(
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
            parts = Parts(len(batch), span)
            self._routers.put_slice(parts, router, Slice(None, batch, None, np.arange(len(batch))), deadline)
            return parts.result(deadline)

    def send_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        partition: str | None = None,
        timeout_s: float | None = None,
    ) -> SentBatch:
        """Send the rows of an Arrow table and wait for all; no Python object is made for a message.

        The columns are a message's fields (`body`, `key`, `tag`, `headers`, `message_id`, `born_time`, `delay_ms`,
        `deliver_time`); only `body` is needed. Rows of one key keep their order. In a sampled trace, the rows get a
        header with the context of the batch's span.
        """
        self._may_wait()
        deadline = self._deadline(timeout_s)
        router = self._routers.router(topic)
        given = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        rows = checked_rows(given, self._settings.message_bytes_max)
        with self._batch_span(topic, len(rows), [rows]) as span:
            parts = Parts(len(rows), span)
            for low, high in pairwise(chunk_starts(rows, self._chunk_bytes(), ARROW_MESSAGES_MAX)):
                chunk = chunk_of(rows, low, high)
                if span is not None and span.is_sampled:
                    chunk = with_headers(chunk, span.headers)
                piece = Slice(partition, (), chunk, np.arange(low, high), named=partition is not None)
                self._routers.put_slice(parts, router, piece, deadline)
            return parts.result(deadline)

    def send_table(
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
        self._may_wait()
        router = self._routers.router(topic)
        rows = checked_rows(table, self._settings.message_bytes_max)
        view = router.view(self._deadline(None)) if state is None else None
        # The rows stay as they are: a resumed send repeats the very same requests.
        with self._batch_span(topic, len(rows), [rows], is_injected=False) as span:
            return TableSend(self._shared, topic, rows, view=view, state=state, span=span).run(progress)

    def send_fixed(
        self, topic: str, messages: Sequence[Message], *, producer_id: str, producer_seq: int, timeout_s: float
    ) -> SendFuture[tuple[SentRange, ...]]:
        """Queue `messages` as one request with a name that the caller has stored; a repeated one is stored once.

        All messages have a `born_time`, and either all name the same partition or none does. Sequences of one
        `producer_id` grow, and a request follows only when the outcome of the one before is known.
        """
        for message in messages:
            self._check(message)
        self._routers.router(topic)  # checks the name, and that the producer is open
        spans = self._hosts.tracing.spans
        span = None if spans is None else spans.send_stored(topic, [message.headers for message in messages])
        try:
            return send_fixed(
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

    def partitions(self, topic: str) -> tuple[str, ...]:
        """Return the topic's partitions in route order, or the logical queues of a static topic."""
        return self._routers.router(topic).view(self._deadline(None)).partitions

    def resume(self, topic: str) -> None:
        """Let the stopped executors of a strict topic accept new messages again (SEND-2)."""
        self._routers.router(topic).restart()

    def stats(self) -> ProducerStats:
        """Return the counts since the producer was made."""
        return self._shared.counters.read(self._shared.buffer.messages)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all messages are resolved; returns False after the timeout."""
        self._may_wait()
        return self._shared.buffer.wait_empty(self._deadline(timeout_s))

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> Closed:
        """Flush for at most `timeout_s`, then give up; returns what is left undone. Closing twice is harmless."""
        self._may_wait()
        return self._routers.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closed = self.close()
        if not closed and error is None:
            raise Unavailable(
                f"the producer closed with {closed.not_sent:,} messages not sent and {closed.unresolved:,} unresolved",
                code="closed_unsettled",
            )

    # Inside -----------------------------------------------------------------------------------------------------

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self._settings.patience.timeout_s if timeout_s is None else timeout_s)

    def _may_wait(self) -> None:
        if completing.active:
            raise Refused(
                "a future's callback must not wait for another send; use send_async there", code="wait_in_callback"
            )

    def _message(
        self,
        body: bytes | str | Message,
        key: str | None,
        tag: str | None,
        headers: dict[str, str] | None,
        partition: str | None,
        message_id: str | None,
        delay_ms: int | None,
        deliver_time: datetime | None,
    ) -> Message:
        if isinstance(body, Message):
            return body
        return Message(as_bytes(body), key, tag, headers, partition, message_id, None, delay_ms, deliver_time)

    def _batch_span(
        self, topic: str, count: int, carriers: Iterable[dict[str, str] | pa.Table | None], *, is_injected: bool = True
    ) -> AbstractContextManager[BatchSpan | None]:
        spans = self._hosts.tracing.spans
        return nullcontext() if spans is None else spans.send_many(topic, count, carriers, is_injected=is_injected)

    def _put(
        self,
        router: TopicRouter,
        message: Message,
        deadline: float,
        future: SendFuture[Sent] | None,
        expected_offset: int | None = None,
        *,
        here: bool,
    ) -> tuple[Executor, Entry]:
        """Queue one message, in a span of its own if the caller traces."""
        spans = self._hosts.tracing.spans
        if spans is None:
            entry = self._entry(message, deadline, future, expected_offset)
            return self._routers.put(router, message, entry, here=here), entry
        span = spans.send(router.topic, message.headers, body_size=len(message.body), message_id=message.message_id)
        message = replace(message, headers=span.headers(message.headers))
        entry = self._entry(message, deadline, future, expected_offset)
        entry.span = span
        try:
            return self._routers.put(router, message, entry, here=here), entry
        except DeltaMQError as error:
            span.failed(error)
            raise

    def _check(self, message: Message) -> None:
        check_message(message, message_bytes_max=self._settings.message_bytes_max)

    def _chunk_bytes(self) -> int:
        """Return half the buffer, so that the next chunk is split while one is being sent."""
        return self._settings.buffer_bytes_max // 2

    def _entry(
        self, message: Message, deadline: float, future: SendFuture[Sent] | None, expected_offset: int | None = None
    ) -> Entry:
        return Entry(
            (message,),
            1,
            self._shared.buffer.fitted(message.size_bytes()),
            deadline,
            future,
            born_us=time.time_ns() // 1000,
            single=True,
            named=message.partition is not None,
            expected_offset=expected_offset,
            alone=expected_offset is not None,
        )

    def _queue(
        self,
        topic: str,
        message: Message,
        future: SendFuture[Sent] | None,
        selector: Selector | None,
        selector_argument: object,
    ) -> None:
        deadline = self._deadline(None)
        self._check(message)
        router = self._routers.router(topic)
        if selector is not None:
            message = router.chosen(message, selector, selector_argument, deadline)
        self._put(router, message, deadline, future, here=False)
