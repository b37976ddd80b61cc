"""The ordered consumer of an exclusive group: one client for each partition, one message at a time (SPEC ORDER, CONS).

    def listen(message):
        apply(message.key, message.text)
        return Verdict.SUCCESS                  # after anything else, or an exception: the same message again

    with OrderlyConsumer("http://127.0.0.1:8080", "ledger", "orders", listen) as consumer:
        consumer.run()                          # until stop() or a refusal

The service gives each partition to one client of the group. When clients join or leave, partitions move: the old client
finishes the message that it has begun, commits and releases the partition; then the new one begins. No message is
processed by both, unless the old client died: then the messages that it had not committed are processed again. A client
that is cut off from the service stops by itself before others begin.

The consumer also processes the group's retried messages: dead letters that were sent back to the group, messages that
clients moved there with `on_failure="retry_topic"`, and messages popped before the group was exclusive. They are out of
order: any client of the group gets them, one at a time, besides its partitions.

    heartbeats ──► allocation ──► locks ──► works ──► listeners (`concurrency` threads) ──► commits ──► release
"""

from __future__ import annotations

import logging
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal, Unpack

import msgspec

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.orderly.calls import OrderlyCalls
from deltamq.mq.client.orderly.commits import Commits
from deltamq.mq.client.orderly.fetches import FETCH_TIMEOUT_S, FETCHES_MAX
from deltamq.mq.client.orderly.heartbeats import Heartbeats
from deltamq.mq.client.orderly.listener import AfterVerdict, Listener, Listening, retries_of
from deltamq.mq.client.orderly.rights import Rights
from deltamq.mq.client.orderly.turns import FetchSize, Turns
from deltamq.mq.client.orderly.work import monotonic_ms
from deltamq.mq.client.pop.consumer import AsyncPopConsumer, PopConsumer
from deltamq.mq.client.pop.consumer_life import (
    ConsumerLife,
    OrderlyManner,
    check_async_handler,
    check_handler,
    checked_topics,
)
from deltamq.mq.client.pop.telemetry import CONSUME_TIMEOUT_S, ConsumerCounters, ConsumerStats
from deltamq.mq.client.pull.blocking_fetches import BlockingFetches
from deltamq.mq.client.pull.loop_fetches import LoopFetches
from deltamq.mq.client.shells.both import Awaiting, Blocking
from deltamq.mq.client.shells.shell import Running, Signal
from deltamq.mq.errors import Refused
from deltamq.mq.limits import AHEAD_MESSAGES_DEFAULT, MIB, RUN_MS_MAX, SUSPEND_MS_DEFAULT
from deltamq.mq.order.orderly import OrderlySettings
from deltamq.mq.wire.groups import SubscriptionRequest

log = logging.getLogger("deltamq.client")

#: Seconds that each thread may take to end after `close`.
_JOIN_S: Final = 2.0
_REQUESTS_MAX: Final = 32
#: Maximum time between two checks of the rights, in milliseconds.
_LOOK_MS: Final = 200


