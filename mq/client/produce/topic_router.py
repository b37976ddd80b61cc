"""The router of a producer's topic: it knows the route, and chooses the executor of each message.

    unresolved ──GET topic──► routed: key ─► slot ─► partition ─► executor        (ROUTE-5; no key: a random one)
        │ 404                   ▲    │ 404 for a partition: its queue is sent unrouted, nothing overtakes it
        ▼                       │    ▼
    unrouted: one executor lets the service route (and create the topic); after its first success the
    route is fetched again, and the executors of the new route wait until the unrouted one is empty

The route here only decides which messages share a request: the service, which knows the newest route, routes keyed
messages again. If it stores some in another partition, the route is fetched again, and the executors of the new route
wait for the old ones. A selector of the caller chooses a message's partition instead (SPEC SEND-3).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from deltamq.mq.client.admin.topic_view import TopicView, fetch_view
from deltamq.mq.client.http.retries import Attempts, is_worth_retrying
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.produce.entry import NOT_SENT, Entry
from deltamq.mq.client.produce.executor import Executor, Failing
from deltamq.mq.client.produce.shared import Shared
from deltamq.mq.errors import DeltaMQError, NotFound, Refused, Unavailable

#: A function of the topic's partitions (of a static topic, its logical queues), the message and the caller's argument;
#: returns one of the partitions.
Selector = Callable[[tuple[str, ...], Message, Any], str | None]


def selected(selector: Selector, partitions: tuple[str, ...], message: Message, argument: object) -> str:
    """Return the partition that `selector` chooses.

    Raises
    ------
    Refused
        `selector_failed`: it raised, returned None, or returned no partition of the topic.
    """
    try:
        chosen = selector(partitions, message, argument)
    except Exception as error:
        raise Refused(
            f"the selector raised {type(error).__name__}: {error}; nothing was sent",
            code="selector_failed",
            field="selector",
        ) from error
    if chosen not in partitions:
        what = "nothing" if chosen is None else repr(chosen)
        raise Refused(
            f"the selector returned {what}, not one of {', '.join(partitions)}; nothing was sent",
            code="selector_failed",
            field="selector",
        )
    return chosen


_LP_BITS: Final = 10
_REFRESH_TIMEOUT_S: Final = 5.0
_TOPIC_NOT_FOUND: Final = "topic_not_found"


class TopicRouter:
    """The router of one topic, with its executors."""

    def __init__(self, topic: str, shared: Shared) -> None:
        self.topic = topic
        self._shared = shared
        self._lock = threading.RLock()
        #: Whether the route is being fetched from the service; notified when it is not any more.
        self._fetching = False
        self._fetched = shared.shell.condition()
        self._view: TopicView | None = None
        self._executors: dict[str, Executor] = {}
        #: The executors of the partitions in `_view`, by index.
        self._routed: Sequence[Executor] = ()
        self._unrouted: Executor | None = None
        #: Where the last message without a key went, and by which route.
        self._gathering: tuple[TopicView, Executor] | None = None
        self._draining: set[Executor] = set()
        self._fresh_until = 0.0

    # Choosing ---------------------------------------------------------------------------------------------------

    def known_executor(self, message: Message, now: float) -> Executor | None:
        """Return the executor of a message that names no partition: by its key, or at random; None without a route.

        Messages without a key that wait at the same time have the same (SPEC ROUTE-5).
        """
        view, routed = self._view, self._routed
        if message.partition is not None or view is None or self._unrouted is not None:
            return None
        if now >= self._fresh_until:
            self._refresh_when_due()
        if message.key is not None:
            return routed[view.table[view.slot_of(message.key)]]
        shared = self._gathering
        if shared is None or shared[0] is not view or not shared[1].gathers:
            # Messages that are sent at once share a request, not only a partition: fewer requests, each one commit.
            shared = self._gathering = view, routed[self.random_index(view)]
        return shared[1]

    async def executor_for(self, message: Message, deadline: float) -> Executor:
        """Return the executor of `message`, chosen by its partition, by its key, or at random."""
        if message.partition is not None:
            return await self.named(message.partition, deadline)
        while True:
            executor = self.known_executor(message, self._shared.shell.now()) or self._unrouted
            if executor is not None:
                return executor
            await self._resolve(deadline)

    async def named(self, partition: str, deadline: float) -> Executor:
        """Return the executor of a partition that the caller names (ROUTE-7)."""
        view = await self.view(deadline)
        if partition not in view.index_of:
            # The partition may be newer than the known route.
            await self._fetch(deadline)
            view = await self.view(deadline)
        with self._lock:
            executor = self._executors.get(partition)
        if executor is None or partition not in view.index_of:
            raise NotFound(
                f"topic {self.topic} has no partition {partition!r}; it has {', '.join(view.partitions)}",
                code="partition_not_found",
                field="partition",
            )
        return executor

    async def chosen(self, message: Message, selector: Selector, argument: object, deadline: float) -> Message:
        """Return `message` with the partition that the caller's selector chooses (SEND-3)."""
        partition = selected(selector, (await self.view(deadline)).partitions, message, argument)
        return replace(message, partition=partition)

    async def view(self, deadline: float) -> TopicView:
        """Return the known route, or fetch it; raises `NotFound` while the topic does not exist."""
        view = self._view
        if view is None:
            await self._fetch(deadline)
            view = self._view
            assert view is not None
        self._refresh_when_due()
        return view

    async def bulk_view(self, deadline: float) -> TopicView | None:
        """Return the route for splitting many messages; None while the service has to route them."""
        while True:
            if self._unrouted is not None:
                return None
            if self._view is not None:
                return self._view
            await self._resolve(deadline)

    def executor_of(self, partition: str | None) -> Executor | None:
        """Return the executor of a slice that was split for `partition`; None if the route has changed since."""
        unrouted = self._unrouted
        if unrouted is not None:
            return unrouted
        return None if partition is None else self._executors.get(partition)

    def random_index(self, view: TopicView) -> int:
        """Return the index of a random partition; avoids slow and failing brokers (SEND-4)."""
        index = view.drawn[random.getrandbits(_LP_BITS)]
        avoided = self._shared.health.avoided(view.target_brokers, self._shared.shell.now())
        if view.brokers[index] in avoided or index in view.unserved:
            index = random.choice([i for i in view.places.targets if view.brokers[i] not in avoided])
        return index

    # The route --------------------------------------------------------------------------------------------------

    async def _resolve(self, deadline: float) -> None:
        """Fetch the route, or learn that the topic does not exist yet."""
        try:
            await self._fetch(deadline)
        except NotFound as error:
            if error.code != _TOPIC_NOT_FOUND:
                raise
            with self._lock:
                if self._view is None and self._unrouted is None:
                    self._unrouted = Executor(self.topic, None, self._shared, self)

    async def _fetch(self, deadline: float) -> None:
        known = self._view
        if not await self._fetched.until(self._begin_fetch, deadline - self._shared.shell.now()):
            raise Unavailable("the topic's route is not known in time; nothing was sent", code=NOT_SENT)
        try:
            if self._view is not known:
                # The route was fetched while this call waited.
                return
            attempts = Attempts(
                self._shared.settings.patience,
                shell=self._shared.shell,
                deadline=deadline,
                retries=None,
                stop=self._shared.stop,
            )
            while True:
                try:
                    self._use(await fetch_view(self._shared.hosts, self.topic, attempts.timeout_s()))
                    return
                except DeltaMQError as error:
                    if not is_worth_retrying(error):
                        raise
                    if not await attempts.may_go_on(error):
                        detail = f"the topic's route cannot be fetched, nothing was sent: {error.detail}"
                        raise Unavailable(detail, code=NOT_SENT) from error
        finally:
            with self._fetched.lock:
                self._fetching = False
                self._fetched.notify()

    def _begin_fetch(self) -> bool:
        began, self._fetching = not self._fetching, True
        return began

    def _refresh_when_due(self) -> None:
        """Fetch the route again, in the background, if it is due: the topic may have been expanded."""
        now = self._shared.shell.now()
        if now < self._fresh_until:
            return
        with self._lock:
            if now < self._fresh_until:
                return
            self._fresh_until = now + self._shared.settings.route_age_s_max
        self._shared.workers.submit(self._refresh)

    def _refresh_soon(self) -> None:
        """Fetch the route again, because an answer shows that it may be outdated, but not before its minimum age.

        Many answers may show it; and messages without a key that share a request with keyed ones may be stored
        anywhere, which says nothing about the route.
        """
        settings = self._shared.settings
        with self._lock:
            fetched = self._fresh_until - settings.route_age_s_max
            self._fresh_until = min(self._fresh_until, fetched + settings.route_age_s_min)
        self._refresh_when_due()

    async def _refresh(self) -> None:
        try:
            self._use(await fetch_view(self._shared.hosts, self.topic, _REFRESH_TIMEOUT_S))
        except DeltaMQError:
            # The current route stays in use; the service reports a send for which it is wrong.
            return

    def _use(self, view: TopicView) -> None:
        with self._lock:
            self._fresh_until = self._shared.shell.now() + self._shared.settings.route_age_s_max
            failing = Failing.STOP_UNRESOLVED if view.strict else Failing.GO_ON
            if self._view is not None and (view.partitioner, view.table) != (self._view.partitioner, self._view.table):
                self._drain_all()
            for partition in view.partitions:
                executor = self._executors.get(partition)
                if executor is None:
                    executor = Executor(
                        self.topic, partition, self._shared, self, failing=failing, held=bool(self._draining)
                    )
                    self._executors[partition] = executor
                executor.failing = failing
                executor.broker = view.broker(partition)
                executor.commit_window_s = view.commit_window_s
            self._routed = tuple(self._executors[partition] for partition in view.partitions)
            self._view = view

    def _drain_all(self) -> None:
        """Retire all executors after keys have moved: their queues are sent before the new executors' queues."""
        self._draining.update(executor for executor in self._executors.values() if executor.retire())
        self._executors = {}

    # What executors report --------------------------------------------------------------------------------------

    def wrong_route(self, executor: Executor, entries: list[Entry], error: DeltaMQError) -> None:
        """Send the entries of an unknown partition or topic unrouted, in order: the service routes them."""
        with self._lock:
            queued = [*entries, *executor.take_over()]
            if executor is self._unrouted:
                # The service cannot route them either: the topic is unknown and a send does not create it.
                self._unrouted = None
                stuck = queued
            else:
                stuck = [entry for entry in queued if entry.named]
                self._forget(executor)
                self._send_unrouted([entry for entry in queued if not entry.named])
        executor.fail(stuck, error)

    def _send_unrouted(self, entries: list[Entry]) -> None:
        # Under the lock, so that later sends queue up behind these entries.
        if self._unrouted is None:
            self._unrouted = Executor(self.topic, None, self._shared, self)
        for entry in entries:
            taken = self._unrouted.put(entry)
            assert taken, "an unrouted executor retires only under this lock"

    def _forget(self, executor: Executor) -> None:
        self._executors = {name: e for name, e in self._executors.items() if e is not executor}
        self._view = None
        self._routed = ()

    def another_partition(self, executor: Executor, entries: list[Entry]) -> bool:
        """Move keyless entries to a partition on a healthier broker, if a random choice finds one (SEND-2, SEND-4)."""
        with self._lock:
            view = self._view
            if view is None or self._unrouted is not None:
                return False
            target = self._routed[self.random_index(view)]
            if target is executor or self._draining:
                return False
            for entry in entries:
                taken = target.put(entry)
                assert taken, "a routed executor retires only under this lock"
        return True

    async def batch_sent(self, executor: Executor, *, elsewhere: bool) -> None:
        """After the first success of an unrouted executor, fetch the topic's route and switch to it."""
        if executor is not self._unrouted:
            if elsewhere:
                self._refresh_soon()
            return
        try:
            view = await fetch_view(self._shared.hosts, self.topic, _REFRESH_TIMEOUT_S)
        except DeltaMQError:
            return  # the service continues to route; the next success tries again
        with self._lock:
            executor.retire()
            self._draining.add(executor)
            for routed in self._executors.values():
                routed.hold()
            self._use(view)
            self._unrouted = None

    def attempt_failed(self, executor: Executor) -> None:
        """Fetch the route of a static topic again: its logical queues move between brokers (SPEC STATIC-8)."""
        view = self._view
        if view is not None and view.is_static:
            self._refresh_soon()

    def drained(self, executor: Executor) -> None:
        """Release the routed executors once all draining executors are empty."""
        with self._lock:
            if executor not in self._draining:
                return
            self._draining.discard(executor)
            released = [] if self._draining else list(self._executors.values())
        for routed in released:
            routed.release()

    # The end ----------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Let stopped executors of a strict topic accept new messages again."""
        with self._lock:
            executors = [*self._executors.values(), *self._draining]
        for executor in executors:
            executor.restart()

    def abandon(self) -> int:
        """Fail all queued messages; returns their number."""
        with self._lock:
            unrouted = [] if self._unrouted is None else [self._unrouted]
            executors = [*self._executors.values(), *unrouted, *self._draining]
        return sum(executor.abandon() for executor in executors)
