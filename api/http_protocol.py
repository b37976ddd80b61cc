"""uvicorn's HTTP protocol, with limits and error answers of our own.

    header section     at most HEADER_SECTION_BYTES_MAX in HEADER_LINES_MAX lines         -> 431
                       complete within header_section_s                                   -> closed
    slow readers       take at least ANSWER_BYTES_S_MIN of an answer, over answer_look_s  -> closed
    connections        at most connections_max, TLS handshakes among them                 -> closed
    not HTTP at all    problem+json like every other refusal, after the answers before it -> 400
    two ways to read   heads that a proxy may understand otherwise (`check_head`)         -> 400
    other protocols    an offer to change to one is ignored: the request is read as if it made none
    trailers           are read and dropped: a header comes before the body
    small answers      head and body in one write: two cost a tenth of a produce request
    cancelled pops     answered, with what they have popped, when the client has closed its half of the connection, or
                       has sent its next request on it: clients do this over TLS, which cannot close one half
    TLS                the scope's extension `tls` names the subject of the client's certificate

RFC 9110 and 9112 leave some heads to the reader, and two readers that differ can be played against each other: one
reads a body where the other reads the next request. Such heads are refused (SPEC SEC-48). The parser refuses
Content-Length given twice or beside Transfer-Encoding, and control characters.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from deltamq.api.tls import EXTENSION as TLS
from deltamq.api.tls import TlsPeer, peer_of
from deltamq.api.wire.answer import SECURITY_HEADERS, WRITE_WHOLE, Answer, answer_of
from deltamq.api.wire.request import HALF_CLOSED
from deltamq.mq.errors import Refused
from deltamq.mq.limits import ANSWER_BYTES_S_MIN, HEADER_LINES_MAX, HEADER_SECTION_BYTES_MAX

log = logging.getLogger("deltamq.api")

_SECURITY: Final = b"".join(b"%s: %s\r\n" % header for header in SECURITY_HEADERS)
#: How the path of a pop ends.
_POP: Final = b"/pop"


class _HeadersTooLarge(Refused):
    status = 431
    code = "headers_too_large"


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self, *args: Any, connections_max: int, header_section_s: float, answer_look_s: float, **kwargs: Any
    ) -> None:
        """The other arguments are uvicorn's."""
        super().__init__(*args, **kwargs)
        self._connections_max = connections_max
        self._header_section_s = header_section_s
        self._answer_look_s = answer_look_s
        self._header_bytes = 0
        self._header_lines = 0
        self._in_headers = True
        self._refused: Refused | None = None
        #: Requests whose heads were read and that have no answer yet.
        self._unanswered = 0
        #: A refusal that waits until the requests before it are answered.
        self._last_answer: Answer | None = None
        self._deadline: asyncio.TimerHandle | None = None
        #: Done when the client of the latest request, a pop, has closed its half of the connection.
        self._left: asyncio.Future[None] | None = None
        self._peer: TlsPeer | None = None
        #: While the client reads an answer too slowly: the next look at it, and the unsent bytes at the last look.
        self._look: asyncio.TimerHandle | None = None
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._connections_max:
            transport.abort()
            return
        self._peer = peer_of(transport.get_extra_info("ssl_object"))
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_done()
        self._stop_looking()
        super().connection_lost(exc)

    # Slow readers -----------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_looking()
        self._unsent = self.transport.get_write_buffer_size()
        self._look = self.loop.call_later(self._answer_look_s, self._look_at_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_looking()

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _look_at_reader(self) -> None:
        """End the connection, unless the client has read enough of its answer since the last look."""
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if before - self._unsent >= ANSWER_BYTES_S_MIN * self._answer_look_s:
            self._look = self.loop.call_later(self._answer_look_s, self._look_at_reader)
            return
        self._look = None
        log.warning("event=slow_reader_cut_off client=%r unsent_bytes=%d", self.client, self._unsent)
        self.transport.abort()

    # Headers ----------------------------------------------------------------------------------------------------

    def _expect_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._header_section_s, self._too_slow)

    def _headers_done(self) -> None:
        self._in_headers = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._last_answer is not None or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("the request cannot be read as HTTP")
            return
        # Nearly all header sections come in one piece and need no timer.
        if self._in_headers:
            self._expect_headers()

    def _feed(self, data: bytes) -> None:
        """Parse received bytes. The parser stops at a head that offers another protocol: a new parser goes on there."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                method, version = self.parser.get_method(), self.parser.get_http_version()
                data = without_offer(method, self.url, version, self.headers) + data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._header_lines = 0
        self._in_headers = True

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_lines += 1
        self._count(len(name) + len(value))
        if self._in_headers:
            super().on_header(name, value)

    def _count(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > HEADER_SECTION_BYTES_MAX:
            self._refuse_headers(HEADER_SECTION_BYTES_MAX, "bytes")
        if self._header_lines > HEADER_LINES_MAX:
            self._refuse_headers(HEADER_LINES_MAX, "headers")

    def _refuse_headers(self, limit: int, unit: str) -> NoReturn:
        detail = f"path and headers: at most {limit} {unit}"
        self._refused = _HeadersTooLarge(detail, field="headers", extra={"limit": limit})
        raise self._refused  # the parser stops and calls `send_400_response`

    def on_headers_complete(self) -> None:
        self._headers_done()
        try:
            check_head(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        except BadHead as error:
            self._refused = error
            raise
        if self.parser.should_upgrade():
            return  # `_feed` reads it again, without the offer
        super().on_headers_complete()
        self._unanswered += 1
        if self._left is not None and not self._left.done() and self.pipeline:
            self._left.set_result(None)
        extensions: dict[str, dict[Any, Any]] = {WRITE_WHOLE: {"write": partial(_write_whole, self.cycle)}}
        if self._peer is not None:
            extensions[TLS] = self._peer.extension()
        self._left = None
        if self.scope["raw_path"].endswith(_POP):
            self._left = self.loop.create_future()
            extensions[HALF_CLOSED] = {"left": self._left}
        self.scope["extensions"] = extensions

    def on_body(self, body: bytes) -> None:
        if not self.parser.should_upgrade():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        super().on_response_complete()
        self._end_refused()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the client's other half open while a pop is not answered; every other request ends.

        TLS cannot close one half: asyncio would close both. Its clients send their next request instead.
        """
        if self._left is None or self.cycle.response_complete or self.pipeline or self.scheme == "https":
            return False
        self.cycle.keep_alive = False
        if not self._left.done():
            self._left.set_result(None)
        return True

    def send_400_response(self, msg: str) -> None:
        """Answer a request that could not be read once those before it are answered; then close the connection."""
        self._last_answer = answer_of(self._refused or BadHead(msg, field="request"))
        cycle = self.cycle
        if self._unanswered > 0 and cycle.more_body and not cycle.response_complete:
            # This request was not read to its end: if it has no answer yet, it gets this one.
            self._give_up(cycle)
        self._end_refused()

    def _give_up(self, cycle: RequestResponseCycle) -> None:
        """End a request as if its client had gone."""
        if cycle.response_started:
            self.transport.abort()  # half of another answer is on its way
            return
        cycle.disconnected = True
        cycle.message_event.set()
        self._unanswered -= 1
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()

    def _end_refused(self) -> None:
        answer = self._last_answer
        if answer is not None and self._unanswered == 0 and not self.transport.is_closing():
            assert isinstance(answer.body, bytes), "problems are small"
            self.transport.write(b"".join([*_head(answer), b"connection: close\r\n\r\n", answer.body]))
            self.transport.close()


