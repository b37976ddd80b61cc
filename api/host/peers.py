"""Requests that another process of the warehouse must answer: sent there as they came, and its answer sent back.

    client --> this process --(Mq-Forwarded: <host id>)--> owner of the role
           <--             <------------------------------

A request that was forwarded is not forwarded again: two processes with different views would send it in circles. It
goes over the event loop, so that a long poll costs a connection and no thread, and ends when its client goes. Whoever
is asked may be stopped or dead: waiting ends when the metadata says that it was declared dead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import httpx
from starlette.requests import Request
from starlette.responses import Response

from api.host.hosting import Hosting
from api.wire import Answer, Client, ClientGone, Header, Scope
from mq.errors import Overloaded, Unavailable, Unknown

__all__ = ["FORWARDED", "Call", "Peer", "Peers", "as_response", "is_forwarded", "meta_offset_of"]

FORWARDED: Final = b"mq-forwarded"
#: Up to where the sender has seen the metadata: who answers sees at least as much, or it would contradict the sender.
META_OFFSET: Final = b"mq-meta-offset"
_OFFSET_DIGITS: Final = 20
#: What a call that does not wait may take at its owner.
TIMEOUT_S: Final = 30.0
#: Connections to all other processes together: each request under way there has one. An idle one is closed before the
#: server's own limit by default ends it.
_LIMITS: Final = httpx.Limits(max_connections=1_000, max_keepalive_connections=64, keepalive_expiry=30.0)
#: For a connection, and for a free one; the answer's time is each request's own.
_TIMES: Final = {"timeout": httpx.Timeout(None, connect=2.0, pool=1.0).as_dict()}
#: Answers without a body.
_EMPTY: Final = (204, 304)
#: Headers that are about one connection, or that are made anew.
_OWN: Final = frozenset(
    b"host content-length connection keep-alive transfer-encoding te trailer upgrade expect proxy-connection".split()
)


class Peer(NamedTuple):
    """Another process."""

    host: str
    address: str


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
        # No proxy of the environment stands between processes of one warehouse.
        self._client = httpx.AsyncClient(limits=_LIMITS, trust_env=False)
        #: Requests sent on so far.
        self.asked = 0

    def of(self, role: str, call: Call) -> Peer | None:
        """Who has the role; None when this process does.

        Raises
        ------
        Unavailable
            Nobody serves it now, or the request was sent on to here and should not have been.
        """
        if self._hosting.hosts(role):
            return None
        owner = self._hosting.owner(role)
        if owner is None or owner.id == self._hosting.id or is_forwarded(call.headers):
            self._hosting.epoch(role)  # says why not
            return None
        return Peer(owner.id, owner.address)

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
        peer = self.of(role, call)
        return None if peer is None else await self.ask(*peer, call, client)

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
        self.asked += 1
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
        kept = [(name, value) for name, value in headers if name.lower() not in _OWN]
        # The target is sent as it came: encoded again, a name could become another.
        request = httpx.Request(method, address, headers=kept, content=body, extensions={"target": target, **_TIMES})
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._client.send(request)
        except TimeoutError:
            raise Unknown("the process that serves this did not answer in time; it may have been applied") from None
        except httpx.PoolTimeout:
            raise Overloaded("too many requests wait for other processes; try again", code="queue_full") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._hosting.suspect()
            detail = f"the process that serves this cannot be reached: {type(error).__name__}; ask again"
            raise Unavailable(detail, code="broker_unavailable") from None
        own = [(name.lower(), value) for name, value in answer.headers.raw]
        length = [] if answer.status_code in _EMPTY else [(b"content-length", b"%d" % len(answer.content))]
        return Answer(
            answer.status_code, [(name, value) for name, value in own if name not in _OWN] + length, answer.content
        )

    async def close(self) -> None:
        """Close what is kept."""
        await self._client.aclose()
