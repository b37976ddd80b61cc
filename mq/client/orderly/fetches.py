"""The fetches of an ordered consumer: one thread waits for the answers of all partitions at once (SPEC ORDER-4).

A fetch renews the lock of its partition. Its messages go to the thread that runs the partition next. If the partition
went on without a fetch, the answer is read and dropped.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from deltamq.mq.client.http.endpoint import NO_ANSWER
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.orderly.work import OrderlyWork, monotonic_ms
from deltamq.mq.client.pull.fetch import FetchAsk, FetchConnection, FetchConnections, Fetched
from deltamq.mq.errors import DeltaMQError, Unknown

#: Maximum number of open fetches; with more partitions, fetches wait for a connection.
_CONNECTIONS_MAX: Final = 256
_LOOK_S_MAX: Final = 1.0
#: Seconds for opening a connection, and for the rest of an answer to arrive.
_TIMEOUT_S: Final = 5.0

#: Called with a fetch, and its answer or its error.
Heard: TypeAlias = Callable[["OrderlyFetch", Fetched | DeltaMQError], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderlyFetch:
    """A fetch for a work; valid while the work still has this ticket."""

    work: OrderlyWork
    ticket: int
    ask: FetchAsk


@dataclass(frozen=True, slots=True)
class _Open:
    fetch: OrderlyFetch
    connection: FetchConnection
    sent_ms: int


class OrderlyFetches:
    """All fetches of one consumer, made by the thread that calls `run` until `close`."""

    def __init__(self, hosts: Hosts, heard: Heard) -> None:
        self._hosts = hosts
        self._heard = heard
        self._connections = FetchConnections(connections_max=_CONNECTIONS_MAX, timeout_s=_TIMEOUT_S)
        self._asked: queue.SimpleQueue[OrderlyFetch] = queue.SimpleQueue()
        #: Fetches that wait for a connection.
        self._waiting: list[OrderlyFetch] = []
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._closed = self._began = False

    def ask(self, fetch: OrderlyFetch) -> None:
        """Queue a fetch; safe in any thread."""
        self._asked.put(fetch)
        self._ring()

    def _ring(self) -> None:
        # A full socket wakes the thread already; a closed one has no thread to wake.
        with contextlib.suppress(OSError):
            self._rope.send(b"\0")

    def run(self) -> None:
        """Send fetches and read their answers until closed."""
        self._began = True
        self._selector.register(self._bell, selectors.EVENT_READ)
        try:
            while not self._closed:
                for key, _ in self._selector.select(_LOOK_S_MAX):
                    if key.fileobj is self._bell:
                        self._drain_bell()
                    else:
                        self._read(key.data)
                self._drop_late()
                self._begin()
        finally:
            for open_fetch in self._open():
                self._end(open_fetch)
            self._release()

    def _release(self) -> None:
        self._connections.close()
        self._selector.close()
        self._bell.close()
        self._rope.close()

    def _drain_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass

    def _open(self) -> list[_Open]:
        return [key.data for key in list(self._selector.get_map().values()) if key.data is not None]

    def _begin(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.append(self._asked.get_nowait())
        waiting, self._waiting = self._waiting, []
        for at, fetch in enumerate(waiting):
            if fetch.ticket != fetch.work.ticket:
                continue
            connection = self._connections.take(self._hosts.endpoint(fetch.work.broker))
            if connection is None:
                self._waiting = waiting[at:]
                return
            self._send(fetch, connection)

    def _send(self, fetch: OrderlyFetch, connection: FetchConnection) -> None:
        sent_ms = monotonic_ms()
        try:
            connection.ask(fetch.ask)
        except DeltaMQError as error:
            self._failed(fetch, connection, error)
            return
        self._selector.register(connection, selectors.EVENT_READ, _Open(fetch, connection, sent_ms))

    def _read(self, open_fetch: _Open) -> None:
        connection = open_fetch.connection
        self._selector.unregister(connection)
        try:
            fetched = connection.read()
        except DeltaMQError as error:
            self._failed(open_fetch.fetch, connection, error)
            return
        self._hosts.answered(connection.endpoint)
        self._connections.give_back(connection)
        lock = open_fetch.fetch.work.lock
        lock.renewed(lock.number, open_fetch.sent_ms, monotonic_ms())
        self._heard(open_fetch.fetch, fetched)

    def _failed(self, fetch: OrderlyFetch, connection: FetchConnection, error: DeltaMQError) -> None:
        self._connections.discard(connection)
        self._hosts.failed(connection.endpoint, error)
        self._heard(fetch, error)

    def _drop_late(self) -> None:
        now = time.monotonic()
        for open_fetch in self._open():
            if open_fetch.connection.expires <= now:
                self._end(open_fetch)
                error = Unknown(f"{open_fetch.connection.endpoint.url} did not answer in time", code=NO_ANSWER)
                self._hosts.failed(open_fetch.connection.endpoint, error)
                self._heard(open_fetch.fetch, error)

    def _end(self, open_fetch: _Open) -> None:
        self._selector.unregister(open_fetch.connection)
        self._connections.discard(open_fetch.connection)

    def close(self) -> None:
        """End the thread, which releases everything; if it was never started, this does."""
        self._closed = True
        if self._began:
            self._ring()
        else:
            self._release()
