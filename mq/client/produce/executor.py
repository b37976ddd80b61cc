"""One executor for each topic, partition and broker: sends in order, one request in flight (SPEC SEND-1, SEND-2).

    put ──► queue ──► batch ──► request (producer id, seq) ──► answer ──► futures
              ▲         entries put while a request is             │
              └──────── in flight become the next batch ◄──────────┘

An executor has no thread or task of its own. A `put` that finds it idle starts a turn in the producer's workers. With
threads, a waiting `send` runs the turn itself, so that a lone producer pays for no thread switch.

Each request takes the next sequence of the executor's producer id, and no sequence is used for two requests. So a late
copy of a request whose outcome was unknown is out of order, and the service refuses it.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, Protocol

from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.http.retries import AfterFailure, Attempts, certainly_not_applied, is_worth_retrying, judge
from deltamq.mq.client.messages.message import Message, Sent, SentRange
from deltamq.mq.client.produce.entry import (
    Entry,
    EntryQueue,
    outcome_unknown,
    producer_closed,
    sending_stopped,
    timed_out_in_queue,
)
from deltamq.mq.client.produce.shared import Shared
from deltamq.mq.client.produce.wire import EncodedRequest, encode_request, read_ranges, tell_stored
from deltamq.mq.client.shells.first_array import before_arrays
from deltamq.mq.client.shells.shell import Answer, Inside, Outcome
from deltamq.mq.errors import NOT_WRITABLE, DeltaMQError, Fenced, Overloaded, Refused, Unknown

log = logging.getLogger("deltamq.client")

#: Active in threads that complete futures: callbacks run there, and a send that waited in one would wait for itself.
completing: Final = Inside("deltamq-completing")
_UNTRACED: Final = nullcontext()
#: Number of messages that wait for one request before those without a key go elsewhere.
_GATHERED_MAX: Final = 1_000


class Failing(enum.Enum):
    """The reaction of an executor to a batch that was not stored."""

    GO_ON = "go on"  #: best tried: the next batch follows
    STOP_UNRESOLVED = "stop unresolved"  #: strict: an unresolved batch stops it, a refused one does not
    STOP = "stop"  #: any failure stops it, since a resumed send repeats the same sequences


def _calls(batch: list[Entry]) -> int:
    return sum(entry.calls for entry in batch)


class Owner(Protocol):
    """The owner of a topic's executors, which decides what one executor cannot."""

    def wrong_route(self, executor: Executor, entries: list[Entry], error: DeltaMQError) -> None:
        """Handle entries whose partition or topic does not exist; none of `entries` is stored."""

    def another_partition(self, executor: Executor, entries: list[Entry]) -> bool:
        """Move keyless `entries` to a partition on a healthier broker; returns False if there is none (SEND-2)."""

    async def batch_sent(self, executor: Executor, *, elsewhere: bool) -> None:
        """Note a stored batch; `elsewhere`: the route is out of date, since keys or a logical queue have moved."""

    def attempt_failed(self, executor: Executor) -> None:
        """Note a failed attempt that is retried: the logical queue may have moved to another broker."""

    def drained(self, executor: Executor) -> None:
        """Note that a retired executor has nothing left to do."""


