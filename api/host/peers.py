"""Forwarding of requests that another process of the warehouse must answer, and of its answers.

    client --> this process --(Mq-Forwarded: <host id>)--> owner of the role
           <--             <------------------------------

With authentication the caller's `Authorization` goes along, and the owner checks it again. `Mq-Caller` replaces it if
the caller has shown a certificate, or is a Kafka client; `Mq-Principal` if another cluster named the caller.
`Mq-Proof` shows that a process of the cluster forwarded the request (SPEC SEC-6, SEC-17).

A forwarded request is not forwarded again: two processes with different views would send it in circles. Forwarding runs
on the event loop: a long poll costs a connection and no thread, and ends when its client goes. The process that is
asked may be stopped or dead: waiting ends when the metadata says that it was declared dead. When this process stops, a
waiting call is answered 503 `stopping`; a pop is not cut off, since it hides what it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, TypeVar

import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deltamq.api.auth.caller import CALLER, Caller
from deltamq.api.auth.forwarded import CALLED_BY, Prover
from deltamq.api.host.hosting import Hosting
from deltamq.api.wire.answer import SECURITY_HEADERS, Answer, Header
from deltamq.api.wire.request import Client, ClientDisconnected, Scope
from deltamq.mq.errors import DeltaMQError, Overloaded, Unavailable, Unknown

FORWARDED: Final = b"mq-forwarded"
#: The metadata offset up to which the sender has read: the receiver reads at least as far, to agree with the sender.
META_OFFSET: Final = b"mq-meta-offset"
#: Shows that a process of the cluster forwarded the request.
PROOF: Final = b"mq-proof"
_OFFSET_DIGITS: Final = 20
#: Headers that processes add for each other.
_BETWEEN: Final = (FORWARDED, META_OFFSET, PROOF)
#: The caller: by a key, or by the name that the cluster which forwarded the request gives.
CLUSTER: Final = b"mq-cluster"
PRINCIPAL: Final = b"mq-principal"
_AUTHORIZATION: Final = b"authorization"
_WHO: Final = (_AUTHORIZATION, CLUSTER, PRINCIPAL)
#: The headers that name the caller; beside an `Authorization`, a certificate and `Mq-Caller` do not.
_SAYING_WHO: Final = frozenset({_AUTHORIZATION, FORWARDED, CLUSTER})
#: Seconds that a call without waiting may take at its owner.
TIMEOUT_S: Final = 30.0
#: Connections to all other processes together: each forwarded request has one. An idle one is closed before the
#: server's default limit ends it.
_LIMITS: Final = httpx.Limits(max_connections=1_000, max_keepalive_connections=64, keepalive_expiry=30.0)
#: Seconds to wait for a new connection and for a free one; each request has a limit of its own for the answer.
_TIMES: Final = {"timeout": httpx.Timeout(None, connect=2.0, pool=1.0).as_dict()}
#: Seconds to wait for a connection when it is only asked whether it is refused.
_REFUSES_S: Final = 1.0
_JSON: Final = (b"content-type", b"application/json")
#: Statuses of answers without a body.
_EMPTY: Final = (204, 304)
#: Headers that belong to one connection, or that each process makes itself.
_OWN: Final = frozenset(
    (
        *b"host content-length connection keep-alive transfer-encoding te trailer upgrade expect".split(),
        b"proxy-connection",
        *(name for name, _ in SECURITY_HEADERS),
    )
)


class NotConnected(Unavailable):
    """There was no connection to the other process, so nothing was sent to it."""

    code = "broker_unavailable"


class Peer(NamedTuple):
    """Another process."""

    host: str
    address: str


class Call(NamedTuple):
    """One request as it was received."""

    method: str
    #: Path and query, still encoded.
    target: bytes
    headers: Sequence[Header]
    body: bytes
    timeout_s: float = TIMEOUT_S
    #: The principal for which another cluster is asked; empty for this cluster itself.
    principal: str = ""

    @classmethod
    def of(cls, scope: Scope, body: bytes | bytearray = b"", *, wait_ms: int = 0) -> Call:
        """Return the request of an ASGI scope with its body; it may wait for `wait_ms` at its owner."""
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        caller: Caller | None = scope.get(CALLER)
        principal = "" if caller is None else caller.name
        return cls(scope["method"], target, scope["headers"], bytes(body), TIMEOUT_S + wait_ms / 1000, principal)

    @classmethod
    def on_behalf(cls, method: str, target: str, headers: Collection[Header]) -> Call:
        """Return a request of this process for a client, with the headers of the client's request and no body yet."""
        kept = [header for header in headers if header[0] not in _BETWEEN]
        return cls(method, target.encode("ascii"), kept, b"").with_json(b"")

    @property
    def waits(self) -> bool:
        """Whether its owner may let it wait."""
        return self.timeout_s > TIMEOUT_S

    def without_body(self) -> Call:
        """Return the same call without a body and the headers about it."""
        return self._replace(headers=[pair for pair in self.headers if not pair[0].startswith(b"content-")], body=b"")

    def with_json(self, body: bytes) -> Call:
        """Return the same call with this JSON as its body."""
        bare = self.without_body()
        return bare._replace(headers=[*bare.headers, _JSON], body=body)


