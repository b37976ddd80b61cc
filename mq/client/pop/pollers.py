"""The pollers of a consumer: one for each topic at each process that serves brokers of the topic.

    group's order ──► hosts of the topics' brokers ──► pollers ──┐
                              ▲                                  │ these change: cancelled, others begin
                              └──────────────────────────────────┘

A pop returns messages of the brokers that the asked process serves, so the consumer pops at all processes. With a
single process, or while no others are known, each topic has one poller. An expansion may put partitions on a broker
whose host is known already: no host reports that, so the topics' brokers are looked up again every few seconds. The
group's `order` is looked up once, for consumers that set none.

    free slots ──► pop (carries acknowledgements, waits at the service) ──► messages ──► handlers ──► free slots

A pop in order has an `attempt_id`, and is repeated with it until it has an answer: so a lost answer does not hold a
partition, or a key, for an invisible time (POP-20). With several topics, a pop that would wait holds one slot only, so
that a quiet topic does not keep handlers from a busy one.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from deltamq.mq.backoff import Backoff
from deltamq.mq.client.admin.topic_view import fetch_view
from deltamq.mq.client.http.answers import decode_as
from deltamq.mq.client.http.endpoint import Endpoint, path_of
from deltamq.mq.client.http.retries import is_worth_retrying
from deltamq.mq.client.messages.received import PopBatch, PopTable
from deltamq.mq.client.pop.client import PopAsk, PopCalls, batch_of, parse_table
from deltamq.mq.client.pop.connection import PopConnection
from deltamq.mq.client.pop.deliveries import Slots
from deltamq.mq.client.pop.settler import Settler
from deltamq.mq.client.shells.shell import Running, Stop, Work
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound, Unknown
from deltamq.mq.meta.group_settings import Ordering

log = logging.getLogger("deltamq.client")

#: Interval at which the hosts are compared; maximum age of the view of them.
_LOOK_S: Final = 0.5
_AGE_S: Final = 5.0
#: Seconds after which the brokers of one topic are looked up again, and the half more that is drawn at random: so many
#: consumers that began together do not ask together.
_BROKERS_AGE_S: Final = 5.0
_BROKERS_JITTER: Final = 0.5
#: Seconds that a cancelled pop may take to end by itself.
_CANCEL_S: Final = 2.0

#: Makes a connection to pop at a process, or at any.
Connect = Callable[[Endpoint | None], PopConnection]
#: A topic, and the process to ask (None: any).
Target = tuple[str, Endpoint | None]


class Pollers:
    """The pollers of one consumer, which begin and change in `run`, until `end`."""

    def __init__(
        self,
        client: PopCalls,
        topics: Sequence[str],
        slots: Slots,
        settler: Settler,
        *,
        popping: Callable[[str, Ordering, bool], Popping],
        connect: Connect,
        begin: Callable[[str, Work], Running],
        fail: Callable[[DeltaMQError], None],
        brokers_age_s: float = _BROKERS_AGE_S,
    ) -> None:
        """Prepare the pollers; `popping(topic, order, alone)` says how a topic is popped, `begin` begins work."""
        self._client = client
        self._topics = topics
        self._slots = slots
        self._settler = settler
        self._popping = popping
        self._connect = connect
        self._begin = begin
        self._fail = fail
        # One topic's description in this time, however many topics there are.
        self._brokers_age_s = brokers_age_s * len(topics)
        self._ending = Stop(client.shell)
        self._lock = threading.Lock()
        self._targets: Sequence[Target] = ()
        #: The brokers of each topic, as far as they are known, and whether all are known.
        self._brokers: dict[str, Collection[str]] = {}
        self._complete = False
        self._pollers: list[Poller] = []
        self._running: list[Running] = []
        client.hosts.follow(_AGE_S)

    async def run(self, order: Ordering | None) -> None:
        """Pop until `end`; an `order` of None means the group's setting."""
        if order is None:
            order = await GroupOrder(self._client, self._ending).ask(self._fail)
            if order is None:
                return
        if order:
            # In order, the next message waits for the acknowledgement, so it is sent at once.
            self._settler.ack_within_s = 0.0
        hosts = self._client.hosts
        epoch, old_at = -1, 0.0
        while not self._ending.is_set:
            if hosts.epoch != epoch or not self._complete or self._client.shell.now() >= old_at:
                epoch = hosts.epoch
                await self._follow(order)
                old_at = self._client.shell.now() + self._brokers_age_s * (1 + _BROKERS_JITTER * random.random())
            await self._ending.wait(_LOOK_S)
            hosts.keep_fresh()

    async def _follow(self, order: Ordering) -> None:
        """Replace the pollers by one for each topic at each of its hosts, if these changed."""
        targets = await self._wanted()
        if targets == self._targets:
            return
        # The waiting pop of each further poller holds a slot in addition to the handlers' slots.
        self._slots.grow(len(targets) - max(1, len(self._targets)))
        with self._lock:
            if self._ending.is_set:
                return
            before, self._pollers = (
                self._pollers,
                [
                    Poller(
                        self._client,
                        self._popping(topic, order, len(targets) == 1),
                        self._slots,
                        self._settler,
                        self._connect(endpoint),
                    )
                    for topic, endpoint in targets
                ],
            )
            # Under the lock, because `end` waits for all that it finds.
            self._running = [
                *(running for running in self._running if not running.is_over),
                *(self._begin("deltamq-poller", poller.run) for poller in self._pollers),
            ]
            self._targets = targets
        for poller in before:
            poller.cancel()

    async def _wanted(self) -> list[Target]:
        self._complete = True
        if not self._client.hosts.are_several:
            return [(topic, None) for topic in self._topics]
        return [(topic, host) for topic in self._topics for host in await self._hosts_of(topic)]

    async def _hosts_of(self, topic: str) -> Sequence[Endpoint | None]:
        timeout_s = self._client.patience.request_timeout_s
        try:
            self._brokers[topic] = (await fetch_view(self._client.hosts, topic, timeout_s)).stored_at
        except DeltaMQError as error:
            log.info("event=topic_unknown topic=%s code=%s", topic, error.code)
            if topic not in self._brokers:
                # The topic may not exist yet, or no host answers: a pop at any host will report that.
                self._complete = False
                return [None]
        # Also a host that does not answer now: its poller goes on as soon as it does.
        return self._client.hosts.of(self._brokers[topic], even_avoided=True)

    # The end ----------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Cancel the open pops, and wait for a while until their messages are delivered."""
        with self._lock:
            self._ending.set()
            pollers, running = self._pollers, self._running
        for poller in pollers:
            poller.cancel()
        if not await self._joined(running):
            for poller in pollers:
                poller.abort()
            await self._joined(running)

    async def _joined(self, running: Sequence[Running]) -> bool:
        """Wait for `_CANCEL_S` until all have ended; returns whether they have."""
        deadline = self._client.shell.now() + _CANCEL_S
        return all([await one.join(deadline - self._client.shell.now()) for one in running])