def _head(answer: Answer) -> list[bytes]:
    head = [STATUS_LINE[answer.status], _SECURITY]
    for name, value in answer.headers:
        head += [name, b": ", value, b"\r\n"]
    return head


def _write_whole(cycle: RequestResponseCycle, answer: Answer) -> bool:
    """Write a whole small answer, which `send` then only ends; return False if that is not possible."""
    if cycle.disconnected or cycle.response_started or cycle.flow.write_paused or not cycle.keep_alive:
        return False
    if cycle.scope["method"] == "HEAD":
        return False
    assert isinstance(answer.body, bytes), "the caller checks this"
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    cycle.chunked_encoding = False  # the length is in the headers, and all of it is written here
    cycle.transport.write(b"".join([*_head(answer), b"\r\n", answer.body]))
    return True


#: Headers that say one thing: given twice, a proxy may believe the first and the service the last.
_ONCE: Final = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"last-event-id",
        b"producer-id",
        b"producer-seq",
        b"transfer-encoding",
    )
)
#: Headers between processes of a cluster.
_OURS: Final = b"mq-"
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")

Header = tuple[bytes, bytes]


class BadHead(Refused):
    """The request cannot be read as HTTP, or can be read in two ways."""

    code = "invalid_http"


def check_head(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> None:
    """Refuse a head that another reader could understand otherwise.

    The names of `headers` are in lower case. Raises `BadHead`.
    """
    if method == b"CONNECT":
        raise BadHead("CONNECT: this service is no proxy", field="method")
    if version not in ("1.0", "1.1"):
        raise BadHead(f"HTTP/{version}: this service speaks HTTP/1.1", field="version")
    if b"#" in target:
        raise BadHead("target: a fragment stays with the client; write %23 for a #", field="target")
    seen: set[bytes] = set()
    for name, value in headers:
        if name in _ONCE or name.startswith(_OURS):
            if name in seen:
                raise BadHead(f"{name.decode()}: give this header once", field=name.decode())
            seen.add(name)
            if name == b"host":
                _check_host(value)
            elif name == b"transfer-encoding":
                _check_coding(value, version)
    if b"host" not in seen and version != "1.0":
        raise BadHead("host: HTTP/1.1 needs this header", field="host")


def without_offer(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> bytes:
    """Return the head of a request that offers another protocol, as bytes, without the offer.

    The service speaks only HTTP/1.1, and a server may ignore an offer (RFC 9110, 7.8). The parser stops at one.
    """
    lines = [b"%s %s HTTP/%s\r\n" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            value = b",".join(option for option in value.split(b",") if option.strip().lower() != b"upgrade")
        if name != b"upgrade":
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join([*lines, b"\r\n"])


def _check_host(value: bytes) -> None:
    if _HOST.fullmatch(value.strip()) is None:
        raise BadHead("host: write NAME or NAME:PORT", field="host")


def _check_coding(value: bytes, version: str) -> None:
    if version == "1.0":
        raise BadHead("transfer-encoding: HTTP/1.0 has none; send Content-Length", field="transfer-encoding")
    if value.strip().lower() != b"chunked":
        detail = f"transfer-encoding {value.decode('latin-1')!r}: only chunked is understood; send the body uncoded"
        raise BadHead(detail, field="transfer-encoding")