def is_forwarded(headers: Collection[Header]) -> bool:
    """Whether another process forwarded the request."""
    return any(name == FORWARDED for name, _ in headers)


def is_passed_on(headers: Collection[Header]) -> bool:
    """Whether another process or another cluster forwarded the request."""
    for name, _ in headers:  # noqa: SIM110 - a generator takes three times as long, and every request comes here
        if name in (FORWARDED, CLUSTER):
            return True
    return False


def only_authorization(headers: Collection[Header]) -> bytes | None:
    """Return the `Authorization` of a request that names its caller only by this; None for any other request."""
    sent = None
    for name, value in headers:
        if name in _SAYING_WHO:
            if sent is not None or name != _AUTHORIZATION:
                return None
            sent = value
    return sent


def meta_offset_of(headers: Collection[Header]) -> int:
    """Return the metadata offset of the process that forwarded the request; 0 if none did."""
    value = next((value for name, value in headers if name == META_OFFSET), b"0")
    return int(value) if value.isdigit() and len(value) < _OFFSET_DIGITS else 0


def is_proved(prover: Prover, scope: Scope) -> bool:
    """Whether the request's proof shows that a process of the cluster forwarded it."""
    call = Call.of(scope)
    proof = next((value for name, value in call.headers if name == PROOF), b"")
    return prover.is_right(proof, *_proved_parts(call))


def _proved_parts(call: Call) -> tuple[bytes, ...]:
    names = (*_BETWEEN[:2], *_WHO, CALLED_BY)
    named = [b",".join(value for key, value in call.headers if key == name) for name in names]
    return (call.method.encode(), call.target, *named)


async def answer_before(
    asking: asyncio.Future[Answer],
    departure: asyncio.Future[None] | None,
    client: Client | None,
    stop: asyncio.Future[None] | None,
) -> Answer | None:
    """Return the answer of another process; None if `departure` is done first, which ends the asking.

    Raises
    ------
    ClientDisconnected
        The client went before there was an answer.
    Unavailable
        `stopping`: `stop` was done before there was an answer.
    """
    waiting: set[asyncio.Future[object]] = {asking}  # type: ignore[arg-type] # of any result
    if departure is not None:
        waiting.add(departure)  # type: ignore[arg-type] # of any result
    if client is not None:
        waiting.add(client.gone)  # type: ignore[arg-type] # of any result
    if stop is not None:
        waiting.add(stop)  # type: ignore[arg-type] # of any result
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
    finally:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asking
    if client is not None and client.gone.done():
        raise ClientDisconnected
    if stop is not None and stop.done():
        raise Unavailable("the service is stopping", code="stopping")
    return None


