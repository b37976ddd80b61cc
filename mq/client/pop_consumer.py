"""The consumer of a group: pops messages, calls a handler, and answers for each of them (SPEC CONS, POP).

    def handle(message):
        book(message.text)                      # returns: done. Raises: again later.

    with PopConsumer("http://127.0.0.1:8080", "billing", "orders", handle, concurrency=8) as consumer:
        consumer.run()                          # until stop() or a refusal

Any number of consumers share a group; they come and go without stopping each other (CONS-5). Every message is delivered
at least once: again when its handler fails, when its consumer dies, or when nobody answers for it within its invisible
time. While a handler runs, its message is renewed.

    pollers (one for each topic) ──► handlers (`concurrency`) ──► settler ──► acknowledgements
                                         └── renewer: half of the invisible time is over ──► a new handle
"""

from __future__ import annotations

import logging
import queue
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self

from mq.client.attempts import Patience
from mq.client.consumer_settings import check_handler, check_settings, checked_topics
from mq.client.consumer_stats import ConsumerCounters, ConsumerStats
from mq.client.group_order import GroupOrder
from mq.client.handler import After, Before, Handler, Handling
from mq.client.lease import Leases, Release
from mq.client.poller import Poller, Popping
from mq.client.pop_client import PopClient
from mq.client.popped import PopBatch, PopTable
from mq.client.renewer import Renewer
from mq.client.result import Result
from mq.client.settler import Settler
from mq.client.slots import Slots
from mq.client.work import Work, leases_of, works_of
from mq.client.workers import Workers
from mq.errors import DeltaMQError, Refused
from mq.group_settings import Ordering
from mq.queue_limits import POP_MESSAGES_MAX

__all__ = ["ConsumerClosed", "PopConsumer"]

log = logging.getLogger("deltamq.client")

_CLOSE_TIMEOUT_S: Final = 30.0
#: How long a pop that was called off may take to end by itself.
_CANCEL_S: Final = 2.0
_MESSAGES_DEFAULT: Final = 32

_handling = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerClosed:
    """What a consumer left behind when it closed.

    `unfinished` messages were given back while their handlers still ran; for `untold` ones the service does not know
    the outcome: they are delivered again when their invisible time ends.
    """

    unfinished: int
    untold: int

    def __bool__(self) -> bool:
        """Whether everything was finished and told."""
        return self.unfinished == 0 and self.untold == 0


