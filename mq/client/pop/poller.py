"""Pops one topic for a consumer, while handlers are free.

    free slots ──► pop (carries acknowledgements, waits at the service) ──► messages ──► handlers ──► free slots

A pop in order has an `attempt_id`, and is repeated with it until it has an answer: so a lost answer does not hold a
partition, or a key, for an invisible time (POP-20).

With several topics, a pop that would wait holds one slot only, so that a quiet topic does not keep handlers from a
busy one.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from deltamq.mq.backoff import Backoff
from deltamq.mq.client.http.endpoint import Endpoint
from deltamq.mq.client.http.retries import is_worth_retrying
from deltamq.mq.client.messages.received import PopBatch, PopTable
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.client.pop.connection import PopConnection
from deltamq.mq.client.pop.settler import Settler
from deltamq.mq.client.pop.slots import Slots
from deltamq.mq.client.pop.wire import PopAsk, parse_batch, parse_table
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound

log = logging.getLogger("deltamq.client")

#: Pauses after empty pops that returned although they were to wait: 5 ms, 10, 20, ... at most a second.
_PAUSE_S: Final = Backoff(0.005, 1.0)
#: A pop that waited for less than this fraction of its wait time counts as one that did not wait.
_WAITED: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Popping:
    """How a consumer pops one topic: the request, and the callbacks for answers and errors."""

    ask: PopAsk
    #: Whether one pop is work for one handler: a batch, or runs in order.
    whole: bool
    #: Whether this is the only poller; then a waiting pop keeps no handlers from others.
    alone: bool
    deliver: Callable[[PopBatch | PopTable, int], None]
    fail: Callable[[DeltaMQError], None]
    count: Callable[[bool], None]


class Poller:
    """Pops one topic, in the thread that calls `run`, until `cancel`."""

    def __init__(
        self, client: PopClient, popping: Popping, slots: Slots, settler: Settler, endpoint: Endpoint | None = None
    ) -> None:
        """Prepare pops at `endpoint`, or at any host of the cluster if it is None."""
        self._popping = popping
        self._patience = client.patience
        self._slots = slots
        self._settler = settler
        self._connection = PopConnection(client.hosts, client.patience.request_timeout_s, endpoint)
        self._stop = threading.Event()
        self._failures = 0
        self._pauses = 0
        #: The id of the pop in order that has no answer yet.
        self._attempt_id: str | None = None
        #: Whether the last pop brought messages; then the next one does not wait.
        self._flowing = True

    def run(self) -> None:
        """Pop until the slots are closed, or the service refuses for good."""
        while not self._stop.is_set():
            ask = self._popping.ask
            waits = self._popping.alone or self._popping.whole or not self._flowing
            sparing = self._popping.whole or (waits and not self._popping.alone)
            taken = self._slots.take(1 if sparing else ask.max_messages)
            if taken == 0:
                break
            self._pop(
                replace(
                    ask,
                    max_messages=ask.max_messages if self._popping.whole else taken,
                    wait_ms=ask.wait_ms if waits else 0,
                ),
                taken,
            )
        self._connection.close()

    def _pop(self, ask: PopAsk, slots: int) -> None:
        acks = self._settler.take_acks(ask.topic)
        if acks:
            ask = replace(ask, ack=[lease.handle for lease in acks])
        ask = replace(ask, attempt_id=self._attempt_id).repeatable()
        self._attempt_id = ask.attempt_id
        began = time.monotonic()
        try:
            answer = self._connection.pop(ask)
            found = parse_table(answer.headers, answer.body) if ask.arrow else parse_batch(ask.topic, answer.body)
        except DeltaMQError as error:
            self._slots.give_back(slots)
            self._settler.not_carried(acks)
            self._failed(error)
            return
        self._settler.carried(acks, found.failed_acks)
        self._attempt_id = None
        self._failures = 0
        self._popping.count(True)
        if _count(found):
            self._flowing = True
            self._pauses = 0
            self._popping.deliver(found, slots)
            return
        self._slots.give_back(slots)
        self._flowing = False
        self._pause(ask.wait_ms / 1000, time.monotonic() - began)

    def _pause(self, asked_s: float, waited_s: float) -> None:
        """Pause after an empty pop that the service answered at once."""
        if asked_s == 0 and not self._popping.alone and not self._popping.whole:
            return
        if asked_s > 0 and waited_s >= asked_s * _WAITED:
            self._pauses = 0
            return
        self._pauses += 1
        self._stop.wait(_PAUSE_S.after(self._pauses))

    def _failed(self, error: DeltaMQError) -> None:
        if self._stop.is_set():
            return
        self._popping.count(False)
        # Not final: the topic may be created later, and messages popped in another order be settled. So may the group
        # of a pop that creates none: an ordered consumer makes a group that was deleted anew.
        codes = ("topic_not_found",) if self._popping.ask.retry is None else ("topic_not_found", "group_not_found")
        missing = isinstance(error, NotFound) and error.code in codes
        if not (missing or isinstance(error, Conflict) or is_worth_retrying(error)):
            self._popping.fail(error)
            self._stop.set()
            return
        self._failures += 1
        wait_s = self._patience.wait_s(self._failures, random.random(), error)
        log.warning(
            "event=pop_failed topic=%s code=%s again_s=%.3f detail=%s",
            self._popping.ask.topic,
            error.code,
            wait_s,
            error.detail,
        )
        self._stop.wait(wait_s)

    def close(self) -> None:
        """Close the connection of a poller that does not run."""
        self._connection.close()

    def cancel(self) -> None:
        """Stop popping, and cancel the open pop."""
        self._stop.set()
        self._connection.cancel()

    def abort(self) -> None:
        """Stop without waiting for the answer of the open pop."""
        self._connection.abort()


def _count(found: PopBatch | PopTable) -> int:
    return len(found.messages) if isinstance(found, PopBatch) else len(found.rows)
