"""uvicorn's HTTP protocol with the limits and answers that it leaves to the application.

header section     at most HEADER_SECTION_BYTES_MAX, complete within HEADER_SECTION_S  -> 431, 408
connections        at most connections_max                                            -> closed
not HTTP at all    problem+json like every other refusal                              -> 400
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from api.answer import Answer
from api.problems import answer_of
from mq.errors import Refused

__all__ = ["HttpProtocol"]

#: Names and values of one request's headers together.
HEADER_SECTION_BYTES_MAX: Final = 64 * 1024
#: A client that has begun a request sends its headers within this time, or is cut off.
HEADER_SECTION_S: Final = 20.0


class _Rejected(Refused):
    """The request could not be read as HTTP."""

    code = "invalid_http"


class _HeadersTooLarge(Refused):
    """The headers are over their limit."""

    status = 431
    code = "headers_too_large"


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    connections_max = 10_000

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._refused: Refused | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.abort()
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_done()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECTION_S, self._too_slow)

    def _headers_done(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        """The connection never sent a request, or stopped in the middle of its headers."""
        if not self.transport.is_closing():
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._expect_headers()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > HEADER_SECTION_BYTES_MAX:
            limit = HEADER_SECTION_BYTES_MAX
            self._refused = _HeadersTooLarge(
                f"path and headers: at most {limit} bytes", field="headers", extra={"limit": limit}
            )
            raise self._refused  # the parser stops and calls `send_400_response`

    def on_headers_complete(self) -> None:
        self._headers_done()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused, and close."""
        self._write(answer_of(self._refused or _Rejected(msg, field="request")))
        self.transport.close()

    def _write(self, answer: Answer) -> None:
        assert isinstance(answer.body, bytes), "problems are small"
        head = [STATUS_LINE.get(answer.status, b"HTTP/1.1 400 Bad Request\r\n")]
        for name, value in answer.headers:
            head += [name, b": ", value, b"\r\n"]
        head += [b"connection: close\r\n\r\n", answer.body]
        self.transport.write(b"".join(head))
