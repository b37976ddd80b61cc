"""The pollers of a consumer: one for each topic at each process that serves brokers of the topic.

    group's order ──► hosts of the topics' brokers ──► pollers ──┐
                              ▲                                  │ these change: cancelled, others begin
                              └──────────────────────────────────┘

A pop returns messages of the brokers that the asked process serves, so the consumer pops at all processes. With a
single process, or while no others are known, each topic has one poller. An expansion may put partitions on a broker
whose host is known already: no host tells that, so the topics' brokers are looked up again every few seconds.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from deltamq.mq.client.admin.topic_view import fetch_view
from deltamq.mq.client.http.endpoint import Endpoint
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.client.pop.group_order import GroupOrder
from deltamq.mq.client.pop.poller import Poller, Popping
from deltamq.mq.client.pop.settler import Settler
from deltamq.mq.client.pop.slots import Slots
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.settings import Ordering

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

#: A topic, and the process to ask (None: any).
Target = tuple[str, Endpoint | None]


class Pollers:
    """The pollers of one consumer; one thread calls `run`, another one `end`."""

    def __init__(
        self,
        client: PopClient,
        topics: Sequence[str],
        slots: Slots,
        settler: Settler,
        *,
        popping: Callable[[str, Ordering, bool], Popping],
        thread: Callable[[str, Callable[[], None]], threading.Thread],
        fail: Callable[[DeltaMQError], None],
        brokers_age_s: float = _BROKERS_AGE_S,
    ) -> None:
        """Prepare the pollers; `popping(topic, order, alone)` says how a topic is popped, `thread` makes a thread."""
        self._client = client
        self._topics = topics
        self._slots = slots
        self._settler = settler
        self._popping = popping
        self._thread = thread
        self._fail = fail
        # One topic's description in this time, however many topics there are.
        self._brokers_age_s = brokers_age_s * len(topics)
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._targets: Sequence[Target] = ()
        #: The brokers of each topic, as far as they are known, and whether some are wanted that are not.
        self._brokers: dict[str, Collection[str]] = {}
        self._complete = False
        self._pollers: list[Poller] = []
        self._threads: list[threading.Thread] = []
        client.hosts.follow(_AGE_S)

    def run(self, order: Ordering | None) -> None:
        """Pop until `end`; an `order` of None means the group's setting."""
        if order is None:
            order = GroupOrder(self._client, self._ending).ask(self._fail)
            if order is None:
                return
        if order:
            # In order, the next message waits for the acknowledgement, so it is sent at once.
            self._settler.ack_within_s = 0.0
        hosts = self._client.hosts
        epoch, old_at = -1, 0.0
        while not self._ending.is_set():
            if hosts.epoch != epoch or not self._complete or time.monotonic() >= old_at:
                epoch = hosts.epoch
                self._follow(order)
                old_at = time.monotonic() + self._brokers_age_s * (1 + _BROKERS_JITTER * random.random())
            self._ending.wait(_LOOK_S)
            hosts.keep_fresh()

    def _follow(self, order: Ordering) -> None:
        """Replace the pollers by one for each topic at each of its hosts, if these changed."""
        targets = self._wanted()
        if targets == self._targets:
            return
        pollers = [
            Poller(self._client, self._popping(topic, order, len(targets) == 1), self._slots, self._settler, endpoint)
            for topic, endpoint in targets
        ]
        threads = [self._thread("deltamq-poller", one.run) for one in pollers]
        # The waiting pop of each further poller holds a slot in addition to those of the handlers.
        self._slots.grow(len(targets) - max(1, len(self._targets)))
        with self._lock:
            if self._ending.is_set():
                for poller in pollers:
                    poller.close()
                return
            before, self._pollers = self._pollers, pollers
            self._threads = [*(one for one in self._threads if one.is_alive()), *threads]
            self._targets = targets
            # Under the lock, because `end` joins all threads that it finds.
            for thread in threads:
                thread.start()
        for poller in before:
            poller.cancel()

    def _wanted(self) -> list[Target]:
        self._complete = True
        if not self._client.hosts.are_several:
            return [(topic, None) for topic in self._topics]
        return [(topic, host) for topic in self._topics for host in self._hosts_of(topic)]

    def _hosts_of(self, topic: str) -> Sequence[Endpoint | None]:
        timeout_s = self._client.patience.request_timeout_s
        try:
            self._brokers[topic] = fetch_view(self._client.hosts, topic, timeout_s).stored_at
        except DeltaMQError as error:
            log.info("event=topic_unknown topic=%s code=%s", topic, error.code)
            if topic not in self._brokers:
                # The topic may not exist yet, or no host answers: a pop at any host will report that.
                self._complete = False
                return [None]
        # Also a host that does not answer now: its poller goes on as soon as it does.
        return self._client.hosts.of(self._brokers[topic], even_avoided=True)

    # The end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Cancel the open pops, and wait for a while until their messages are delivered."""
        with self._lock:
            self._ending.set()
            pollers, threads = self._pollers, self._threads
        for poller in pollers:
            poller.cancel()
        if not _joined(threads):
            for poller in pollers:
                poller.abort()
            _joined(threads)


def _joined(threads: Sequence[threading.Thread]) -> bool:
    """Wait for threads for `_CANCEL_S`; returns whether all have ended."""
    deadline = time.monotonic() + _CANCEL_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
