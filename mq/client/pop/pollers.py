"""Who pops for a consumer: one poller for each topic at each process that serves brokers of it.

    group's order ──► hosts of the topics' brokers ──► pollers ──┐
                              ▲                                  │ the hosts change: called off, others begin
                              └──────────────────────────────────┘

A pop takes what the process that is asked serves itself, so all of them are asked. With a single process, or while
nothing is known of others, each topic has one poller.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from mq.client.admin import fetch_view
from mq.client.http import Endpoint
from mq.client.pop.client import PopClient
from mq.client.pop.group_order import GroupOrder
from mq.client.pop.poller import Poller, Popping
from mq.client.pop.settler import Settler
from mq.client.pop.slots import Slots
from mq.errors import DeltaMQError
from mq.meta import Ordering

__all__ = ["Pollers"]

log = logging.getLogger("deltamq.client")

#: How often the hosts are compared; how old what is known of them may be.
_LOOK_S: Final = 0.5
_AGE_S: Final = 5.0
#: How long a pop that was called off may take to end by itself.
_CANCEL_S: Final = 2.0

#: A topic, and the process to ask (None: any).
Target = tuple[str, Endpoint | None]


class Pollers:
    """The pollers of one consumer; `run` is for a thread of its own, `end` for another."""

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
    ) -> None:
        """`popping` says how a topic is popped in this order, alone or beside others; `thread` makes a thread."""
        self._client = client
        self._topics = topics
        self._slots = slots
        self._settler = settler
        self._popping = popping
        self._thread = thread
        self._fail = fail
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._targets: Sequence[Target] = ()
        #: Whether the brokers of each topic are known.
        self._complete = False
        self._pollers: list[Poller] = []
        self._threads: list[threading.Thread] = []
        client.hosts.follow(_AGE_S)

    def run(self, order: Ordering | None) -> None:
        """Find out how the group wants its messages, if nobody says, and pop until the end."""
        if order is None:
            order = GroupOrder(self._client, self._ending).ask(self._fail)
            if order is None:
                return
        if order:
            # What is in order waits for each acknowledgement.
            self._settler.ack_within_s = 0.0
        hosts = self._client.hosts
        epoch = -1
        while not self._ending.is_set():
            if hosts.epoch != epoch or not self._complete:
                epoch = hosts.epoch
                self._follow(order)
            self._ending.wait(_LOOK_S)
            hosts.keep_fresh()

    def _follow(self, order: Ordering) -> None:
        """Have a poller for each topic at each of its hosts."""
        targets = self._wanted()
        if targets == self._targets:
            return
        pollers = [
            Poller(self._client, self._popping(topic, order, len(targets) == 1), self._slots, self._settler, endpoint)
            for topic, endpoint in targets
        ]
        threads = [self._thread("deltamq-poller", one.run) for one in pollers]
        # A waiting pop of each further poller holds a slot beside those of the handlers.
        self._slots.grow(len(targets) - max(1, len(self._targets)))
        with self._lock:
            if self._ending.is_set():
                return
            before, self._pollers = self._pollers, pollers
            self._threads = [*(one for one in self._threads if one.is_alive()), *threads]
            self._targets = targets
            # Here, since `end` waits for all that it finds.
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
            view = fetch_view(self._client.hosts, topic, timeout_s)
        except DeltaMQError as error:
            # It may not be there yet, or nobody answers: any host will say so.
            log.info("event=topic_unknown topic=%s code=%s", topic, error.code)
            self._complete = False
            return [None]
        return self._client.hosts.of(view.brokers)

    # The end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Call the open pops off, and wait for a while until what they brought is delivered."""
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
    """Wait for threads for a while; whether all have ended."""
    deadline = time.monotonic() + _CANCEL_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
