"""Reading one HTTP request of a hot call: query, headers, and a body that is counted as it arrives.

Bytes are reserved before they are read (`Admission`), which bounds the bytes of all clients at once, whatever
length each declares. If no bytes are left, the answer is 429 (SPEC RELY-8).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from types import TracebackType
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from deltamq.mq.errors import DeltaMQError, Overloaded, Refused, TooLarge, Unprocessable, UnsupportedMedia

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_Q = re.compile(r"q\s*=\s*([01](?:\.[0-9]*)?)")


#: Name of an ASGI extension of our HTTP protocol: its `left` is a future, done when the client of a pop has closed
#: its half of the connection; it can still be answered.
HALF_CLOSED: Final = "deltamq.half_closed"


#: Name of the entry of a request's scope with a function that takes its `Client` and returns the end of the watch.
WATCH: Final = "deltamq.watch"
#: Name of the entry of a request's scope with the error that ended it before its client did.
REFUSAL: Final = "deltamq.refusal"
#: Name of the entry of a request's scope that says that the call was to wait.
WAITED: Final = "deltamq.waited"
#: Name of the entry of a request's scope with its `Steps`; it is there only if the request is measured.
STEPS: Final = "deltamq.steps"
#: Name of the entry of a request's scope with its needs beside its path's: resource, name and verb of each.
ALSO_NEEDS: Final = "deltamq.also_needs"


class ClientDisconnected(Exception):
    """The client closed the connection before it was answered; there is no answer to send."""


class Client:
    """The client's connection; only waiting calls watch it, from the first look at `gone` on."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        extension = scope.get("extensions", {}).get(HALF_CLOSED)
        self._receive = receive
        self._left: asyncio.Future[None] | None = None if extension is None else extension["left"]
        self._watching: asyncio.Task[None] | None = None
        self._scope = scope
        self._unwatch: Callable[[], None] | None = None
        #: Whether the watch may begin, and has not.
        self._may_watch = True

    @property
    def refusal(self) -> DeltaMQError | None:
        """The error that ended the request before its client did; None if it goes on."""
        refusal: DeltaMQError | None = self._scope.get(REFUSAL)
        return refusal

    @property
    def also_needs(self) -> Sequence[tuple[Any, str, Any]]:
        """The needs of the request beside its path's, as long as it waits."""
        needs: Sequence[tuple[Any, str, Any]] = self._scope.get(ALSO_NEEDS, ())
        return needs

    def leave(self, refusal: DeltaMQError | None = None) -> None:
        """End the request, as if its client had closed the connection; a `refusal` is then its answer.

        Without a refusal, the client has repeated its call on another connection.
        """
        if refusal is not None:
            self._scope[REFUSAL] = refusal
        if not self.gone.done():
            self.gone.set_result(None)

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done when the client has closed the connection, or its half of it."""
        if self._left is None:
            self._left = asyncio.get_running_loop().create_future()
        if self._may_watch:
            self._may_watch = False
            self._scope[WAITED] = True
            self._watching = asyncio.ensure_future(self._watch(self._left))
            watch: Callable[[Client], Callable[[], None]] | None = self._scope.get(WATCH)
            self._unwatch = None if watch is None else watch(self)
        return self._left

    def has_left(self) -> bool:
        """Whether the client has gone, so that a wait ends with what there is.

        Raises
        ------
        ClientDisconnected
            The request's access has ended: its refusal is the answer (SPEC SEC-5).
        """
        if self.refusal is not None:
            raise ClientDisconnected
        return self.gone.done()

    async def _watch(self, left: asyncio.Future[None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not left.done():
            left.set_result(None)

    def close(self) -> None:
        """Stop watching the connection, for good."""
        self._may_watch = False
        if self._watching is not None:
            self._watching.cancel()
        if self._unwatch is not None:
            self._unwatch()


class BodyTooSlow(Refused):
    """The request's body did not arrive in time; nothing was stored."""

    status = 408
    code = "request_timeout"