#: Pauses after empty pops that returned although they were to wait: 5 ms, 10, 20, ... at most a second.
_PAUSE_S: Final = Backoff(0.005, 1.0)
#: A pop that waited for less than this fraction of its wait time counts as one that did not wait.
_WAITED: Final = 0.5


class Popping(msgspec.Struct, frozen=True, kw_only=True):
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
    """Pops one topic, in `run`, until `cancel`."""

    def __init__(
        self, client: PopCalls, popping: Popping, slots: Slots, settler: Settler, connection: PopConnection
    ) -> None:
        self._shell = client.shell
        self._popping = popping
        self._patience = client.patience
        self._slots = slots
        self._settler = settler
        self._connection = connection
        self._stop = Stop(client.shell)
        self._failures = 0
        self._pauses = 0
        #: The id of the pop in order that has no answer yet.
        self._attempt_id: str | None = None
        #: Whether the last pop brought messages; then the next one does not wait.
        self._flowing = True

    async def run(self) -> None:
        """Pop until the slots are closed, or the service refuses for good."""
        while not self._stop.is_set:
            ask = self._popping.ask
            waits = self._popping.alone or self._popping.whole or not self._flowing
            sparing = self._popping.whole or (waits and not self._popping.alone)
            taken = await self._slots.take(1 if sparing else ask.max_messages)
            if taken == 0:
                break
            await self._pop(
                replace(
                    ask,
                    max_messages=ask.max_messages if self._popping.whole else taken,
                    wait_ms=ask.wait_ms if waits else 0,
                ),
                taken,
            )
        await self._connection.close()

    async def _pop(self, ask: PopAsk, slots: int) -> None:
        acks = self._settler.take_acks(ask.topic)
        if acks:
            ask = replace(ask, ack=[lease.handle for lease in acks])
        ask = replace(ask, attempt_id=self._attempt_id).repeatable()
        self._attempt_id = ask.attempt_id
        began = self._shell.now()
        try:
            answer = await self._connection.pop(ask)
            popped: PopBatch | PopTable
            if ask.arrow:
                popped = parse_table(answer.headers, answer.body)
            else:
                popped = batch_of(ask, answer.headers, answer.body)
        except DeltaMQError as error:
            self._slots.give_back(slots)
            self._settler.not_carried(acks)
            await self._failed(error)
            return
        self._settler.carried(acks, popped.failed_acks)
        self._attempt_id = None
        self._failures = 0
        self._popping.count(True)
        if _count(popped):
            self._flowing = True
            self._pauses = 0
            self._popping.deliver(popped, slots)
            return
        self._slots.give_back(slots)
        self._flowing = False
        await self._pause(ask.wait_ms / 1000, self._shell.now() - began)

    async def _pause(self, asked_s: float, waited_s: float) -> None:
        """Pause after an empty pop that the service answered at once."""
        if asked_s == 0 and not self._popping.alone and not self._popping.whole:
            return
        if asked_s > 0 and waited_s >= asked_s * _WAITED:
            self._pauses = 0
            return
        self._pauses += 1
        await self._stop.wait(_PAUSE_S.after(self._pauses))

    async def _failed(self, error: DeltaMQError) -> None:
        if self._stop.is_set:
            return
        self._popping.count(False)
        # Not final: the topic may be created later, and messages popped in another order be settled. So may the group
        # of a pop that creates none: an ordered consumer makes a deleted group again.
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
        await self._stop.wait(wait_s)

    def cancel(self) -> None:
        """Stop popping, and cancel the open pop."""
        self._stop.set()
        self._connection.cancel()

    def abort(self) -> None:
        """Stop without waiting for the answer of the open pop."""
        self._connection.abort()