def as_response(answer: Answer) -> Response:
    """Return the answer of another process as a response for FastAPI's routes."""
    body = answer.body
    assert isinstance(body, bytes), "answers of other processes are whole"
    response = Response(body, status_code=answer.status)
    response.raw_headers = list(answer.headers)
    return response


class Peers:
    """The other processes of the warehouse, as this one reaches them."""

    def __init__(self, hosting: Hosting, tls: ssl.SSLContext, prover: Prover | None = None) -> None:
        """`tls` says whose certificates are trusted at addresses that begin with https.

        `prover` proves to other processes that this one forwards a request; None without authentication.
        """
        self._hosting = hosting
        self._prover = prover
        # No proxy of the environment stands between processes of one warehouse.
        self._client = httpx.AsyncClient(limits=_LIMITS, trust_env=False, verify=tls)
        #: Number of requests forwarded so far.
        self.asked = 0
        #: Done when this process begins to stop.
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def of(self, role: str, call: Call) -> Peer | None:
        """Return the process that has the role; None if it is this one.

        Raises
        ------
        Unavailable
            No process serves it now, or the request was forwarded here wrongly.
        """
        if self._hosting.hosts(role):
            return None
        owner = self._hosting.owner(role)
        if owner is None or owner.id == self._hosting.id or is_forwarded(call.headers):
            self._hosting.epoch(role)  # raises the reason
            return None
        return Peer(owner.id, owner.address)

    def begin_stop(self) -> None:
        """Let no client wait at another process any longer."""
        if not self._stop.done():
            self._stop.set_result(None)

    def stop_of(self, call: Call, client: Client | None) -> asyncio.Future[None] | None:
        """Return the future that ends this call when the service stops; None if nothing cuts it off.

        Only a call that may wait, and that ends when its `client` goes, is cut off.
        """
        return self._stop if client is not None and call.waits else None

    async def elsewhere(self, role: str, call: Call, client: Client | None = None) -> Answer | None:
        """Return the answer of the process that has a role; None if it is this one, which must answer itself.

        Raises
        ------
        Unavailable
            `not_owner`: the request was forwarded already. `broker_unavailable` or `lease_lost`: no process serves the
            role now, or the owner cannot be reached; then the outcome of the request at the owner is unknown.
            `stopping`: this process stops, and the call may wait.
        ClientDisconnected
            `client` closed its connection.
        """
        peer = self.of(role, call)
        return None if peer is None else await self.ask(*peer, call, client)

    async def elsewhere_as_response(
        self, role: str, request: Request, body: bytes | None = None, *, wait_ms: int = 0
    ) -> Response | None:
        """Return the answer of the process that has a role, for FastAPI's routes; None if it is this one."""
        if self._hosting.hosts(role):
            return None
        call = Call.of(request.scope, await request.body() if body is None else body, wait_ms=wait_ms)
        client = Client(request.scope, request.receive) if call.waits else None
        try:
            answer = await self.elsewhere(role, call, client)
        finally:
            if client is not None:
                client.close()
        return None if answer is None else as_response(answer)

    async def ask(self, host: str, address: str, call: Call, client: Client | None = None) -> Answer:
        """Return the answer of one host; raise as soon as the host is declared dead, the client has gone, or this
        process stops and the call may wait.
        """
        self.asked += 1
        known = (META_OFFSET, b"%d" % self._hosting.meta_offset)
        kept = [header for header in call.headers if header[0] not in _BETWEEN]
        headers = [*kept, (FORWARDED, self._hosting.id.encode()), known]
        if self._prover is not None:
            headers.append((PROOF, self._prover.make(*_proved_parts(call._replace(headers=headers)))))
        asking = asyncio.ensure_future(
            self.forward(address, call.method, call.target, headers, call.body, call.timeout_s)
        )
        departure = self._hosting.departure(host)
        answer = await answer_before(asking, departure, client, self.stop_of(call, client))
        if answer is not None:
            return answer
        raise Unavailable("the process that should answer is gone; ask again", code="broker_unavailable")

    async def forward(
        self,
        address: str,
        method: str,
        path_qs: str | bytes,
        headers: Collection[Header],
        body: bytes,
        timeout_s: float,
        *,
        in_cluster: bool = True,
    ) -> Answer:
        """Send one request to `address`, a URL without a path, and return its whole answer.

        `in_cluster` says that it goes to a process of this warehouse: if it cannot be reached, it may be dead.

        Raises
        ------
        Unavailable
            `broker_unavailable`: there was no connection, or it was lost; a request that had been sent may have been
            applied.
        Unknown
            There was no answer in time.
        """
        target = path_qs.encode("ascii") if isinstance(path_qs, str) else path_qs
        kept = [(name, value) for name, value in headers if name.lower() not in _OWN]
        # The target is sent unchanged: encoding it again could change a name.
        request = httpx.Request(method, address, headers=kept, content=body, extensions={"target": target, **_TIMES})
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._client.send(request)
        except TimeoutError:
            raise Unknown("the process that serves this did not answer in time, but may have applied it") from None
        except httpx.PoolTimeout:
            raise Overloaded("too many requests wait for other processes; try again", code="queue_full") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if in_cluster:
                self._hosting.suspect()
            detail = f"the process that serves this cannot be reached: {type(error).__name__}; ask again"
            kind = NotConnected if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)) else Unavailable
            raise kind(detail, code="broker_unavailable") from None
        own = [(name.lower(), value) for name, value in answer.headers.raw]
        length = [] if answer.status_code in _EMPTY else [(b"content-length", b"%d" % len(answer.content))]
        return Answer(
            answer.status_code, [(name, value) for name, value in own if name not in _OWN] + length, answer.content
        )

    async def answers(self, address: str, within_s: float) -> bool | None:
        """Return whether a process answers at this address; False if it refuses connections, None if that is not known.

        It may be slow, or the network may be cut.
        """
        try:
            answer = await self.forward(address, "GET", "/healthz", (), b"", within_s, in_cluster=False)
        except NotConnected:
            return False if await _refuses(address) else None
        except DeltaMQError:
            return None
        return True if answer.status == 200 else None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def _refuses(address: str) -> bool:
    """Whether every IP address of a URL's host refuses connections: nothing listens there."""
    url, loop = httpx.URL(address), asyncio.get_running_loop()
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        found = await loop.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, at in found:
        with socket.socket(family, kind, protocol) as connection:
            connection.setblocking(False)
            try:
                async with asyncio.timeout(_REFUSES_S):
                    await loop.sock_connect(connection, at)
            except ConnectionRefusedError:
                continue
            except (OSError, TimeoutError):
                return False
            return False
    return bool(found)


T = TypeVar("T")


def json_of(body: object, kind: type[T], *, status: int = 200) -> T:
    """Return the body of an answer as this type; an error names `status`.

    Raises
    ------
    Unavailable
        `broker_unavailable`: it is no answer of a process of DeltaMQ. The request may have been applied.

    The answer may also come from a proxy or load balancer in between (502, HTML), or from the HTTP server itself, which
    answers 500 in plain text when a drain cuts a request off. As with a lost connection, it is then unknown whether the
    request was applied.
    """
    assert isinstance(body, bytes), "answers of other processes are whole"
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:  # msgspec's own errors, and bytes that are not UTF-8
        raise unreadable(status) from error


def unreadable(status: int) -> Unavailable:
    """Return the error for an answer of this status that is not DeltaMQ's."""
    return Unavailable(
        f"the answer of the other process, of status {status}, is not DeltaMQ's; ask again",
        code="broker_unavailable",
    )
