"""The fetches of an ordered consumer: it waits for the answers of all partitions at once (SPEC ORDER-4).

A fetch renews the lock of its partition. Its messages go to whoever runs the partition next. If the partition
went on without a fetch, the answer is read and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from deltamq.mq.client.http.endpoint import Endpoint
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.orderly.work import OrderlyWork, monotonic_ms
from deltamq.mq.client.pull.fetch import FetchAsk, Fetched, Fetches
from deltamq.mq.errors import DeltaMQError

#: Maximum number of open fetches; with more partitions, fetches wait.
FETCHES_MAX: Final = 256
_LOOK_S_MAX: Final = 1.0
#: Seconds for opening a connection, and for the rest of an answer to arrive.
FETCH_TIMEOUT_S: Final = 5.0

#: Called with a fetch, and its answer or its error.
Heard: TypeAlias = Callable[["OrderlyFetch", Fetched | DeltaMQError], None]


class OrderlyFetch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A fetch for a work; valid while the work still has this ticket."""

    work: OrderlyWork
    ticket: int
    ask: FetchAsk


class OrderlyFetches:
    """All fetches of one consumer, made in `run`, until `close`."""

    def __init__(self, hosts: Hosts, fetches: Fetches[OrderlyFetch], heard: Heard) -> None:
        self._hosts = hosts
        self._fetches = fetches
        self._heard = heard
        self._asked: deque[OrderlyFetch] = deque()
        #: When each open fetch was sent, by `monotonic_ms`.
        self._sent_ms: dict[OrderlyFetch, int] = {}
        self._closed = self._began = False

    def ask(self, fetch: OrderlyFetch) -> None:
        """Queue a fetch; safe in any thread."""
        self._asked.append(fetch)
        self._fetches.wake()

    async def run(self) -> None:
        """Send fetches and read their answers until closed."""
        self._began = True
        try:
            while not self._closed:
                for fetch, endpoint, result in await self._fetches.finished(_LOOK_S_MAX):
                    self._ended(fetch, endpoint, result)
                await self._begin()
        finally:
            await self._fetches.close()

    async def _begin(self) -> None:
        """Send the fetches that were asked for; with too many open ones, some wait."""
        while self._asked and not self._closed:
            fetch = self._asked.popleft()
            if fetch.ticket != fetch.work.ticket:
                continue
            sent_ms = monotonic_ms()
            if not await self._fetches.start(fetch, self._hosts.endpoint(fetch.work.broker), fetch.ask):
                self._asked.appendleft(fetch)
                return
            self._sent_ms[fetch] = sent_ms

    def _ended(self, fetch: OrderlyFetch, endpoint: Endpoint, result: Fetched | DeltaMQError) -> None:
        sent_ms = self._sent_ms.pop(fetch)
        if isinstance(result, DeltaMQError):
            self._hosts.failed(endpoint, result)
        else:
            self._hosts.answered(endpoint)
            lock = fetch.work.lock
            lock.renewed(lock.number, sent_ms, monotonic_ms())
        self._heard(fetch, result)

    async def close(self) -> None:
        """End `run`, which drops everything; if it was never called, this does."""
        self._closed = True
        if self._began:
            self._fetches.wake()
        else:
            await self._fetches.close()
