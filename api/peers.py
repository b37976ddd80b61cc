"""Requests that another process of the warehouse must answer: sent there as they came, and its answer sent back.

    client --> this process --(Mq-Forwarded: <host id>)--> owner of the role
           <--             <------------------------------

A request that was forwarded is not forwarded again: two processes with different views would send it in circles. It
goes over the event loop's own streams, so that a long poll costs a connection and no thread, and ends when its client
goes. Whoever is asked may be stopped or dead: waiting ends when the metadata says that it was declared dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from api.answer import Answer, Header
from api.hosting import Hosting
from api.request import Client, ClientGone, Scope
from mq.errors import Unavailable, Unknown

__all__ = ["FORWARDED", "Call", "Peers", "as_response", "is_forwarded", "meta_offset_of"]

FORWARDED: Final = b"mq-forwarded"
#: Up to where the sender has seen the metadata: who answers sees at least as much, or it would contradict the sender.
META_OFFSET: Final = b"mq-meta-offset"
_OFFSET_DIGITS: Final = 20
#: What a call that does not wait may take at its owner.
TIMEOUT_S: Final = 30.0
_CONNECT_S: Final = 2.0
#: Idle connections kept to each process.
_IDLE_MAX: Final = 32
#: A kept connection is not used again after so long: shorter than the server's own limit by default.
_IDLE_S: Final = 30.0
_HEAD_BYTES_MAX: Final = 64 * 1024
#: Headers that are about one connection, or that are made anew.
_OWN: Final = frozenset(
    b"host content-length connection keep-alive transfer-encoding te trailer upgrade expect proxy-connection".split()
)


class Call(NamedTuple):
    """One request as it came."""

    method: str
    #: Path and query, still encoded.
    target: bytes
    headers: Sequence[Header]
    body: bytes
    timeout_s: float = TIMEOUT_S

    @classmethod
    def of(cls, scope: Scope, body: bytes | bytearray = b"", *, wait_ms: int = 0) -> Call:
        """The request of an ASGI scope, whose body was read; it may wait for `wait_ms` at its owner."""
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        return cls(scope["method"], target, scope["headers"], bytes(body), TIMEOUT_S + wait_ms / 1000)


def is_forwarded(headers: Collection[Header]) -> bool:
    """Whether another process sent the request on."""
    return any(name == FORWARDED for name, _ in headers)


def meta_offset_of(headers: Collection[Header]) -> int:
    """Up to where another process that sent the request on has seen the metadata; 0 when none did."""
    value = next((value for name, value in headers if name == META_OFFSET), b"0")
    return int(value) if value.isdigit() and len(value) < _OFFSET_DIGITS else 0


def as_response(answer: Answer) -> Response:
    """The answer of another process for FastAPI's routes."""
    body = answer.body
    assert isinstance(body, bytes), "answers of other processes are whole"
    response = Response(body, status_code=answer.status)
    response.raw_headers = list(answer.headers)
    return response