def _count(popped: PopBatch | PopTable) -> int:
    return len(popped.messages) if isinstance(popped, PopBatch) else len(popped.rows)


class _Group(msgspec.Struct):
    order: bool | str = False


class GroupOrder:
    """Asks the service for a group's order, again and again while the service is away."""

    def __init__(self, client: PopCalls, stop: Stop) -> None:
        self._client = client
        self._stop = stop

    async def ask(self, fail: Callable[[DeltaMQError], None]) -> Ordering | None:
        """Return the group's order; None if stopped before, or if refused (then `fail` is called with the error)."""
        failures = 0
        while not self._stop.is_set:
            try:
                return await self._once()
            except NotFound:
                # The first pop makes the group, with the defaults.
                return False
            except DeltaMQError as error:
                if not is_worth_retrying(error):
                    fail(error)
                    return None
                failures += 1
                wait_s = self._client.patience.wait_s(failures, random.random(), error)
                log.warning("event=group_unknown group=%s code=%s again_s=%.3f", self._client.group, error.code, wait_s)
                await self._stop.wait(wait_s)
        return None

    async def _once(self) -> Ordering:
        path = path_of("groups", self._client.group)
        answer = await self._client.hosts.call("GET", path, timeout_s=self._client.patience.request_timeout_s)
        try:
            order = decode_as(answer.body, _Group).order
        except msgspec.MsgspecError as error:
            raise Unknown(f"the service's answer is unreadable: {error}", code="answer_unreadable") from error
        return "key" if order == "key" else bool(order)
