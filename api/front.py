"""The ASGI application that uvicorn runs: the hot calls go straight to their endpoints, all others to FastAPI.

    POST /v1/topics/{topic}/messages                          -> ProduceEndpoint
    GET  /v1/topics/{topic}/partitions/{partition}/messages   -> FetchEndpoint
    POST /v1/groups/{group}/topics/{topic}/pop                -> PopEndpoint
    POST /v1/groups/{group}/ack | invisible | nack | dead     -> HandlesEndpoint
    /schemas...                                               -> SchemasEndpoint
    anything else                                             -> FastAPI (topics, groups, cluster, health, console)

FastAPI's dependency machinery costs more than a whole produce request here. `api.openapi.messages` and
`api.openapi.pop` describe the hot calls in the same document as the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, MutableMapping
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from deltamq.api.audit.audit import Audit
from deltamq.api.auth.caller import CALLER, EVERYBODY, Caller, Certificates
from deltamq.api.auth.forwarded import CALLED_BY, Prover, called_by, caller_header
from deltamq.api.auth.gate import SHOWN, Gate, guarded_warehouse, is_guarded
from deltamq.api.auth.quotas import Quotas
from deltamq.api.host.clusters import ClusterProofs, from_cluster, guarded, principal_of
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.peers import is_forwarded, is_passed_on, is_proved, meta_offset_of, only_authorization
from deltamq.api.log.metrics import Metrics
from deltamq.api.routes.cluster import asking_console
from deltamq.api.routes.fetch import FetchEndpoint
from deltamq.api.routes.handles import CALLS, HandlesEndpoint
from deltamq.api.routes.pop import PopEndpoint
from deltamq.api.routes.produce import ProduceEndpoint
from deltamq.api.schemas.confluent import as_confluent, is_registry
from deltamq.api.schemas.endpoint import SchemasEndpoint
from deltamq.api.wire.answer import Answer, answer_of, as_deltamq_error, method_not_allowed, send_answer
from deltamq.api.wire.request import REFUSAL, WAITED, ClientDisconnected, Receive, Scope, Send, body_too_slow
from deltamq.mq.errors import DeltaMQError, Forbidden, TooLarge, Unauthenticated, Unavailable
from deltamq.mq.limits import ADMIN_BYTES_MAX
from deltamq.tables.failpoints import armed, failpoint

#: The calls that are answered here.
HOT_CALLS: Final = (
    "POST /v1/topics/{topic}/messages",
    "GET /v1/topics/{topic}/partitions/{partition}/messages",
    "POST /v1/groups/{group}/topics/{topic}/pop",
    *(f"POST /v1/groups/{{group}}/{call.decode()}" for call in CALLS),
)

#: A request is checked again if its body was not there after this time, in seconds.
_BODY_S: Final = 1.0
#: Paths that need no key: health, and the console's files.
_ALIVE: Final = (b"/healthz", b"/readyz")
_CONSOLE: Final = b"/console/"
_V1_TOPICS: Final = [b"", b"v1", b"topics"]
_V1_GROUPS: Final = [b"", b"v1", b"groups"]


def _is_open(raw_path: bytes) -> bool:
    return raw_path in _ALIVE or raw_path.startswith(_CONSOLE)


class Guard(NamedTuple):
    """What checks requests when there is authentication."""

    gate: Gate
    prover: Prover
    quotas: Quotas
    certificates: Certificates
    #: None if this cluster shares no secret with others.
    clusters: ClusterProofs | None = None


class HotCalls(NamedTuple):
    """The endpoints of the hot calls, made once when the service has started."""

    produce: ProduceEndpoint
    fetch: FetchEndpoint
    pop: PopEndpoint
    handles: HandlesEndpoint
    #: The schema registry, which is no hot call and not in FastAPI either.
    schemas: SchemasEndpoint
    #: The metadata, which a forwarded request may need to be read further.
    meta: HostedMeta
    metrics: Metrics
    #: None without authentication.
    guard: Guard | None = None
    #: None if nothing is recorded.
    audit: Audit | None = None


class Front:
    """Checks requests, dispatches them by path, and sends the answers of the hot calls."""

    def __init__(self, others: ASGIApp, *, within_ms: int, is_guarded: bool = False) -> None:
        """Take the limits of all calls.

        `within_ms` is the longest time for the body of a call that is not hot. If it `is_guarded`, no
        request passes without a check, also when the service is not there.
        """
        self._others = others
        self._within_ms = within_ms
        self._is_guarded = is_guarded
        #: None until the service has started, and after it has stopped.
        self.calls: HotCalls | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # The protocol writes no body of it. What has no end, such as a stream of events, ends with its headers.
            scope, receive, send = {**scope, "method": "GET"}, *_headers_alone(receive, send)
        if is_registry(scope["raw_path"]):
            scope, send = as_confluent(scope, send)
        if self._is_guarded:
            try:
                await self._check_metadata(scope)
                if not self._admit_remembered(scope):
                    receive, send = await self._admit(scope, receive, send)
                receive = self._checked_again(scope, receive)
            except DeltaMQError as error:
                await self._refuse(scope, send, error)
                return
        else:
            scope[CALLER] = EVERYBODY
            if is_forwarded(scope["headers"]):
                await self._catch_up(scope)
            if self._is_outsider(scope):
                await send_answer(scope, send, answer_of(guarded_warehouse()))
                return
        await self._dispatch(scope, receive, send)

    def _is_outsider(self, scope: Scope) -> bool:
        """Whether the warehouse is guarded and this process is not: then it believes no caller."""
        calls = self.calls
        return calls is not None and is_guarded(calls.meta.now) and not _is_open(scope["raw_path"])

    async def _check_metadata(self, scope: Scope) -> None:
        """Raise `Unavailable` if this process may have missed the latest revocations (SPEC SEC-45)."""
        if self.calls is not None and not _is_open(scope["raw_path"]):
            await self.calls.meta.ensure_read()

    def _checked_again(self, scope: Scope, receive: Receive) -> Receive:
        """Return `receive`, which checks the request again at the end of a slow body: access may have ended (SEC-5).

        A request that waits is watched instead.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def checked() -> MutableMapping[str, Any]:
            message = await receive()
            is_late = loop.time() - began > _BODY_S and WAITED not in scope
            if is_late and message["type"] == "http.request" and not message.get("more_body", False):
                await self._check_metadata(scope)
                await _admitted(self._guard().gate, scope)
            return message

        return checked

    def _guard(self) -> Guard:
        guard = None if self.calls is None else self.calls.guard
        if guard is None:
            raise Unavailable("the service is starting or stopping", code="starting")
        return guard

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: list[bytes] = scope["raw_path"].split(b"/")
        if path[:3] == _V1_TOPICS and path[-1] == b"messages":
            if len(path) == 5:
                await self._produce(path[3], scope, receive, send)
                return
            if len(path) == 7 and path[4] == b"partitions":
                await self._fetch(path[3], path[5], scope, receive, send)
                return
        elif path[:3] == _V1_GROUPS:
            if len(path) == 7 and path[6] == b"pop" and path[4] == b"topics":
                await self._pop(path[3], path[5], scope, receive, send)
                return
            if len(path) == 5 and path[4] in CALLS:
                await self._on_handles(path[3], path[4], scope, receive, send)
                return
        app = self._others
        if is_registry(scope["raw_path"]) and self.calls is not None:
            app = self.calls.schemas
        await self._run_other(app, scope, _bounded(receive, self._within_ms), send)

    async def _run_other(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a call that is not hot; an administrative act is recorded before and after (SPEC SEC-40)."""
        audit = None if self.calls is None else self.calls.audit
        # A client that goes in the middle of its request gets no answer, and is no failure.
        with suppress(ClientDisconnect, ClientDisconnected):
            if audit is None:
                await app(scope, receive, send)
            else:
                watched = send if is_forwarded(scope["headers"]) else audit.watched(scope, send)
                await audit.calls.run(scope, receive, watched, app)

    async def _refuse(self, scope: Scope, send: Send, error: DeltaMQError) -> None:
        answer, calls = answer_of(error), self.calls
        if calls is not None:
            calls.metrics.requests["access", error.status] += 1
            if calls.audit is not None:
                principal = "" if calls.guard is None else calls.guard.gate.principal_of(scope)
                calls.audit.answered(scope, answer.status, answer.body, principal)
        asked = scope["method"], scope["raw_path"]
        is_console = isinstance(error, Unauthenticated) and asked == ("GET", b"/")
        if is_console and calls is not None and calls.guard is not None:
            answer = asking_console(answer, calls.guard.gate.sign_in())
        await send_answer(scope, send, answer)

    def _admit_remembered(self, scope: Scope) -> bool:
        """Admit a repeat of an admitted request, of a principal without a quota: most requests need only this."""
        guard = None if self.calls is None else self.calls.guard
        sent = only_authorization(scope["headers"])
        if guard is None or sent is None:
            return False
        admitted = guard.gate.remembered(sent, scope)
        if admitted is None or admitted.is_metered:
            return False
        scope[CALLER] = admitted.caller
        return True

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Find the caller and check that it may (SPEC SEC-4); a forwarded request needs a proof, too (SPEC SEC-6).

        The principal in the header of another cluster's request counts only if that cluster's proof is valid. The
        process that forwards such a request within this cluster has checked the proof.

        Return `receive` and `send`, which count if the caller has a quota (SPEC SEC-9).
        """
        guard = self._guard()
        if is_passed_on(scope["headers"]):
            counted = await self._admit_passed_on(guard, scope, receive)
            if counted is None:
                return receive, send
            receive = counted
        else:
            scope[CALLER] = await _admitted_client(guard, scope)
        meter = guard.quotas.meter(scope[CALLER].name)
        return (receive, send) if meter is None else meter.enter(scope, receive, send)

    async def _admit_passed_on(self, guard: Guard, scope: Scope, receive: Receive) -> Receive | None:
        """Find the caller of a request that a process or another cluster forwarded, and check that it may.

        Return the `receive` that checks a request of another cluster; None for a request of a process of this cluster,
        which has counted it.
        """
        is_clusters = from_cluster(scope["headers"])
        if is_clusters and guard.clusters is None:
            raise guarded("a request of another cluster (Mq-Cluster)", "Mq-Cluster")
        if not is_forwarded(scope["headers"]):
            assert guard.clusters is not None, "another cluster forwarded it, and that was checked above"
            receive = guard.clusters.check(scope, receive)
            scope[CALLER] = await _admitted(guard.gate, scope)
            return receive
        is_from_process = is_proved(guard.prover, scope)
        if is_from_process:
            # The process that forwarded it may know a key that is not read here yet.
            await self._catch_up(scope)
            scope[SHOWN] = called_by(scope["headers"])
        elif is_clusters:
            raise _unproved()
        scope[CALLER] = await _admitted(guard.gate, scope)
        if not is_from_process:
            raise _unproved()
        return None

    async def _catch_up(self, scope: Scope) -> None:
        """Read the metadata as far as the process that forwarded the request, so that this one knows its names."""
        if self.calls is not None:
            # If the metadata cannot be read, the endpoint that needs it says why.
            with suppress(DeltaMQError):
                await self.calls.meta.reach(meta_offset_of(scope["headers"]))

    async def _produce(self, topic: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        calls = await self._ready("POST", scope, send)
        if calls is None:
            return
        answer = await _answered("produce", calls.produce.answer(topic, scope, receive), scope, calls)
        if answer is not None and armed("ack.half_responded"):
            await _send_half(send, answer)
        elif answer is not None:
            await send_answer(scope, send, answer)

    async def _fetch(self, topic: bytes, partition: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        calls = await self._ready("GET", scope, send)
        if calls is None:
            return
        with ExitStack() as until_sent:
            fetching = calls.fetch.answer(topic, partition, scope, receive, send, until_sent)
            answer = await _answered("fetch", fetching, scope, calls)
            if answer is not None:
                await send_answer(scope, send, answer)

    async def _pop(self, group: bytes, topic: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        calls = await self._ready("POST", scope, send)
        if calls is None:
            return
        with ExitStack() as until_sent:
            popping = calls.pop.answer(group, topic, scope, receive, until_sent)
            answer = await _answered("pop", popping, scope, calls)
            if answer is not None:
                await send_answer(scope, send, answer)

    async def _on_handles(self, group: bytes, call: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        calls = await self._ready("POST", scope, send)
        if calls is None:
            return
        handling = calls.handles.answer(call, group, scope, receive)
        answer = await _answered(call.decode(), handling, scope, calls)
        if answer is not None:
            await send_answer(scope, send, answer)

    async def _ready(self, method: str, scope: Scope, send: Send) -> HotCalls | None:
        """Return the endpoints; None after refusing another method, or a request before the start."""
        if scope["method"] != method:
            await send_answer(scope, send, method_not_allowed(method))
            return None
        if self.calls is None:
            await send_answer(scope, send, answer_of(Unavailable("the service is starting", code="starting")))
        return self.calls


async def _admitted(gate: Gate, scope: Scope) -> Caller:
    """Find the caller by its credential, or by the name that another cluster's proved request gives."""
    if from_cluster(scope["headers"]):
        return gate.admit_named(scope, principal_of(scope["headers"]))
    return await gate.admit_any(scope)


async def _admitted_client(guard: Guard, scope: Scope) -> Caller:
    """Find the caller of a direct request, by its key or token, else by its certificate."""
    shown = scope[SHOWN] = guard.certificates.credential(scope)
    try:
        caller = await guard.gate.admit_any(scope)
    except Unauthenticated:
        guard.certificates.log_unknown(scope, shown)
        raise
    if shown is not None:
        # The client's own header is not believed; beside an `Authorization` it is never read.
        kept = [header for header in scope["headers"] if header[0] != CALLED_BY]
        scope["headers"] = [*kept, caller_header(shown)]
    return caller


async def _answered(call: str, endpoint: Awaitable[Answer | None], scope: Scope, calls: HotCalls) -> Answer | None:
    """Return the endpoint's answer, or the problem that it raised; None if the client has gone."""
    try:
        answer = await endpoint
    except ClientDisconnected:
        refusal: DeltaMQError | None = scope.get(REFUSAL)
        if refusal is None:
            return None
        answer = answer_of(refusal)
    except Exception as error:
        answer = answer_of(as_deltamq_error(error))
    if answer is not None:
        calls.metrics.requests[call, answer.status] += 1
        if calls.audit is not None and answer.status >= HTTPStatus.BAD_REQUEST and not is_forwarded(scope["headers"]):
            # the process that forwarded it counts it
            calls.audit.answered(scope, answer.status, answer.body)
    return answer


def _unproved() -> Forbidden:
    return Forbidden(
        "Mq-Forwarded is only for processes of this cluster, with a proof: all need the same service.cluster_secret,"
        " and correct clocks",
        code="forwarded_unproved",
        field="Mq-Forwarded",
    )


async def _send_half(send: Send, answer: Answer) -> None:
    """Send an answer in two halves with a failpoint between them, for tests."""
    assert isinstance(answer.body, bytes), "acknowledgements are small"
    body = answer.body
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
    await asyncio.sleep(0.01)  # the transport writes at the end of the loop's turn
    failpoint("ack.half_responded")
    await send({"type": "http.response.body", "body": body[len(body) // 2 :]})


def _headers_alone(receive: Receive, send: Send) -> tuple[Receive, Send]:
    started = asyncio.Event()

    async def received() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"} if started.is_set() else await receive()

    async def sent(message: MutableMapping[str, Any]) -> None:
        if started.is_set():
            return
        await send(message)
        if message["type"] == "http.response.start":
            started.set()
            await send({"type": "http.response.body", "body": b""})

    return received, sent


def _bounded(receive: Receive, within_ms: int) -> Receive:
    received = 0
    until: float | None = asyncio.get_running_loop().time() + within_ms / 1000

    async def counted() -> MutableMapping[str, Any]:
        nonlocal received, until
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise body_too_slow(within_ms) from None
        if not message.get("more_body", False):
            until = None  # from now on only the client's departure is waited for
        received += len(message.get("body", b""))
        if received > ADMIN_BYTES_MAX:
            detail = f"body: at most {ADMIN_BYTES_MAX} bytes are taken by this call"
            raise TooLarge(detail, code="request_too_large", field="body", extra={"limit": ADMIN_BYTES_MAX})
        return message

    return counted