class Peers:
    """The other processes of the warehouse, as this one reaches them."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._loop = asyncio.get_running_loop()
        self._idle: dict[str, list[_Connection]] = {}

    async def elsewhere(self, role: str, call: Call, client: Client | None = None) -> Answer | None:
        """The answer of the process that has a role; None when it is this one, which must answer itself.

        Raises
        ------
        Unavailable
            `not_owner` when the request was forwarded already; `broker_unavailable`, `lease_lost` when nobody serves
            the role now, or the owner cannot be reached. Nothing is known then of what it did with the request.
        ClientGone
            `client` closed its connection.
        """
        if self._hosting.hosts(role):
            return None
        owner = self._hosting.owner(role)
        if owner is None or owner.id == self._hosting.id or is_forwarded(call.headers):
            self._hosting.epoch(role)  # says why not
            return None
        return await self.ask(owner.id, owner.address, call, client)

    async def elsewhere_as_response(
        self, role: str, request: Request, body: bytes | None = None, *, wait_ms: int = 0
    ) -> Response | None:
        """The same for FastAPI's routes."""
        if self._hosting.hosts(role):
            return None
        call = Call.of(request.scope, await request.body() if body is None else body, wait_ms=wait_ms)
        answer = await self.elsewhere(role, call)
        return None if answer is None else as_response(answer)

    async def ask(self, host: str, address: str, call: Call, client: Client | None = None) -> Answer:
        """The answer of one host; ends early when that is declared dead, or the client has gone."""
        known = (META_OFFSET, b"%d" % self._hosting.meta_offset)
        headers = [*call.headers, (FORWARDED, self._hosting.id.encode()), known]
        asking = asyncio.ensure_future(
            self.forward(address, call.method, call.target, headers, call.body, call.timeout_s)
        )
        departure = self._hosting.departure(host)
        waiting: set[asyncio.Future[object]] = {asking, departure}  # type: ignore[arg-type] # of any result
        if client is not None:
            waiting.add(client.gone)  # type: ignore[arg-type] # of any result
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asking
        if client is not None and client.gone.done():
            raise ClientGone
        raise Unavailable("the process that was asked is gone; ask again", code="broker_unavailable")

    async def forward(
        self,
        address: str,
        method: str,
        path_qs: str | bytes,
        headers: Collection[Header],
        body: bytes,
        timeout_s: float,
    ) -> Answer:
        """Send one request to `address`, a URL without a path, and return its whole answer.

        Raises
        ------
        Unavailable
            `broker_unavailable`: there was no connection, or none any more; a request that had been sent may have been
            applied.
        Unknown
            There was no answer in time.
        """
        target = path_qs.encode("ascii") if isinstance(path_qs, str) else path_qs
        parts = [b"%s %s HTTP/1.1\r\nhost: %s\r\n" % (method.encode(), target, urlsplit(address).netloc.encode())]
        parts += [b"%s: %s\r\n" % (name, value) for name, value in headers if name.lower() not in _OWN]
        parts += [b"content-length: %d\r\n\r\n" % len(body), body]
        raw = b"".join(parts)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(address, raw)
        except TimeoutError:
            raise Unknown("the process that serves this did not answer in time; it may have been applied") from None
        except (OSError, EOFError, ValueError) as error:
            self._hosting.suspect()
            detail = f"the process that serves this cannot be reached: {type(error).__name__}; ask again"
            raise Unavailable(detail, code="broker_unavailable") from None

    async def _exchange(self, address: str, raw: bytes) -> Answer:
        """On a kept connection if there is one that is still good, else on a new one."""
        kept = self._kept(address)
        if kept is not None:
            try:
                return await self._on(address, kept, raw)
            except _Unused:
                pass  # closed by the other side before it read any of it
        return await self._on(address, await _connect(address), raw)

    def _kept(self, address: str) -> _Connection | None:
        idle = self._idle.get(address, [])
        while idle:
            one = idle.pop()
            if self._loop.time() - one.since_s < _IDLE_S and not one.reader.at_eof():
                return one
            one.close()
        return None

    async def _on(self, address: str, connection: _Connection, raw: bytes) -> Answer:
        kept = False
        try:
            answer, kept = await connection.ask(raw)
            return answer
        finally:
            idle = self._idle.setdefault(address, [])
            if kept and len(idle) < _IDLE_MAX:
                connection.since_s = self._loop.time()
                connection.used = True
                idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close what is kept."""
        for idle in self._idle.values():
            for one in idle:
                one.close()
        self._idle.clear()


class _Unused(Exception):
    """A kept connection ended before a byte of the answer: the server had closed it meanwhile."""


class _Connection:
    """One connection to another process, with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        self.since_s = 0.0
        #: Whether a request was answered on it before.
        self.used = False

    async def ask(self, raw: bytes) -> tuple[Answer, bool]:
        """The answer, and whether the connection may be used again."""
        try:
            self._writer.write(raw)
            await self._writer.drain()
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise ValueError("the head of the answer is too long") from error
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if self.used and not getattr(error, "partial", b""):
                raise _Unused from error
            raise
        status, headers = _parse_head(head)
        if status == 204:
            return Answer(status, [(name, value) for name, value in headers if name not in _OWN], b""), _stays(headers)
        body = await self._body(headers)
        own = [(name, value) for name, value in headers if name not in _OWN]
        return Answer(status, [*own, (b"content-length", b"%d" % len(body))], body), _stays(headers)

    async def _body(self, headers: Sequence[Header]) -> bytes:
        fields = dict(headers)
        length = fields.get(b"content-length")
        if length is not None:
            return await self.reader.readexactly(int(length))
        if fields.get(b"transfer-encoding", b"").lower() != b"chunked":
            raise ValueError("an answer without a length")
        chunks = []
        while size := int((await self.reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            chunks.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readuntil(b"\r\n")
        return b"".join(chunks)

    def close(self) -> None:
        self._writer.close()


async def _connect(address: str) -> _Connection:
    url = urlsplit(address)
    tls = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if tls else 80)
    opening = asyncio.open_connection(url.hostname, port, ssl=tls, limit=_HEAD_BYTES_MAX)
    try:
        reader, writer = await asyncio.wait_for(opening, _CONNECT_S)
    except TimeoutError as error:
        raise ConnectionError("no connection in time") from error
    return _Connection(reader, writer)


def _parse_head(head: bytes) -> tuple[int, list[Header]]:
    """Status and headers, their names in lower case."""
    first, *lines = head[:-4].split(b"\r\n")
    status = int(first.split(b" ", 2)[1])
    headers = []
    for line in lines:
        name, mark, value = line.partition(b":")
        if not mark:
            raise ValueError("not a header")
        headers.append((name.strip().lower(), value.strip()))
    return status, headers


def _stays(headers: Sequence[Header]) -> bool:
    return dict(headers).get(b"connection", b"").lower() != b"close"
