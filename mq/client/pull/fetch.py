"""Fetches on the wire: each sent on a connection of its own, read when the socket has the answer.

A consumer keeps a request open for each of its partitions and waits for all of their sockets at once: it needs no
thread for each partition, and reads first from the partition whose messages arrive first. Its connections are kept when
idle, and bounded in number.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Final

import pyarrow as pa
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from deltamq.mq.client.http.answers import error_of
from deltamq.mq.client.http.endpoint import (
    CONNECT_FAILED,
    CONNECTION_LOST,
    NO_ANSWER,
    Endpoint,
    is_cut_short,
    lost_connection,
    path_of,
)
from deltamq.mq.client.produce.wire import ARROW
from deltamq.mq.errors import Unauthenticated, Unavailable, Unknown

_OK: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAsk:
    """A fetch from one partition: messages from `offset` on, with a wait of up to `wait_ms` for the first."""

    topic: str
    partition: str
    offset: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    tags: str
    filter: str | None = None
    #: The exclusive group and its client that fetch, if the fetch needs a pull lock (SPEC ORDER-4).
    group: str | None = None
    client_id: str | None = None
    #: The topic's id, so that no offset is used in another life of it (SPEC MODEL-6).
    topic_id: str | None = None

    def target(self, endpoint: Endpoint) -> str:
        """Return the request target."""
        query: dict[str, str | int] = {
            "offset": self.offset,
            "max_messages": self.max_messages,
            "max_bytes": self.max_bytes,
            "wait_ms": self.wait_ms,
        }
        if self.tags != "*":
            query["tags"] = self.tags
        if self.filter is not None:
            query["filter"] = self.filter
        if self.group is not None:
            query["group"] = self.group
        if self.client_id is not None:
            query["client_id"] = self.client_id
        if self.topic_id is not None:
            query["topic_id"] = self.topic_id
        return endpoint.target(path_of("topics", self.topic, "partitions", self.partition, "messages"), query)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A fetch's answer; `status` is one of `found`, `no_new_message`, `offset_too_small`, `offset_too_large`."""

    status: str
    rows: pa.Table
    next_offset: int
    min_offset: int
    max_offset: int


class FetchConnection:
    """A connection with at most one open fetch. Not safe for several threads."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._connection = endpoint.connection(timeout_s)
        self.expires = 0.0
        #: The open fetch, and the token that it was sent with.
        self._open: tuple[FetchAsk, str | None] | None = None

    def ask(self, ask: FetchAsk) -> None:
        """Send a fetch; its answer is due `timeout_s` after its `wait_ms`."""
        token = self.endpoint.credentials.token()
        self._open = (ask, token)
        headers = self.endpoint.headers(token, {"Accept": ARROW})
        try:
            self._connection.request(
                "GET", ask.target(self.endpoint), headers=headers, preload_content=False, decode_content=False
            )
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise Unavailable(f"cannot connect to {self.endpoint.url}", code=CONNECT_FAILED) from error
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

    def read(self) -> Fetched:
        """Read the answer; blocks until it is complete, so call this when the socket is readable.

        If the token was refused and there is a newer one, the fetch is sent again, without a wait, for its answer is
        read at once.
        """
        assert self._open is not None, "a fetch is open"
        response, body = self._answer()
        ask, token = self._open
        if response.status == Unauthenticated.status and self.endpoint.credentials.renew(token):
            self.ask(replace(ask, wait_ms=0))
            response, body = self._answer()
        if response.status != _OK:
            raise error_of(response.status, response.headers, body)
        return _parsed(response.headers, body)

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


def _parsed(headers: Mapping[str, str], body: bytes) -> Fetched:
    try:
        rows = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
        return Fetched(
            status=headers["mq-status"],
            rows=rows,
            next_offset=int(headers["mq-next-offset"]),
            min_offset=int(headers["mq-min-offset"]),
            max_offset=int(headers["mq-max-offset"]),
        )
    except (KeyError, ValueError, OSError, pa.ArrowException) as error:
        raise Unknown(f"the answer to a fetch is unreadable: {error}", code="answer_unreadable") from error


class FetchConnections:
    """At most `connections_max` connections, idle or with an open fetch."""

    def __init__(self, *, connections_max: int, timeout_s: float) -> None:
        self._connections_max = connections_max
        self._timeout_s = timeout_s
        self._idle: dict[Endpoint, list[FetchConnection]] = {}
        self._open = 0

    def take(self, endpoint: Endpoint) -> FetchConnection | None:
        """Return a connection to this host for a fetch; None while all connections are in use."""
        idle = self._idle.get(endpoint, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            self.discard(connection)
        if self._open >= self._connections_max:
            self._close_idle()
        if self._open >= self._connections_max:
            return None
        self._open += 1
        return FetchConnection(endpoint, self._timeout_s)

    def give_back(self, connection: FetchConnection) -> None:
        """Keep a connection whose answer was read completely."""
        self._idle.setdefault(connection.endpoint, []).append(connection)

    def discard(self, connection: FetchConnection) -> None:
        """Close a connection that has an open fetch or failed."""
        connection.close()
        self._open -= 1

    def keep(self, endpoints: Collection[Endpoint]) -> None:
        """Close the idle connections to hosts other than these, which may have left the cluster."""
        for endpoint in [endpoint for endpoint in self._idle if endpoint not in endpoints]:
            for connection in self._idle.pop(endpoint):
                self.discard(connection)

    def _close_idle(self) -> None:
        kept = next((idle for idle in self._idle.values() if idle), None)
        if kept:
            self.discard(kept.pop())

    def close(self) -> None:
        """Close the idle connections."""
        for idle in self._idle.values():
            while idle:
                self.discard(idle.pop())
