"""The POP consumer of a group: it pops messages, calls a handler, and settles each message (SPEC CONS, POP).

    def handle(message):
        book(message.text)                      # returns: done. Raises: again later.

    with PopConsumer("http://127.0.0.1:8080", "billing", "orders", handle, concurrency=8) as consumer:
        consumer.run()                          # until stop() or a refusal

Any number of consumers share a group; they join and leave without stopping each other (CONS-5). Every message is
delivered at least once: it is delivered again if its handler fails, its consumer dies, or it is not settled within its
invisible time. While a handler runs, the invisible time of its message is renewed.

    pollers (one for each topic) ──► handlers (`concurrency`) ──► settler ──► acknowledgements
                                         └── renewer: half of the invisible time is over ──► a new handle
"""

from __future__ import annotations

import logging
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Unpack

import msgspec
from msgspec.structs import replace

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import PoppedMessage, Result
from deltamq.mq.client.pop.client import PopCalls, PopOptions
from deltamq.mq.client.pop.connection import BlockingPopConnection, PopConnection
from deltamq.mq.client.pop.consumer_life import (
    ConsumerLife,
    check_async_handler,
    check_handler,
    check_settings,
    checked_topics,
)
from deltamq.mq.client.pop.deliveries import After, Before, Deliveries, Handler, Handling, Slots, in_handler
from deltamq.mq.client.pop.lease import Leases, Release, Renewer
from deltamq.mq.client.pop.loop_connection import LoopPopConnection
from deltamq.mq.client.pop.pollers import Pollers, Popping
from deltamq.mq.client.pop.settler import Settler
from deltamq.mq.client.pop.telemetry import CONSUME_TIMEOUT_S, ConsumerCounters, ConsumerStats
from deltamq.mq.client.shells.both import Awaiting, Blocking
from deltamq.mq.client.shells.shell import Running, Signal
from deltamq.mq.errors import Refused
from deltamq.mq.limits import POP_MESSAGES_MAX
from deltamq.mq.meta.group_settings import Ordering

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("deltamq.client")

_MESSAGES_DEFAULT: Final = 32
#: Interval at which an iteration without messages looks whether the consumer was stopped, in seconds.
_LOOK_S: Final = 0.5


