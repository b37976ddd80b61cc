"""HTTP as a client sees it: one of several services answers, or nobody knows what happened."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

__all__ = ["Answer", "Door", "NeverSent", "NoAnswer"]


class NoAnswer(Exception):
    """The request may have been applied."""


class NeverSent(Exception):
    """Nobody listened: the request had no effect."""


class Answer(NamedTuple):
    status: int
    body: Any

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether the service says that it did not do it: what a client did wrong, or a conflict."""
        return 400 <= self.status < 500


#: A connection that nobody used for longer is not used again: the service closes it some time.
_IDLE_S: Final = 2.0


class Door:
    """A connection to one of several services; after a failure, the next request goes to the next one."""

    def __init__(self, urls: Sequence[str], *, timeout_s: float = 10.0) -> None:
        self._hosts = [urlsplit(url).netloc for url in urls]
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._used_s = 0.0

    def call(self, method: str, path: str, body: object = None) -> Answer:
        """Ask; raises `NoAnswer` or `NeverSent`."""
        data = None if body is None else json.dumps(body).encode()
        try:
            connection = self._connected()
        except OSError as error:
            self._failed()
            raise NeverSent(str(error)) from error
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"} if data is not None else {})
            found = connection.getresponse()
            raw = found.read()
            # Headers that were cut off are no error for this library.
            body = json.loads(raw) if found.headers.get("content-length") is not None or found.chunked else _cut()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._failed()
            raise NoAnswer(f"{type(error).__name__}: {error}") from error
        if found.status >= 500:
            self.turn()
        return Answer(found.status, body)

    def _connected(self) -> http.client.HTTPConnection:
        is_old = time.monotonic() - self._used_s > _IDLE_S
        self._used_s = time.monotonic()
        if self._connection is None or self._connection.sock is None or is_old:
            self.close()
            self._connection = http.client.HTTPConnection(self._hosts[0], timeout=self._timeout_s)
            self._connection.connect()
        return self._connection

    def turn(self) -> None:
        """The next service, please."""
        if len(self._hosts) > 1:
            self.close()
            self._hosts = self._hosts[1:] + self._hosts[:1]

    def cut(self) -> None:
        """The connection breaks, whatever is under way; for other threads than the one that asks."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _failed(self) -> None:
        self.close()
        self.turn()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _cut() -> Any:
    raise ValueError("the headers end too early")
