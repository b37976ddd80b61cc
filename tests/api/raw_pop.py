"""A pop on a connection of its own, which a test can close by half."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from typing import Any

from deltamq.mq.limits import WAIT_MS_MAX
from tests.api.running import Api

__all__ = ["RawPop"]


class RawPop:
    """A pop on a connection of its own."""

    def __init__(self, api: Api, group: str = "billing", topic: str = "orders", **ask: Any) -> None:
        self._sock = socket.create_connection(("127.0.0.1", api.port), timeout=20)
        body = json.dumps({"wait_ms": WAIT_MS_MAX, **ask}).encode()
        head = f"POST /v1/groups/{group}/topics/{topic}/pop HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._sock.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def cancel(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def send_next(self) -> None:
        """Send the next request behind the pop, and let the connection end with its answer."""
        self._sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    def leave(self) -> None:
        self._sock.close()

    def bodies(self) -> list[str]:
        """Read the whole answer, up to the end of the connection."""
        with closing(self._sock), self._sock.makefile("rb") as stream:
            head, _, body = stream.read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        body, _, self.next_answer = body.partition(b"HTTP/1.1")
        return [one["body"] for one in json.loads(body)["messages"]]
