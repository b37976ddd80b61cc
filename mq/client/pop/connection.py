"""The connection on which a consumer pops: one pop at a time, which may wait long and can be cancelled.

    cancel ──► the client's half of the connection is closed ──► the service sees that, and ends the pop's wait
                                                            └──► its answer, with what was popped by then, is read

So a consumer that closes leaves no popped messages behind, which others would get only when their invisible time ends.
TLS has no half of a connection: there, the next request is sent after the pop, which ends its wait, too. A proxy that
holds that request back until the pop is answered only makes the close wait longer.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from http.client import HTTPException
from typing import Final

from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from deltamq.mq.client.http.answers import error_of
from deltamq.mq.client.http.endpoint import Endpoint, is_cut_short
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.pop.client import PopAsk
from deltamq.mq.client.shells.blocking_transport import (
    CONNECTION_LOST,
    lost_connection,
    not_answered,
    not_connected,
)
from deltamq.mq.client.shells.shell import Answer
from deltamq.mq.errors import DeltaMQError, Unauthenticated, Unavailable, Unknown

_OK: Final = 200


class PopConnection(ABC):
    """A connection for pops, one after another; `cancel` may be called meanwhile."""

    def __init__(self, hosts: Hosts, timeout_s: float, endpoint: Endpoint | None = None) -> None:
        """Prepare pops at `endpoint`, or at any host of the cluster if it is None."""
        self._hosts = hosts
        self._fixed = endpoint
        self._timeout_s = timeout_s
        self._endpoint = endpoint or hosts.endpoint()
        self._cancelled = False

    async def pop(self, ask: PopAsk) -> Answer:
        """Make one attempt; if the answer is lost, popped messages are delivered again after their invisible time.

        Raises
        ------
        Unavailable
            `connect_failed`, `pop_cancelled`: nothing was popped.
        Unknown
            The answer was lost.
        """
        # Another host, if the current one is avoided now.
        wanted = self._fixed or self._hosts.endpoint()
        if wanted is not self._endpoint:
            await self._change(wanted)
        try:
            answer = await self._attempt(ask)
        except DeltaMQError as error:
            self._hosts.failed(self._endpoint, error)
            raise
        self._hosts.answered(self._endpoint)
        return answer

    async def _attempt(self, ask: PopAsk) -> Answer:
        credentials = self._endpoint.credentials
        token = await credentials.token()
        answer = await self._exchange(ask, token)
        if answer.status == Unauthenticated.status and await credentials.renew(token):
            answer = await self._exchange(ask, await credentials.token())
        if is_cut_short(answer.status, answer.headers):
            await self.close()
            raise Unknown(f"the connection to {self._endpoint.url} was lost", code=CONNECTION_LOST)
        if answer.status != _OK:
            raise error_of(*answer)
        return answer

    def _check_not_cancelled(self) -> None:
        if self._cancelled:
            raise Unavailable("the pop was cancelled; nothing was popped", code="pop_cancelled")

    def _ending_request(self) -> bytes:
        """Return a request whose arrival ends the wait of the pop before it."""
        head = f"GET {self._endpoint.target('/healthz')} HTTP/1.1\r\nHost: {self._endpoint.host}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode()

    @abstractmethod
    async def _change(self, wanted: Endpoint) -> None:
        """Go to another host."""

    @abstractmethod
    async def _exchange(self, ask: PopAsk, token: str | None) -> Answer:
        """Send the pop, and read its answer."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the open pop, and every later one."""

    @abstractmethod
    def abort(self) -> None:
        """Cancel as `cancel` does, but do not wait for an answer that may be under way."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""


class BlockingPopConnection(PopConnection):
    """A connection that one thread uses; any thread may call `cancel`."""

    def __init__(self, hosts: Hosts, timeout_s: float, endpoint: Endpoint | None = None) -> None:
        """Prepare pops at `endpoint`, or at any host of the cluster if it is None."""
        super().__init__(hosts, timeout_s, endpoint)
        self._connection = self._endpoint.connection(timeout_s)
        # Reentrant: a signal handler may cancel the pop that it interrupts.
        self._lock = threading.RLock()
        #: A byte arrives here when a pop over TLS is cancelled: two threads must not use one TLS connection at once.
        self._bell, self._rope = socket.socketpair()

    async def _change(self, wanted: Endpoint) -> None:
        self._connection.close()
        with self._lock:
            self._endpoint = wanted
            self._connection = wanted.connection(self._timeout_s)

    async def _exchange(self, ask: PopAsk, token: str | None) -> Answer:
        try:
            self._connect()
            self._set_timeout(self._timeout_s + ask.wait_ms / 1000)
            headers = self._endpoint.headers(token, ask.headers)
            target = self._endpoint.target(ask.path)
            self._connection.request(
                "POST", target, body=ask.body(), headers=headers, preload_content=False, decode_content=False
            )
            self._wait_over_tls(self._timeout_s + ask.wait_ms / 1000)
            response = self._connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        except (NewConnectionError, ConnectTimeoutError) as error:
            self._connection.close()
            raise not_connected(self._endpoint.url) from error
        except TimeoutError as error:
            self._connection.close()
            raise not_answered(self._endpoint.url, self._timeout_s + ask.wait_ms / 1000) from error
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            self._connection.close()
            raise lost_connection(self._endpoint.url, error) from error

    def _connect(self) -> None:
        connection = self._connection
        if connection.sock is not None and not connection.is_connected:
            connection.close()
        if connection.sock is None:
            connection.timeout = self._timeout_s
            connection.connect()
        with self._lock:
            self._check_not_cancelled()

    def _set_timeout(self, timeout_s: float) -> None:
        self._connection.timeout = timeout_s
        sock = self._connection.sock
        assert sock is not None, "connected just now"
        sock.settimeout(timeout_s)

    def _wait_over_tls(self, timeout_s: float) -> None:
        """Wait until the answer begins; if the pop is cancelled, send the next request, which ends its wait."""
        sock = self._connection.sock
        if not isinstance(sock, ssl.SSLSocket) or sock.pending():
            return
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(timeout_s)]
        if self._bell in ready and sock not in ready:
            sock.sendall(self._ending_request())

    def cancel(self) -> None:
        """Cancel the open pop, and every later one."""
        if self._endpoint.scheme == "https":
            with self._lock:
                self._cancelled = True
                with contextlib.suppress(OSError):
                    self._rope.send(b"!")
            return
        self._shut(socket.SHUT_WR)

    def abort(self) -> None:
        """Cancel as `cancel` does, but do not wait for an answer that may be under way."""
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with self._lock:
            self._cancelled = True
            sock = self._connection.sock
            if sock is None:
                return
            # On a copy of the descriptor: a TLS socket would drop its keys, and could not read an answer under way.
            with contextlib.suppress(OSError, ValueError), socket.socket(fileno=os.dup(sock.fileno())) as copy:
                copy.shutdown(how)

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        with self._lock:
            self._bell.close()
            self._rope.close()