class Admission:
    """Bounds the requests of one kind, and their bytes, that the service holds at once; used on the event loop only."""

    def __init__(self, kind: str, *, bytes_max: int, requests_max: int) -> None:
        self._kind = kind
        self._bytes_max = bytes_max
        self._requests_max = requests_max
        self.bytes = 0
        self.requests = 0

    def enter(self, count: int = 0) -> Ticket:
        """Admit one request and `count` of its bytes, or raise `Overloaded`."""
        if self.requests >= self._requests_max:
            raise Overloaded(f"{self._requests_max} {self._kind} requests are under way; try again", code="queue_full")
        self.reserve(count)
        self.requests += 1
        return Ticket(self, count)

    @property
    def free(self) -> int:
        """How many more bytes can be admitted now."""
        return max(0, self._bytes_max - self.bytes)

    @property
    def is_half_full(self) -> bool:
        """Whether half of what can be held is taken, by requests or by their bytes."""
        return 2 * self.requests >= self._requests_max or 2 * self.bytes >= self._bytes_max

    def reserve(self, count: int) -> None:
        """Admit `count` more bytes, or raise `Overloaded`."""
        assert count >= 0, "a reservation only grows"
        self.check_room(count)
        self.bytes += count

    def check_room(self, count: int) -> None:
        """Return if `count` more bytes could be admitted now, else raise `Overloaded`."""
        if self.bytes + count > self._bytes_max:
            raise self.full()

    def full(self) -> Overloaded:
        """Return the error for a request without room."""
        detail = f"{self._bytes_max} bytes of {self._kind} requests are under way; try again"
        return Overloaded(detail, code="queue_full")


class Ticket:
    """One admitted request; leaving the `with` block releases its reservation."""

    __slots__ = ("_admission", "bytes")

    def __init__(self, admission: Admission, count: int) -> None:
        self._admission = admission
        self.bytes = count

    def grow(self, count: int) -> None:
        self._admission.reserve(count)
        self.bytes += count

    @property
    def free(self) -> int:
        """How many more bytes can be reserved now."""
        return self._admission.free

    def full(self) -> Overloaded:
        """Return the error for a request without room."""
        return self._admission.full()

    def settle(self, count: int) -> None:
        """Reserve exactly `count` bytes, which are in memory already: even beyond the limit, so it refuses nothing."""
        self._admission.bytes += count - self.bytes
        self.bytes = count

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release the reservation, once."""
        self._admission.bytes -= self.bytes
        self._admission.requests -= 1
        assert self._admission.bytes >= 0 and self._admission.requests >= 0, "a request is released once"


# Headers and body ---------------------------------------------------------------------------------------------


Headers: TypeAlias = dict[bytes, bytes]


def headers_of(scope: Scope) -> Headers:
    """Return the request's headers by lower-case name; of a repeated header the last."""
    return dict(scope["headers"])


def header_text(headers: Headers, name: bytes) -> str | None:
    """Return a header as text."""
    value = headers.get(name)
    return None if value is None else value.decode("latin-1").strip()


def media_type(headers: Headers) -> str:
    """Return the request's media type without parameters, in lower case; empty if it has none."""
    value = headers.get(b"content-type")
    return "" if value is None else value.decode("latin-1").partition(";")[0].strip().lower()


def preferred(headers: Headers, offered: Sequence[str]) -> str:
    """Return the media type that `Accept` prefers among those `offered`: by `q`, then as they are named there.

    Wildcards do not count: what names nothing that is offered gets the first.
    """
    value = header_text(headers, b"accept")
    if value is None or value in offered:
        return value or offered[0]
    best, best_q = offered[0], 0.0
    for entry in value.lower().split(","):
        named, *parameters = (part.strip() for part in entry.split(";"))
        weights = [weight[1] for parameter in parameters if (weight := _Q.fullmatch(parameter))]
        q = float(weights[0]) if weights else 1.0
        if named in offered and q > best_q:
            best, best_q = named, q
    return best


def check_encoding(headers: Headers) -> None:
    """Refuse a body with a content encoding: compressed bytes would be taken for the body itself."""
    value = headers.get(b"content-encoding")
    if value is not None and value.strip().lower() not in (b"", b"identity"):
        raise UnsupportedMedia(
            f"content-encoding {value.decode('latin-1')}: send the body without an encoding",
            code="unsupported_encoding",
            field="content-encoding",
        )


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"body: at most {limit} bytes are taken in one request",
        code="request_too_large",
        field="body",
        extra={"limit": limit},
    )