class ConsumerClosed(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer left undone when it closed.

    `unfinished` messages were released while their handlers still ran. The outcome of `untold` messages did not reach
    the service: they are delivered again when their invisible time ends.
    """

    unfinished: int
    untold: int

    def __bool__(self) -> bool:
        """Return whether every message was finished, and the service knows every outcome."""
        return self.unfinished == 0 and self.untold == 0


class PopConsumerCore(ConsumerLife[ConsumerClosed]):
    """What `PopConsumer` and `AsyncPopConsumer` have in common."""

    _connection: ClassVar[type[PopConnection]]

    def __init__(
        self,
        url: str | Sequence[str],
        group: str,
        topics: str | Sequence[str],
        handler: Handler | None = None,
        *,
        concurrency: int = 8,
        batch_messages: int | None = None,
        format: Literal["messages", "arrow"] = "messages",
        prefetch: int = 0,
        max_messages: int | None = None,
        invisible_ms: int | None = None,
        wait_ms: int = 15_000,
        tags: str = "*",
        filter: str | None = None,
        order: Ordering | None = None,
        retry: Literal["only"] | None = None,
        typed: bool = False,
        renew_for_s: float | None = None,
        ack_within_ms: float = 50.0,
        client_id: str | None = None,
        before: Before | None = None,
        after: After | None = None,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        patience: Patience | None = None,
        **access: Unpack[ClientAccess],
    ) -> None:
        self.topics = checked_topics(topics)
        handler = self._checked_handler(handler)
        check_settings(
            concurrency=concurrency, prefetch=prefetch, batch_messages=batch_messages, format=format, order=order
        )
        self._counters = ConsumerCounters()
        self.client_id = client_id if client_id is not None else f"pop-{uuid.uuid4().hex[:16]}"
        shell = self._make_shell()
        self._client = PopCalls(url, group, client_id=self.client_id, patience=patience, shell=shell, **access)
        super().__init__(self._client.group, shell)
        self._batch = batch_messages is not None or format == "arrow"
        self._order = order
        self._max_messages = batch_messages or max_messages
        most = self._max_messages or 1
        options = PopOptions(
            invisible_ms=invisible_ms, wait_ms=wait_ms, tags=tags, filter=filter, retry=retry, typed=typed
        )
        ask = self._client.ask(self.topics[0], most, **options)
        self._ask = replace(ask, arrow=format == "arrow")
        tracing = self._client.hosts.tracing
        handling = Handling(self.shell, handler, self._counters, before, after, consume_timeout_s, tracing, group)
        self._build(handling, concurrency, prefetch, renew_for_s, ack_within_ms)
        self._helpers: Sequence[Running] = ()
        self._arrived = Signal(self.shell)

    @abstractmethod
    def _checked_handler(self, handler: Handler | None) -> Handler:
        """Return the handler; refuse one that cannot be called."""

    def _build(
        self, handling: Handling, concurrency: int, prefetch: int, renew_for_s: float | None, ack_within_ms: float
    ) -> None:
        self._settler = Settler(self._client, ack_within_ms=ack_within_ms)
        self._leases = Leases(self.shell, self._settler.put, renew_for_s=renew_for_s)
        self._renewer = Renewer(self._client, self._leases)
        self._slots = Slots(concurrency + prefetch, self.shell)
        self._deliveries = Deliveries(
            handling, self._leases, self._slots, self._counters, concurrency=concurrency, batch=self._batch
        )
        self._pollers = Pollers(
            self._client,
            self.topics,
            self._slots,
            self._settler,
            popping=self._popping,
            connect=partial(self._connection, self._client.hosts, self._client.patience.request_timeout_s),
            begin=self._begin,
            fail=self._fail,
        )

    # Life -------------------------------------------------------------------------------------------------------

    def _begin_all(self) -> Sequence[Running]:
        self._helpers = (
            self._begin("deltamq-settler", self._settler.run),
            self._begin("deltamq-renewer", self._renewer.run),
        )
        return [*self._helpers, self._begin("deltamq-pollers", lambda: self._pollers.run(self._order))]

    async def _close(self, timeout_s: float) -> ConsumerClosed:
        """Stop popping, wait at most `timeout_s` for running handlers, and release the other messages.

        Messages that are not begun, or not finished in time, are released: other clients get them at once. If the
        service is away, this may take one request's timeout longer. Closing twice is harmless.
        """
        if in_handler.active:
            raise Refused("close() waits for handlers: call stop() in a handler", code="close_in_handler")
        deadline = self.shell.now() + timeout_s
        closed = self._begin_close()
        if closed is not None:
            return closed
        self._deliveries.give_back_queued()
        await self._pollers.end()
        await self._slots.wait_all(deadline - self.shell.now())
        unfinished = self._leases.live()
        if unfinished and timeout_s > 0:
            log.warning("event=handlers_unfinished count=%d first=%s", len(unfinished), unfinished[0].place)
        self._counters.add(released=len(unfinished))
        self._leases.finish(unfinished, Release())
        self._closed = ConsumerClosed(unfinished=len(unfinished), untold=await self._end_helpers(deadline))
        await self._deliveries.close()
        await PopCalls.close.core(self._client)
        return self._closed

    async def _end_helpers(self, deadline: float) -> int:
        """Report the remaining outcomes to the service; returns the number that it does not know."""
        self._leases.close()
        request_s = self._client.patience.request_timeout_s
        until = max(deadline, self.shell.now() + request_s)
        self._settler.drain(until)
        for helper in self._helpers:
            await helper.join(until + request_s - self.shell.now())
        return self._settler.untold

    # Looking ----------------------------------------------------------------------------------------------------

    def stats(self) -> ConsumerStats:
        """Return what this consumer does (SPEC CONS-6)."""
        return self._counters.read(
            expired=self._settler.expired + self._leases.lost, renewals=self._renewer.renewed, held=len(self._leases)
        )

    # Inside -----------------------------------------------------------------------------------------------------

    def _popping(self, topic: str, order: Ordering, alone: bool) -> Popping:
        in_order = order is True
        if self._batch:
            most = self._max_messages or POP_MESSAGES_MAX
        else:
            most = self._max_messages or (1 if in_order else _MESSAGES_DEFAULT)
        return Popping(
            ask=replace(self._ask, topic=topic, order=order, max_messages=most),
            whole=self._batch or in_order,
            alone=alone,
            deliver=partial(self._deliveries.deliver, topic, in_order),
            fail=self._fail,
            count=self._count_pop,
        )

    def _count_pop(self, answered: bool) -> None:
        self._counters.add(**{"pops" if answered else "failed_pops": 1})


class PopConsumer(PopConsumerCore, Blocking):
    """Pops messages of `topics` for `group` and calls `handler` with them.

    Parameters
    ----------
    url, group, topics
        The service, the group, and one topic or several.
    handler
        Gets a `PoppedMessage`. Returns None or `Result.OK` when the message is done, else `Result.RETRY`,
        `Result.RETRY(delay_ms)` or `Result.DEAD(reason)`; an exception is `Result.RETRY`. With `batch_messages` it gets
        a list of messages, with `format="arrow"` an Arrow table with the columns `partition`, `handle` and
        `delivery_attempt`; it then returns one result for all, or a list with one for each.
    concurrency
        Number of handlers that run at once, each in a thread of its own.
    batch_messages, format
        Maximum number of messages in a batch (1,024 at most), handed over as `messages` or as `arrow`.
    prefetch
        Number of messages (or batches) taken beyond those that free handlers need; they wait, and are renewed.
    max_messages
        Maximum number of messages in one pop. With `order=True` 1 by default: if a message fails, those after it in
        the same pop are delivered again with it, and that counts as an attempt of theirs.
    invisible_ms
        Invisible time of popped messages, in milliseconds; by default the group's.
    wait_ms
        Milliseconds that a pop waits at the service for the first message.
    tags
        `*`, or `TagA||TagB`: other messages count as consumed.
    filter
        A SQL condition, for example `region = 'eu' AND amount > 5`: messages that it is not true for count as consumed.
    order
        True: messages of a partition one after another (POP-16); `"key"`: messages of a key (POP-17); False: no order.
        By default the group's setting when the consumer begins.
    retry
        `only`: pop only messages that are delivered again; an exclusive group allows no other pops. These pops create
        no group: the consumer waits until it exists.
    typed
        Whether messages have a `value`: the fields of the topic's schema.
    renew_for_s
        Seconds for which a message is renewed; then it is delivered again though its handler still runs. None: no
        limit.
    ack_within_ms
        Milliseconds that an acknowledgement may wait for the next pop to carry it; ordered consumers do not wait.
    before, after
        Hooks: `before(message)` and `after(message, results, ending)`, or with the batch; they change nothing. An
        `Ending` says how the handler ended, how long it took, and the exception that it raised.
    consume_timeout_s
        Seconds after which the ending of a handler is `HandlerEnd.TIMED_OUT`.
    patience
        How the waits between attempts grow while the service is away; a consumer never gives up.
    access
        How the service is reached, for example `token`; see `Calls`.
    """

    _connection = BlockingPopConnection

    def _checked_handler(self, handler: Handler | None) -> Handler:
        check_handler(handler)
        assert handler is not None, "checked just now"
        return handler


class AsyncPopConsumer(PopConsumerCore, Awaiting):
    """`PopConsumer` for an event loop: the same parameters; `start`, `run` and `close` are awaited.

        async def handle(message): ...

        async with AsyncPopConsumer("http://127.0.0.1:8080", "billing", "orders", handle, concurrency=100) as consumer:
            await consumer.run()

        async with AsyncPopConsumer("http://127.0.0.1:8080", "billing", "orders") as consumer:
            async for message in consumer:          # acknowledged when the next one is asked for
                ...

    The handler is a coroutine function, of which `concurrency` run at once; a plain function runs in one of as many
    threads. At the end of `close`, handlers that still run are cancelled: their messages come again. Without a handler,
    the consumer is iterated, by one task: what is not acknowledged when it closes comes again at once.
    """

    _connection = LoopPopConnection

    def _checked_handler(self, handler: Handler | None) -> Handler:
        #: The messages that wait for `async for`, each with the future of its result; None if there is a handler.
        self._offered: deque[tuple[PoppedMessage, asyncio.Future[Result]]] | None = None
        if handler is None:
            self._offered = deque()
            return self._offer
        check_async_handler(handler)
        return handler

    async def _offer(self, message: PoppedMessage) -> Result:
        assert self._offered is not None, "a consumer without a handler"
        done: asyncio.Future[Result] = self.shell.future()  # type: ignore[assignment]  # the loop's
        self._offered.append((message, done))
        self._arrived.give()
        return await done

    async def __aiter__(self) -> AsyncGenerator[PoppedMessage, None]:
        """Yield messages until `stop`; each is acknowledged when the next one is asked for.

        Raises
        ------
        DeltaMQError
            The service refuses this consumer for good.
        """
        async for message, acknowledge in self.offered():
            yield message
            acknowledge()

    async def offered(self) -> AsyncGenerator[tuple[PoppedMessage, Callable[[], None]], None]:
        """Yield messages until `stop`, each with what acknowledges it, at any time before the consumer closes.

        Raises
        ------
        DeltaMQError
            The service refuses this consumer for good.
        """
        if self._offered is None:
            raise Refused("this consumer has a handler: await run()", code="has_handler", field="handler")
        await self._start()
        while not self._stopped.is_set:
            if not self._offered:
                await self._arrived.wait(_LOOK_S)
                continue
            message, done = self._offered.popleft()
            yield message, partial(_acknowledge, done)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Make `run` end, and `async for`; returns at once."""
        super().stop()
        self._arrived.give()

    async def _close(self, timeout_s: float) -> ConsumerClosed:
        # Nobody takes what was offered any more.
        return await super()._close(timeout_s if self._offered is None else 0.0)


def _acknowledge(done: asyncio.Future[Result]) -> None:
    if not done.done():  # it comes again anyway if the consumer has closed
        done.set_result(Result.OK)
