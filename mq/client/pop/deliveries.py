"""Popped messages on their way through the handlers: waiting, being handled, or released.

pop ──► pieces of work ──► waiting for a thread ──► handler ──► outcome of each message
                                  └── the consumer closes: released unhandled
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Final

from deltamq.mq.client.http.workers import Inside, Workers
from deltamq.mq.client.messages.received import PopBatch, PopTable, Result
from deltamq.mq.client.pop.consumer_stats import ConsumerCounters
from deltamq.mq.client.pop.handler import Handling
from deltamq.mq.client.pop.lease import Leases, Release
from deltamq.mq.client.pop.slots import Slots
from deltamq.mq.client.pop.work import Work, leases_of, works_of

#: Active in the threads that run a handler.
in_handler: Final = Inside()


class Deliveries:
    """The pieces of work of one consumer. Safe for any number of threads."""

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
        self._workers = Workers(concurrency, "deltamq-handler")
        self._lock = threading.Lock()
        #: Pieces that wait for a handler.
        self._queued: dict[Work, None] = {}
        self._closing = False

    def deliver(self, topic: str, in_order: bool, found: PopBatch | PopTable, slots: int) -> None:
        """Queue the messages of a pop for the handlers; the pop holds this number of slots."""
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
        """Handle a piece, unless it was released while it waited."""
        with self._lock:
            if work not in self._queued:
                return
            del self._queued[work]
        try:
            with in_handler:
                self._handle(work)
        finally:
            self._slots.give_back(work.ticket.done())

    def _handle(self, work: Work) -> None:
        """Call the handler with each message, or with the batch; after a failure the rest of a run is released."""
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

    def close(self) -> None:
        """End the threads as they become idle."""
        self._workers.close()