class Executor:
    """Sends the messages of one partition; with a partition of None, the service chooses the partition."""

    def __init__(
        self,
        topic: str,
        partition: str | None,
        shared: Shared,
        owner: Owner,
        *,
        broker: str = "",
        failing: Failing = Failing.GO_ON,
        producer_id: str | None = None,
        producer_seq: int = 0,
        held: bool = False,
    ) -> None:
        self.partition = partition
        #: The broker to whose host requests go, empty if unknown; a logical queue that moves changes it.
        self.broker = broker
        self.failing = failing
        #: For how many seconds the topic lets messages wait for others that share their commit: answers take longer.
        self.commit_window_s = 0.0
        self._path = path_of("topics", topic, "messages")
        self._shared = shared
        self._owner = owner
        #: Guards the queue and what follows; notified when entries arrive while a batch lingers.
        self._arrived = shared.shell.condition()
        self._queue = EntryQueue(
            messages_max=shared.settings.batch_messages_max, bytes_max=shared.settings.batch_bytes_max
        )
        self._gathered_max = min(_GATHERED_MAX, shared.settings.batch_messages_max)
        self._busy = False
        self._lingering = False
        self._held = held
        self._retired = False
        #: Makes the error that every new entry gets, once this executor has stopped or the producer is closed.
        self._refusing: Callable[[], DeltaMQError] | None = None
        #: The batch whose outcome is not reported yet.
        self._in_flight: list[Entry] = []
        self._producer_id = producer_id if producer_id is not None else shared.new_id()
        self._producer_seq = producer_seq

    @property
    def gathers(self) -> bool:
        """Whether messages wait here for their request, and it has room for more."""
        return 0 < self._queue.messages < self._gathered_max

    # Queueing ---------------------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> bool:
        """Queue `entry`; returns False if this executor is retired and the caller must find another."""
        with self._arrived.lock:
            if not self._takes():
                return False
            self._queue.append(entry)
            if not self._begins():
                return True
        self._shared.workers.submit(self._run)
        return True

    def gather(self, message: Message, size: int, deadline: float, future: Outcome[Sent] | None) -> bool:
        """Queue one message that nobody withdraws; returns False as `put` does."""
        born_us = time.time_ns() // 1000
        with self._arrived.lock:
            if not self._takes():
                return False
            self._queue.gather(message, size, deadline, future, born_us)
            if not self._begins():
                return True
        self._shared.workers.submit(self._run)
        return True

    async def put_here(self, entry: Entry) -> bool:
        """Queue `entry` as `put` does; if the executor is idle the caller runs the turn, until the future is done."""
        with self._arrived.lock:
            if not self._takes():
                return False
            self._queue.append(entry)
            if not self._begins():
                return True
        await self._run(entry.futures[0])
        return True

    def _takes(self) -> bool:
        if self._refusing is not None:
            raise self._refusing()
        return not self._retired

    def _begins(self) -> bool:
        """Return whether a turn must begin, now that something is queued."""
        if self._busy or self._held:
            if self._lingering:
                self._arrived.notify()
            return False
        self._busy = True
        return True

    def withdraw(self, entry: Entry) -> bool:
        """Fail `entry` as not sent if it is still queued; returns False if it is in flight or resolved already."""
        with self._arrived.lock:
            if not self._queue.remove(entry):
                return False
        self.fail([entry], timed_out_in_queue())
        return True

    def hold(self) -> None:
        """Start no further batch until `release`."""
        with self._arrived.lock:
            self._held = True

    def release(self) -> None:
        """End a `hold`."""
        with self._arrived.lock:
            self._held = False
            if self._busy or not self._queue:
                return
            self._busy = True
        self._shared.workers.submit(self._run)

    def retire(self) -> bool:
        """Take no more entries; queued ones are still sent, then the owner's `drained` is called.

        Returns False if nothing is left to do; then `drained` is not called.
        """
        with self._arrived.lock:
            self._retired = True
            return self._busy or bool(self._queue)

    def take_over(self) -> list[Entry]:
        """Retire, and return the queued entries."""
        with self._arrived.lock:
            self._retired = True
            return self._queue.take_all()

    def restart(self) -> None:
        """Accept new messages again after a stop."""
        with self._arrived.lock:
            self._refusing = None

    def abandon(self) -> int:
        """Fail all queued messages, because the producer closes; returns their number."""
        entries = self.take_over()
        with self._arrived.lock:
            self._refusing = producer_closed
        self.fail(entries, producer_closed())
        return sum(entry.count for entry in entries)

    # A turn -----------------------------------------------------------------------------------------------------

    async def _run(self, until: Outcome[Any] | None = None) -> None:
        """Send batch after batch, until `until` is done or the queue is empty."""
        try:
            await self._take_turn(until)
        except BaseException:
            # Ctrl-C in a waiting send, or a bug: the batch in flight is unknown, queued entries are still sent.
            interrupted, self._in_flight = self._in_flight, []
            self.fail(interrupted, Unknown("the send was interrupted; the outcome is not known"))
            self._hand_over()
            raise

    async def _take_turn(self, until: Outcome[Any] | None) -> None:
        linger_s = 0.0 if until is not None else self._shared.settings.linger_ms / 1000
        while True:
            batch, expired = await self._next_batch(linger_s)
            self.fail(expired, timed_out_in_queue())
            if batch:
                await self._send(batch)
            elif not expired:
                return
            if until is not None and until.done():
                self._hand_over()
                return

    def _hand_over(self) -> None:
        """End the turn of a waiting send; the workers send what was queued meanwhile."""
        with self._arrived.lock:
            if not self._queue and not self._retired:
                self._busy = False
                return
        self._shared.workers.submit(self._run)

    async def _next_batch(self, linger_s: float) -> tuple[list[Entry], list[Entry]]:
        """Return the entries of the next request and the expired ones; if both are empty, the turn is over."""
        if linger_s:
            with self._arrived.lock:
                self._lingering = bool(self._queue) and not self._held
            if self._lingering:
                await self._arrived.until(self._queue.is_due, linger_s)
        with self._arrived.lock:
            self._lingering = False
            expired = self._queue.take_expired(self._shared.shell.now())
            if self._queue and not self._held:
                return self._queue.take_batch(), expired
            if expired:
                return [], expired
            self._busy = False
            drained = self._retired and not self._queue
        if drained:
            self._owner.drained(self)
        return [], []

    # A request --------------------------------------------------------------------------------------------------

    async def _send(self, batch: list[Entry]) -> None:
        self._in_flight = batch
        if len(batch) > 1 or batch[0].count > 1:
            await before_arrays(self._shared.shell)
        try:
            request = self._request(batch, self._named(batch))
        except (ValueError, TypeError, OverflowError) as cause:
            error = Refused(f"a message cannot be encoded: {cause}", code="invalid_message", field="message")
            error.__cause__ = cause
            self._give_up(batch, error, AfterFailure.SPLIT if _calls(batch) > 1 else AfterFailure.FAIL)
            return
        await self._attempt(batch, request)

    def _request(self, batch: list[Entry], partition: str | None) -> EncodedRequest:
        """Take the next sequence, and return the request of a batch under it."""
        request = encode_request(
            batch, partition=partition, producer_id=self._producer_id, producer_seq=self._producer_seq
        )
        self._producer_seq += 1
        return request

    def _named(self, batch: list[Entry]) -> str | None:
        """Return the partition that the request names; None lets the service route it.

        Only the service knows for certain where a key goes: the topic may be expanded at any time (SPEC ROUTE-6).
        """
        return None if any(entry.routed_by_key for entry in batch) else self.partition

    async def _attempt(self, batch: list[Entry], request: EncodedRequest) -> None:
        attempts = self._attempts(batch)
        uncertain = False
        while True:
            try:
                # A request of several traced messages belongs to the first one's span.
                with _UNTRACED if batch[0].span is None else batch[0].span.current():
                    ranges = await self._post(request, attempts.timeout_s(self.commit_window_s))
            except DeltaMQError as error:
                uncertain = uncertain or not certainly_not_applied(error)
                may_go_on = is_worth_retrying(error) and await attempts.may_go_on(error)
                step = judge(error, uncertain=uncertain, calls=_calls(batch), may_go_on=may_go_on)
                if step is not AfterFailure.RETRY:
                    self._give_up(batch, error, step)
                    return
                if not uncertain and self._moved(batch, error, attempts.failures):
                    return
                if not uncertain and self._may_go_elsewhere(batch, error):
                    request = self._request(batch, None)
                self._shared.counters.add(retries=1)
                self._owner.attempt_failed(self)
                log.info(
                    "event=send_retried partition=%s failures=%d code=%s",
                    self.partition,
                    attempts.failures,
                    error.code,
                )
            else:
                await self._stored(batch, ranges)
                return

    def _attempts(self, batch: list[Entry]) -> Attempts:
        patience = self._shared.settings.patience
        return Attempts(
            patience,
            shell=self._shared.shell,
            deadline=max(entry.deadline for entry in batch),
            # Strict: to the same partition until the caller's deadline, without a limit of retries (SEND-2).
            retries=None if self.failing is Failing.STOP_UNRESOLVED else patience.retries,
            stop=self._shared.stop,
            failures=max(entry.failures for entry in batch),
        )

    async def _post(self, request: EncodedRequest, timeout_s: float) -> list[SentRange]:
        began = self._shared.shell.now()
        broker = self.broker
        try:
            answer: Answer = await self._shared.hosts.call(
                "POST",
                self._path,
                role=broker or None,
                query=request.query,
                headers=request.headers,
                body=request.body,
                timeout_s=timeout_s,
            )
            ranges = read_ranges(answer.body, request.count)
        except DeltaMQError as error:
            if is_worth_retrying(error):
                now = self._shared.shell.now()
                self._shared.health.failed(broker, now - began, now)
            raise
        finally:
            self._shared.counters.add(requests=1)
        now = self._shared.shell.now()
        self._shared.health.answered(broker, now - began - self.commit_window_s, now)
        return ranges

    def _moved(self, batch: list[Entry], error: DeltaMQError, failures: int) -> bool:
        """Move a keyless batch that is not stored to a healthier broker, if there is one (SEND-2, SEND-4)."""
        if self.failing is not Failing.GO_ON or not isinstance(error, (Overloaded, Fenced)):
            return False
        if not all(entry.keyless for entry in batch):
            return False
        for entry in batch:
            entry.failures = failures
        if not self._owner.another_partition(self, batch):
            return False
        self._in_flight = []
        return True

    def _may_go_elsewhere(self, batch: list[Entry], error: DeltaMQError) -> bool:
        """Return whether the service may choose another partition, since this one is closed (SPEC ROUTE-9)."""
        is_free = self.failing is Failing.GO_ON and not any(entry.named for entry in batch)
        return is_free and error.code == NOT_WRITABLE

    # The end of a batch -----------------------------------------------------------------------------------------

    async def _stored(self, batch: list[Entry], ranges: list[SentRange]) -> None:
        self._in_flight = []
        try:
            with completing:
                tell_stored(batch, ranges)
        finally:
            messages = sum(entry.count for entry in batch)
            self._shared.counters.add(sent=messages)
            self._shared.buffer.give_back(sum(entry.size for entry in batch), messages)
        moved = self.partition is not None and any(
            (r.partition != self.partition and not r.delayed) or r.is_undecided for r in ranges
        )
        await self._owner.batch_sent(self, elsewhere=moved)

    def _give_up(self, batch: list[Entry], error: DeltaMQError, step: AfterFailure) -> None:
        self._in_flight = []
        if step is AfterFailure.SPLIT:
            with self._arrived.lock:
                self._queue.put_back(batch)
            return
        if step is AfterFailure.REROUTE and self.failing is not Failing.STOP:
            self._owner.wrong_route(self, batch, error)
            return
        if step is AfterFailure.UNKNOWN:
            error = outcome_unknown(error)
        refused = step is AfterFailure.FAIL and isinstance(error, Refused)
        if self.failing is Failing.STOP or (self.failing is Failing.STOP_UNRESOLVED and not refused):
            self._stop(error)
        self.fail(batch, error)

    def _stop(self, error: DeltaMQError) -> None:
        stopped = partial(sending_stopped, self.partition, error)
        with self._arrived.lock:
            self._refusing = stopped
            queued = self._queue.take_all()
        self.fail(queued, stopped())

    def fail(self, entries: list[Entry], error: DeltaMQError) -> None:
        """Resolve `entries` with `error`: their messages are refused or unknown."""
        if not entries:
            return
        messages = sum(entry.count for entry in entries)
        lost = sum(entry.futures.count(None) for entry in entries)
        if lost:
            log.warning("event=oneway_lost partition=%s messages=%d code=%s", self.partition, lost, error.code)
        try:
            with completing:
                for entry in entries:
                    entry.failed(error)
        finally:
            outcome = {"unknown" if isinstance(error, Unknown) else "refused": messages}
            self._shared.counters.add(**outcome, oneway_lost=lost)
            self._shared.buffer.give_back(sum(entry.size for entry in entries), messages)