class OrderlyClosed(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer left undone when it closed.

    `unfinished` partitions had a listener running: its messages are not committed, and other clients process them
    again. `unreleased` locks were not released: their partitions go to other clients once this one counts as offline.
    """

    unfinished: int
    unreleased: int

    def __bool__(self) -> bool:
        """Return whether everything was finished and released."""
        return self.unfinished == 0 and self.unreleased == 0


class OrderlyConsumerCore(ConsumerLife[OrderlyClosed]):
    """What `OrderlyConsumer` and `AsyncOrderlyConsumer` have in common."""

    _fetches: ClassVar[type[BlockingFetches[Any]] | type[LoopFetches[Any]]]
    _retries_kind: ClassVar[type[PopConsumer] | type[AsyncPopConsumer]]

    def __init__(
        self,
        url: str | Sequence[str],
        group: str,
        topics: str | Sequence[str],
        listener: Listener,
        *,
        concurrency: int = 20,
        keys_in_parallel: int = 1,
        ahead_messages: int = AHEAD_MESSAGES_DEFAULT,
        autocommit: bool = True,
        batch_messages: int | None = None,
        on_failure: Literal["dead_letter", "retry_topic", "in_place"] = "dead_letter",
        max_attempts: int | None = None,
        suspend_ms: int = SUSPEND_MS_DEFAULT,
        turn_ms: int = RUN_MS_MAX,
        commit_ms: int = 200,
        tags: str = "*",
        filter: str | None = None,
        fetch_messages: int = 1_000,
        fetch_bytes: int = 4 * MIB,
        typed: bool = False,
        client_id: str | None = None,
        before: Callable[[Any], object] | None = None,
        after: AfterVerdict | None = None,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        patience: Patience | None = None,
        **access: Unpack[ClientAccess],
    ) -> None:
        self.topics = checked_topics(topics)
        self._check_listener(listener)
        self._manner = OrderlyManner(
            concurrency=concurrency,
            keys_in_parallel=keys_in_parallel,
            ahead_messages=ahead_messages,
            autocommit=autocommit,
            batch_messages=batch_messages,
            on_failure=on_failure,
            max_attempts=max_attempts,
            suspend_ms=suspend_ms,
            turn_ms=turn_ms,
            commit_ms=commit_ms,
        )
        self.client_id = client_id if client_id is not None else f"orderly-{uuid.uuid4().hex[:16]}"
        shell = self._make_shell()
        self._calls = OrderlyCalls(url, group, self.client_id, patience=patience, shell=shell, **access)
        super().__init__(self._calls.group, shell)
        self._group_attempts: int | None = None
        self._counters = ConsumerCounters()
        listening = Listening(
            self.shell,
            listener,
            self._counters,
            before,
            after,
            by_hand=not autocommit,
            consume_timeout_s=consume_timeout_s,
            tracing=self._calls.hosts.tracing,
            group=group,
        )
        size = FetchSize(messages=fetch_messages, bytes=fetch_bytes, typed=typed)
        wanted = SubscriptionRequest(order=True, tags=tags, filter=filter)
        self._build(dict.fromkeys(self.topics, wanted), listening, size)
        batches = batch_messages is not None
        retries = partial(retries_of, url, group, self.topics, listening, batches=batches, client_id=self.client_id)
        self._retries = retries(
            tags=tags, filter=filter, typed=typed, patience=patience, kind=self._retries_kind, **access
        )
        #: Whether the retried messages are being popped; guarded by the lock.
        self._retrying = False

    @staticmethod
    @abstractmethod
    def _check_listener(handler: object) -> None:
        """Refuse a listener that cannot be called."""

    def _build(self, topics: dict[str, SubscriptionRequest], listening: Listening, size: FetchSize) -> None:
        self._poked = Signal(self.shell)
        self._is_over = False
        self._requests = self.shell.workers(_REQUESTS_MAX, "deltamq-orderly")
        self._turns = Turns(
            self._calls,
            topics,
            listening,
            self._counters,
            self._fetches(open_max=FETCHES_MAX, timeout_s=FETCH_TIMEOUT_S),
            concurrency=self._manner.concurrency,
            keys_in_parallel=self._manner.keys_in_parallel,
            turn_ms=self._manner.turn_ms,
            batches=self._manner.batch_messages is not None,
            size=size,
            refused=lambda work, error: self._rights.refused(work, error),
            stopped=lambda work: self._commits.soon(work),
            commit=lambda work: self._commits.now(work),
            fail=self._fail,
            poke=self._poked.give,
        )
        self._heartbeats = Heartbeats(
            self._calls, topics, changed=lambda allocation: self._rights.allocated(allocation), fail=self._fail
        )
        self._rights = Rights(
            self._calls,
            self._heartbeats.authorization,
            self._requests,
            settings_of=self._settings_of,
            begun=self._turns.begin,
            wake=self._turns.wake,
            poke=self._poked.give,
        )
        self._commits = Commits(
            self._calls,
            self._requests,
            every_ms=self._manner.commit_ms,
            refused=self._rights.refused,
            ended=lambda work, lost: self._rights.ended(work, lost=lost),
        )

    # Life -------------------------------------------------------------------------------------------------------

    def _begin_all(self) -> Sequence[Running]:
        return [
            self._begin("deltamq-heartbeats", self._heartbeats.run),
            self._begin("deltamq-rights", self._look),
            self._begin("deltamq-fetches", self._turns.fetches.run),
        ]

    async def _close(self, timeout_s: float) -> OrderlyClosed:
        """Hand everything over: wait at most `timeout_s` for running listeners, commit, and release the locks.

        Closing twice is harmless.
        """
        if self._turns.inside.active:
            raise Refused("close() waits for listeners: call stop() in a listener", code="close_in_listener")
        until_ms = monotonic_ms() + round(timeout_s * 1000)
        closed = self._begin_close()
        if closed is not None:
            return closed
        if self._running:
            self._rights.leave()
            await self._heartbeats.leave(until_ms)
            if self._retrying:
                await ConsumerLife.close.core(self._retries, max(0.0, (until_ms - monotonic_ms()) / 1000))
            await self._rights.wait_given_back((until_ms - monotonic_ms()) / 1000)
        heard = [partition for partition in self._rights.works() if partition.is_heard]
        self._closed = OrderlyClosed(unfinished=len(heard), unreleased=self._rights.unreleased)
        if not self._closed:
            log.warning("event=not_handed_over unfinished=%d unreleased=%d", len(heard), self._closed.unreleased)
        self._is_over = True
        self._poked.give()
        await self._turns.close()
        for work in self._running:
            await work.join(_JOIN_S)
        await self._requests.close()
        await OrderlyCalls.close.core(self._calls)
        return self._closed

    # Looking ----------------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[tuple[str, str], ...]:
        """Return topic and name of the partitions that this client has now, sorted."""
        return tuple(sorted(work.key for work in self._rights.works()))

    def positions(self) -> dict[tuple[str, str], int]:
        """Return the position of each of these partitions, by topic and name; all messages before it are done."""
        return {work.key: work.position for work in self._rights.works()}

    def done_ahead(self) -> dict[tuple[str, str], int]:
        """Return for each of these partitions how many messages above its position are done (ORDER-11).

        They would be heard again if this client died now.
        """
        return {work.key: work.done_ahead for work in self._rights.works()}

    def stats(self) -> ConsumerStats:
        """Return what this consumer does (SPEC CONS-6).

        `retried` counts suspensions, `expired` partitions that were lost and not handed over, `renewals` renewed locks,
        `pops` fetches.
        """
        held = sum(len(work.messages) for work in self._rights.works())
        return self._counters.read(expired=self._rights.lost, renewals=self._rights.renewals, held=held)

    # Inside -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while not self._is_over:
            if self._heartbeats.is_exclusive:
                await self._begin_retries()
            if self._retries.error is not None and self.error is None:
                # No listener would hear the retried messages any more.
                self._fail(self._retries.error)
            self._rights.tick()
            self._turns.timers.tick()
            self._commits.tick(self._rights.works())
            due = [self._commits.next_ms(), self._turns.timers.next_ms()]
            wait_ms = min([_LOOK_MS, *(max(0, at - monotonic_ms()) for at in due if at is not None)])
            await self._poked.wait(wait_ms / 1000)

    async def _begin_retries(self) -> None:
        """Begin to pop retried messages; only once the group is exclusive, because a pop may create a shared one."""
        with self._lock:
            if self._retrying or self._closing:
                return
            self._retrying = True
        await ConsumerLife.start.core(self._retries)

    async def _settings_of(self, topic: str) -> OrderlySettings:
        strict = (await self._calls.view(topic)).strict
        attempts = self._manner.max_attempts or self._group_attempts
        if attempts is None:
            attempts = self._group_attempts = await self._calls.max_attempts()
        return self._manner.settings(strict=strict, max_attempts=attempts)


class OrderlyConsumer(OrderlyConsumerCore, Blocking):
    """Takes partitions of `topics` for `group`, and calls `listener` with their messages in order.

    The group must be exclusive (CONS-1); one that does not exist is created as an exclusive group.

    Parameters
    ----------
    url, group, topics
        The service (or several of its processes), the group, and one topic or several.
    listener
        Gets an `OrderedMessage`; with `batch_messages` a list of them. Returns `Verdict.SUCCESS` when it is done;
        `Verdict.SUSPEND` or `Suspend(ms)` to get the same messages again, before any other of that partition (an
        exception, or no verdict, does the same); `Verdict.DEAD` to send them to the dead letters.
    concurrency
        Number of listeners at once, and so of partitions, each of which has one thread at a time (ORDER-6).
    keys_in_parallel
        Number of listeners at once in one partition (ORDER-11): messages of one key are heard one after another, in
        order; messages without a key at any time. A failing message stops only its key. The committed offset is the
        lowest one that is not done. `concurrency` bounds the listeners of all partitions together.
    ahead_messages
        With several keys in parallel: number of messages, from the lowest unfinished one on, that may be begun. At
        most so many are heard again after a crash. A key that fails for ever stops its partition when so many wait.
    autocommit
        If False, the listener commits by hand (CONS-8): `Verdict.SUCCESS` goes on without a commit, `Verdict.COMMIT`
        commits everything heard so far, `Verdict.ROLLBACK` brings everything since the last commit again, after
        `suspend_ms`. What was not committed is heard again after a handover or a crash. Not with `keys_in_parallel`.
    batch_messages
        Maximum number of messages handed over at once. They fail together.
    on_failure
        What becomes of messages that fail, in topics that are not strict (ORDER-8): `dead_letter` after
        `max_attempts`, `retry_topic` at once and out of order, `in_place` for ever. In a strict topic they are always
        repeated in place for ever.
    max_attempts
        By default the group's. Attempts of earlier clients count; if a client died in an attempt, it counts, too.
    suspend_ms
        Milliseconds until suspended messages are handed over again (10 to 30,000).
    turn_ms
        Milliseconds after which a thread leaves its partition, if another one waits for a thread (ORDER-9).
    commit_ms
        Milliseconds between commits; after a crash, the messages since the last commit are processed again.
    tags
        `*`, or `TagA||TagB`: other messages count as consumed.
    filter
        A SQL condition, for example `region = 'eu' AND amount > 5`: messages that it is not true for count as consumed.
    typed
        Whether messages have a `value`: the fields of the topic's schema.
    client_id
        This client's id in the group; by default a new one.
    before, after
        Hooks: `before(message)` and `after(message, verdict, ending)`, or with the batch; they change nothing. An
        `Ending` says how the listener ended, how long it took, and the exception that it raised.
    consume_timeout_s
        Seconds after which the ending of a listener is `HandlerEnd.TIMED_OUT`.
    patience
        How the waits between attempts grow while the service is away; a consumer never gives up.
    access
        How the service is reached, for example `token`; see `Calls`.
    """

    _check_listener = staticmethod(check_handler)
    _fetches = BlockingFetches
    _retries_kind = PopConsumer


class AsyncOrderlyConsumer(OrderlyConsumerCore, Awaiting):
    """`OrderlyConsumer` for an event loop: the same parameters; the listener is a coroutine function or a plain one."""

    _check_listener = staticmethod(check_async_handler)
    _fetches = LoopFetches
    _retries_kind = AsyncPopConsumer