async def read_body(
    headers: Headers, receive: Receive, ticket: Ticket, *, limit: int, within_ms: int
) -> bytes | bytearray:
    """Return the whole body, of at most `limit` bytes, which are reserved in `ticket`.

    Raises
    ------
    UnsupportedMedia
        The body is encoded.
    TooLarge
        The body is over the limit; raised as soon as its declared length or the received bytes show it.
    BodyTooSlow
        The body was not complete after `within_ms`.
    ClientDisconnected
        The connection ended first.
    """
    check_encoding(headers)
    declared = _declared_length(headers)
    if declared > limit:
        raise _too_large(limit)
    ticket.grow(declared)
    first = await receive()
    if first["type"] != "http.request":
        raise ClientDisconnected
    body: bytes = first.get("body", b"")
    if not first.get("more_body", False):
        if len(body) > limit:
            raise _too_large(limit)
        ticket.grow(max(0, len(body) - declared))
        return body
    try:
        async with asyncio.timeout(within_ms / 1000):
            if declared:
                return await _read_declared(receive, body, declared)
            return await _read_chunked(receive, body, ticket, limit)
    except TimeoutError:
        raise body_too_slow(within_ms) from None


def body_too_slow(within_ms: int) -> BodyTooSlow:
    """Return the refusal of a body that was not complete after `within_ms`."""
    return BodyTooSlow(f"body: not complete after {within_ms} ms", field="body", extra={"limit": within_ms})


def _declared_length(headers: Headers) -> int:
    value = headers.get(b"content-length")
    return int(value) if value is not None and value.isdigit() else 0


async def _read_declared(receive: Receive, first: bytes, length: int) -> bytearray:
    """Read into one buffer: joining chunks at the end would block the event loop."""
    body = bytearray(length)
    at = len(first)
    body[:at] = first
    more = True
    while more:
        chunk, more = await _next(receive)
        body[at : at + len(chunk)] = chunk
        at += len(chunk)
    if at != length:
        raise ClientDisconnected  # the HTTP parser lets no other length through
    return body


async def _read_chunked(receive: Receive, first: bytes, ticket: Ticket, limit: int) -> bytearray:
    body = bytearray()
    chunk, more = first, True
    while True:
        if len(body) + len(chunk) > limit:
            raise _too_large(limit)
        ticket.grow(len(chunk))
        body += chunk
        if not more:
            return body
        chunk, more = await _next(receive)


async def _next(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] != "http.request":
        raise ClientDisconnected
    return message.get("body", b""), message.get("more_body", False)


# Path and query -----------------------------------------------------------------------------------------------


def unquoted(raw: bytes, field: str) -> str:
    """Return percent-encoded bytes as text; a refusal names `field`."""
    try:
        return (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError:
        raise Refused(f"{field}: not UTF-8", field=field) from None


def parse_query(raw: bytes, known: Collection[str]) -> dict[str, str]:
    """Return the query's parameters; refuse an unknown or repeated one, since a mistyped limit must not be ignored."""
    parameters: dict[str, str] = {}
    if not raw:
        return parameters
    for pair in raw.split(b"&"):
        name_raw, _, value = pair.partition(b"=")
        name = unquoted(name_raw.replace(b"+", b" "), "query")
        if not name and not value:
            continue
        if name not in known:
            detail = f"{name!r} is not a parameter of this call: {', '.join(sorted(known))}"
            raise Refused(detail, code="unknown_parameter", field=name)
        if name in parameters:
            raise Refused(f"{name}: given twice", field=name)
        parameters[name] = unquoted(value.replace(b"+", b" "), name)
    return parameters


def integer(query: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return a parameter that is a whole number in `[low, high]`."""
    text = query.get(name)
    if text is None:
        return default
    if not _INTEGER.fullmatch(text):
        raise Refused(f"{name}: not a whole number", code="invalid_type", field=name)
    value = int(text)
    if not low <= value <= high:
        limit = low if value < low else high
        raise Unprocessable(f"{name}: must be from {low} to {high}", field=name, extra={"limit": limit})
    return value


def one_of(query: dict[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    """Return a parameter that must be one of a few values."""
    text = query.get(name)
    if text is not None and text not in choices:
        raise Unprocessable(f"{name}: must be one of {', '.join(choices)}", field=name)
    return text
