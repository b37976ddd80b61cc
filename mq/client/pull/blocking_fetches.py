"""The open fetches of a consumer with threads: one thread waits for the sockets of all of them at once."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Collection, Sequence
from http.client import HTTPException
from typing import Final, Generic

from msgspec.structs import replace
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from deltamq.mq.client.http.answers import error_of
from deltamq.mq.client.http.endpoint import Endpoint, is_cut_short
from deltamq.mq.client.pull.fetch import FETCH_HEADERS, FetchAsk, Fetched, Finished, Tag, read_fetched
from deltamq.mq.client.shells.blocking_transport import (
    CONNECTION_LOST,
    NO_ANSWER,
    lost_connection,
    not_answered,
    not_connected,
)
from deltamq.mq.errors import DeltaMQError, Unauthenticated, Unknown

_OK: Final = 200


class FetchConnection:
    """A connection with at most one open fetch. Not safe for several threads."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._connection = endpoint.connection(timeout_s)
        self.expires = 0.0
        #: The open fetch, and the token that it was sent with.
        self._open: tuple[FetchAsk, str | None] | None = None

    async def ask(self, ask: FetchAsk) -> None:
        """Send a fetch; its answer is due `timeout_s` after its `wait_ms`."""
        token = await self.endpoint.credentials.token()
        self._open = (ask, token)
        headers = self.endpoint.headers(token, FETCH_HEADERS)
        try:
            self._connection.request(
                "GET",
                self.endpoint.target(ask.path, ask.query),
                headers=headers,
                preload_content=False,
                decode_content=False,
            )
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise not_connected(self.endpoint.url) from error
        except (HTTPError, HTTPException, OSError) as error:
            raise lost_connection(self.endpoint.url, error) from error
        self.expires = time.monotonic() + ask.wait_ms / 1000 + self._timeout_s

    @property
    def is_usable(self) -> bool:
        """True if the idle connection is still open."""
        return bool(self._connection.is_connected)

    def fileno(self) -> int:
        """Return the descriptor of the socket to wait for, -1 if the connection is closed."""
        sock = self._connection.sock
        return -1 if sock is None else sock.fileno()

    async def read(self) -> Fetched:
        """Read the answer; blocks until it is complete, so call this when the socket is readable.

        If the token was refused and there is a newer one, the fetch is sent again, without a wait, for its answer is
        read at once.
        """
        assert self._open is not None, "a fetch is open"
        response, body = self._answer()
        ask, token = self._open
        if response.status == Unauthenticated.status and await self.endpoint.credentials.renew(token):
            await self.ask(replace(ask, wait_ms=0))
            response, body = self._answer()
        if response.status != _OK:
            raise error_of(response.status, response.headers, body)
        return read_fetched(response.headers, body)

    def _answer(self) -> tuple[BaseHTTPResponse, bytes]:
        try:
            response = self._connection.getresponse()
            body = response.read()
        except TimeoutError as error:
            raise Unknown(f"{self.endpoint.url} stopped in the middle of an answer", code=NO_ANSWER) from error
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            raise self._lost() from error
        if is_cut_short(response.status, response.headers):
            raise self._lost()
        return response, body

    def _lost(self) -> Unknown:
        return Unknown(f"the connection to {self.endpoint.url} was lost", code=CONNECTION_LOST)

    def close(self) -> None:
        """Close the connection, even with an open fetch."""
        self._connection.close()


class BlockingFetches(Generic[Tag]):
    """At most `open_max` connections, idle or with an open fetch. One thread uses it; any may call `wake`."""

    def __init__(self, *, open_max: int, timeout_s: float) -> None:
        self._connections_max = open_max
        self._timeout_s = timeout_s
        self._idle: dict[Endpoint, list[FetchConnection]] = {}
        self._connections = 0
        self._open: dict[Tag, FetchConnection] = {}
        #: Fetches that could not be sent.
        self._failed: list[Finished[Tag]] = []
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)

    async def start(self, tag: Tag, endpoint: Endpoint, ask: FetchAsk) -> bool:
        """Send a fetch; see `Fetches`."""
        connection = self._taken(endpoint)
        if connection is None:
            return False
        try:
            await connection.ask(ask)
        except DeltaMQError as error:
            self._discard(connection)
            self._failed.append(Finished(tag, endpoint, error))
            return True
        self._open[tag] = connection
        self._selector.register(connection, selectors.EVENT_READ, tag)
        return True

    async def finished(self, timeout_s: float) -> Sequence[Finished[Tag]]:
        """Return the fetches that have ended; see `Fetches`."""
        failed, self._failed = self._failed, []
        first = min((connection.expires for connection in self._open.values()), default=float("inf"))
        until_s = 0.0 if failed else max(0.0, min(timeout_s, first - time.monotonic()))
        ended = []
        for key, _ in self._selector.select(until_s):
            if key.fileobj is self._bell:
                self._drain_bell()
            else:
                ended.append(await self._read(key.data))
        now = time.monotonic()
        late = [tag for tag, connection in self._open.items() if connection.expires <= now]
        return [*failed, *ended, *map(self._expired, late)]

    async def _read(self, tag: Tag) -> Finished[Tag]:
        connection = self._open.pop(tag)
        self._selector.unregister(connection)
        try:
            fetched = await connection.read()
        except DeltaMQError as error:
            self._discard(connection)
            return Finished(tag, connection.endpoint, error)
        self._idle.setdefault(connection.endpoint, []).append(connection)
        return Finished(tag, connection.endpoint, fetched)

    def _expired(self, tag: Tag) -> Finished[Tag]:
        endpoint = self._open[tag].endpoint
        self.drop(tag)
        return Finished(tag, endpoint, not_answered(endpoint.url, self._timeout_s))

    def drop(self, tag: Tag) -> None:
        """Forget the open fetch of this tag; see `Fetches`."""
        connection = self._open.pop(tag, None)
        if connection is not None:
            self._selector.unregister(connection)
            self._discard(connection)

    def wake(self) -> None:
        """Let a waiting `finished` return."""
        # A full socket wakes the thread already; a closed one has no thread to wake.
        with contextlib.suppress(OSError):
            self._rope.send(b"\0")

    def _drain_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass

    # Connections ------------------------------------------------------------------------------------------------

    def _taken(self, endpoint: Endpoint) -> FetchConnection | None:
        """Return a connection to this host for a fetch; None while all connections are in use."""
        idle = self._idle.get(endpoint, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            self._discard(connection)
        if self._connections >= self._connections_max:
            kept = next((idle for idle in self._idle.values() if idle), None)
            if kept is None:
                return None
            self._discard(kept.pop())
        self._connections += 1
        return FetchConnection(endpoint, self._timeout_s)

    def _discard(self, connection: FetchConnection) -> None:
        connection.close()
        self._connections -= 1

    def keep(self, endpoints: Collection[Endpoint]) -> None:
        """Close the idle connections to other hosts; see `Fetches`."""
        for endpoint in [endpoint for endpoint in self._idle if endpoint not in endpoints]:
            for connection in self._idle.pop(endpoint):
                self._discard(connection)

    async def close(self) -> None:
        """Drop everything; see `Fetches`."""
        for tag in list(self._open):
            self.drop(tag)
        self.keep(())
        self._selector.close()
        self._bell.close()
        self._rope.close()