class PopConsumer:
    """Takes messages of `topics` for `group` and calls `handler` with them.

    Parameters
    ----------
    url, group, topics
        The service, the group, and one topic or several.
    handler
        Gets a `PoppedMessage`. Returns None or `Result.OK` when it is done with it, `Result.RETRY`,
        `Result.RETRY(delay_ms)` or `Result.DEAD(reason)`; an exception is `Result.RETRY`. With `batch_messages` it gets
        a list of messages, with `format="arrow"` an Arrow table with the columns `partition`, `handle` and
        `delivery_attempt`; it then returns one result for all, or a list with one for each.
    concurrency
        How many handlers run at once, each in a thread of its own.
    batch_messages, format
        Hand over batches of up to so many messages (1,024 at most), as `messages` or as `arrow`.
    prefetch
        How many more messages (or batches) may be taken than handlers are free; they wait here, and are renewed.
    max_messages
        How many one pop takes at most. With `order=True` 1 by default: of several, those behind one that fails come
        again with it, and count an attempt.
    invisible_ms
        How long others do not see a message that is taken here; by default what the group's settings say.
    wait_ms
        How long a pop waits at the service for the first message.
    tags
        `*`, or `TagA||TagB`: other messages count as consumed.
    order
        True: messages of a partition one after another (POP-16); `"key"`: those of a key (POP-17); False: no order.
        By default what the group's settings say when the consumer begins.
    retry
        `only`: take nothing but messages that are delivered again; of an exclusive group there is nothing else to pop.
    renew_for_s
        Renew a message at most so long; then it is delivered again though its handler still runs. None: for ever.
    ack_within_ms
        How long an acknowledgement may wait for the next pop to carry it; ordered consumers do not wait.
    before, after
        Hooks: `before(message)` and `after(message, results, error)`, or with the batch; they only look on.
    patience
        How the waits grow while the service is away; a consumer never gives up.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        group: str,
        topics: str | Sequence[str],
        handler: Handler,
        *,
        concurrency: int = 8,
        batch_messages: int | None = None,
        format: Literal["messages", "arrow"] = "messages",
        prefetch: int = 0,
        max_messages: int | None = None,
        invisible_ms: int | None = None,
        wait_ms: int = 15_000,
        tags: str = "*",
        order: Ordering | None = None,
        retry: Literal["only"] | None = None,
        renew_for_s: float | None = None,
        ack_within_ms: float = 50.0,
        client_id: str | None = None,
        before: Before | None = None,
        after: After | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.topics = checked_topics(topics)
        check_handler(handler)
        check_settings(
            concurrency=concurrency, prefetch=prefetch, batch_messages=batch_messages, format=format, order=order
        )
        self.client_id = client_id if client_id is not None else f"pop-{uuid.uuid4().hex[:16]}"
        self._client = PopClient(
            url, group, client_id=self.client_id, token=token, ssl_context=ssl_context, patience=patience
        )
        self.group = self._client.group
        self._counters = ConsumerCounters()
        self._handling = Handling(handler, self._counters, before, after)
        self._settler = Settler(self._client, ack_within_ms=ack_within_ms)
        self._leases = Leases(self._settler.put, renew_for_s=renew_for_s)
        self._renewer = Renewer(self._client, self._leases)
        # A waiting pop of each further topic holds a slot beside those of the handlers.
        self._slots = Slots(concurrency + prefetch + len(self.topics) - 1)
        self._workers = Workers(concurrency, "deltamq-handler")
        self._batch = batch_messages is not None or format == "arrow"
        self._order = order
        self._max_messages = batch_messages or max_messages
        ask = self._client.ask(
            self.topics[0],
            self._max_messages or 1,
            invisible_ms=invisible_ms,
            wait_ms=wait_ms,
            tags=tags,
            order=order,
            retry=retry,
        )
        self._ask = replace(ask, arrow=format == "arrow")
        self._pollers: list[Poller] = []
        self._lock = threading.Lock()
        #: Pieces that wait for a handler.
        self._queued: dict[Work, None] = {}
        self._threads: list[threading.Thread] = []
        self._helpers: list[threading.Thread] = []
        self._closing = False
        self._closed: ConsumerClosed | None = None
        self._ending = threading.Event()
        #: Not an event: a signal's handler may put into it, whatever it interrupted.
        self._stop: queue.SimpleQueue[None] = queue.SimpleQueue()
        #: Why the service refuses this consumer for good.
        self.error: DeltaMQError | None = None

    # Life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to consume, in threads of its own; once started, it goes on until `close`."""
        with self._lock:
            if self._closing:
                raise Refused("the consumer is closed; make another one", code="consumer_closed")
            if self._threads:
                return
            self._threads = [self._thread("deltamq-poller", self._poll)]
            self._helpers = [
                self._thread("deltamq-settler", self._settler.run),
                self._thread("deltamq-renewer", self._renewer.run),
            ]
            for thread in (*self._helpers, *self._threads):
                thread.start()

    def run(self) -> None:
        """Consume until `stop` is called (from a handler, another thread, a signal's handler), then close.

        Raises
        ------
        DeltaMQError
            When the service refuses this consumer for good: what it asks for is wrong, or not allowed.
        """
        self.start()
        self._stop.get()
        self.close()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Let `run` end; returns at once."""
        self._stop.put(None)

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> ConsumerClosed:
        """Take nothing more, let running handlers end for at most `timeout_s`, and give back what is left.

        What was not begun, and what is not finished in time, is released: others of the group get it at once. While
        the service is away, one request's time may be added. Closing twice is harmless.
        """
        if getattr(_handling, "active", False):
            raise Refused("close() waits for handlers: call stop() in a handler", code="close_in_handler")
        deadline = time.monotonic() + timeout_s
        with self._lock:
            if self._closed is not None:
                return self._closed
            self._closing = True
            queued = list(self._queued)
            self._queued.clear()
        self._ending.set()
        self.stop()
        self._slots.close()
        for work in queued:
            self._release(work)
        self._end_pollers()
        self._slots.wait_all(deadline - time.monotonic())
        unfinished = self._leases.live()
        if unfinished:
            log.warning("event=handlers_unfinished count=%d first=%s", len(unfinished), unfinished[0].place)
        self._counters.add(released=len(unfinished))
        self._leases.finish(unfinished, Release())
        self._closed = ConsumerClosed(unfinished=len(unfinished), untold=self._end_helpers(deadline))
        self._workers.close()
        self._client.close()
        return self._closed

    def _end_pollers(self) -> None:
        for poller in self._pollers:
            poller.cancel()
        if not self._joined():
            for poller in self._pollers:
                poller.abort()
            self._joined()

    def _joined(self) -> bool:
        """Wait for the threads that pop, for a while; whether all have ended."""
        deadline = time.monotonic() + _CANCEL_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _end_helpers(self, deadline: float) -> int:
        """Tell what is left to tell; returns what could not be told."""
        self._leases.close()
        request_s = self._client.patience.request_timeout_s
        until = max(deadline, time.monotonic() + request_s)
        self._settler.drain(until)
        for helper in self._helpers:
            helper.join(until + request_s - time.monotonic())
        return self._settler.untold

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None and self.error is not None:
            raise self.error

    # Looking ----------------------------------------------------------------------------------------------------

    def stats(self) -> ConsumerStats:
        """What this consumer does (SPEC CONS-6)."""
        return self._counters.read(
            expired=self._settler.expired + self._leases.lost, renewals=self._renewer.renewed, held=len(self._leases)
        )

    # Inside -----------------------------------------------------------------------------------------------------

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """A thread whose failure ends the consumer: it must not look alive while nothing is popped or told."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                log.exception("event=consumer_failed thread=%s", name)
                self._fail(DeltaMQError(f"{name} failed: {error}", code="consumer_failed"))

        return threading.Thread(target=run, name=name, daemon=True)

    def _poll(self) -> None:
        """Find out how the group wants its messages, then pop each topic in a thread of its own."""
        order = self._order
        if order is None:
            order = GroupOrder(self._client, self._ending).ask(self._fail)
            if order is None:
                return
        pollers = [self._poller(topic, order) for topic in self.topics]
        if order:
            # What is in order waits for each acknowledgement.
            self._settler.ack_within_s = 0.0
        threads = [self._thread("deltamq-poller", one.run) for one in pollers]
        with self._lock:
            if self._closing:
                return
            self._pollers += pollers
            self._threads += threads
            for thread in threads:
                thread.start()

    def _poller(self, topic: str, order: Ordering) -> Poller:
        """The poller of one topic; how it pops follows from the order."""
        in_order = order is True
        if self._batch:
            most = self._max_messages or POP_MESSAGES_MAX
        else:
            most = self._max_messages or (1 if in_order else _MESSAGES_DEFAULT)
        popping = Popping(
            ask=replace(self._ask, topic=topic, order=order, max_messages=most),
            whole=self._batch or in_order,
            alone=len(self.topics) == 1,
            deliver=partial(self._deliver, topic, in_order),
            fail=self._fail,
            count=self._count_pop,
        )
        return Poller(self._client, popping, self._slots, self._settler)

    def _fail(self, error: DeltaMQError) -> None:
        """There is no going on: end, and let `run` say why."""
        log.error("event=consumer_ends group=%s code=%s detail=%s", self.group, error.code, error.detail)
        self.error = self.error or error
        self.stop()

    def _count_pop(self, answered: bool) -> None:
        self._counters.add(**{"pops" if answered else "failed_pops": 1})

    def _deliver(self, topic: str, in_order: bool, found: PopBatch | PopTable, slots: int) -> None:
        leases = leases_of(topic, found)
        self._counters.add(received=len(leases))
        self._leases.hold(leases)
        works = works_of(found, leases, slots, batch=self._batch, in_order=in_order)
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

    def _begin(self, work: Work) -> None:
        """Handle a piece, unless it was given back while it waited."""
        with self._lock:
            if work not in self._queued:
                return
            del self._queued[work]
        _handling.active = True
        try:
            self._handle(work)
        finally:
            _handling.active = False
            self._slots.give_back(work.ticket.done())

    def _handle(self, work: Work) -> None:
        """Call the handler with each message or with the whole; after a failure the rest of a run goes back."""
        if work.batch:
            self._handle_batch(work)
            return
        for at, lease in enumerate(work.leases):
            if self._closing or not self._leases.is_valid(lease):
                self._give_back(work, at)
                return
            (result,) = self._handling.run(work.subject(at), 1, lease.place)
            self._leases.finish((lease,), result)
            if result != Result.OK:
                self._give_back(work, at + 1)
                return

    def _handle_batch(self, work: Work) -> None:
        first = work.leases[0]
        if self._closing or not self._leases.is_valid(first):
            self._give_back(work, 0)
            return
        results = self._handling.run(work.subject(0), len(work.leases), first.place)
        for lease, result in zip(work.leases, results, strict=True):
            self._leases.finish((lease,), result)

    def _give_back(self, work: Work, start: int) -> None:
        """Release the messages from `start` on, unhandled."""
        rest = work.leases[start:]
        self._counters.add(released=len(rest))
        self._leases.finish(rest, Release())

    def _release(self, work: Work) -> None:
        self._give_back(work, 0)
        self._slots.give_back(work.ticket.done())
