"""The ASGI application that uvicorn runs: the hot calls go straight to their endpoints, all others to FastAPI.

    POST /v1/topics/{topic}/messages                          -> api.routes.produce
    GET  /v1/topics/{topic}/partitions/{partition}/messages   -> api.routes.fetch
    POST /v1/groups/{group}/topics/{topic}/pop                -> api.routes.pop
    POST /v1/groups/{group}/ack | invisible | nack | dead     -> api.routes.handles
    anything else                                             -> FastAPI (topics, groups, cluster, health, console)

FastAPI's dependency machinery costs more than a whole produce request here. `api.openapi.messages` and
`api.openapi.pop` describe the hot calls in the same document as the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import ExitStack, suppress
from typing import Any, Final

from starlette.types import ASGIApp

from api.host import is_forwarded, meta_offset_of
from api.routes import CALLS, answer_fetch, answer_handles, answer_pop, answer_produce
from api.service import Service
from api.wire import (
    Answer,
    ClientGone,
    Receive,
    Scope,
    Send,
    answer_of,
    as_deltamq_error,
    method_not_allowed,
    path_segment,
    send_answer,
)
from mq.errors import DeltaMQError, TooLarge, Unavailable
from mq.limits import ADMIN_BYTES_MAX
from tables.failpoints import armed, failpoint

__all__ = ["Front"]

Endpoint = Callable[[Service], Awaitable[Answer | None]]
_V1_TOPICS: Final = [b"", b"v1", b"topics"]
_V1_GROUPS: Final = [b"", b"v1", b"groups"]


class Front:
    """Dispatches requests by path, and sends the answers of the hot calls."""

    def __init__(self, others: ASGIApp, service: Callable[[], Service | None]) -> None:
        self._others = others
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        if is_forwarded(scope["headers"]):
            await self._catch_up(scope)
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
        await self._others(scope, _bounded(receive), send)

    async def _catch_up(self, scope: Scope) -> None:
        """Read the metadata as far as the process that forwarded the request has, so that this one knows its names."""
        service = self._service()
        if service is not None:
            # If the metadata cannot be read, the endpoint that needs it says why.
            with suppress(DeltaMQError):
                await service.meta.reach(meta_offset_of(scope["headers"]))

    async def _produce(self, topic: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await send_answer(scope, send, method_not_allowed("POST"))
            return
        answer = await self._answered(
            "produce", lambda service: answer_produce(service, path_segment(topic, "topic"), scope, receive)
        )
        if answer is not None and armed("ack.half_responded"):
            await _send_half(send, answer)
        elif answer is not None:
            await send_answer(scope, send, answer)

    async def _fetch(self, topic: bytes, partition: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await send_answer(scope, send, method_not_allowed("GET"))
            return
        with ExitStack() as until_sent:
            answer = await self._answered(
                "fetch",
                lambda service: answer_fetch(
                    service,
                    path_segment(topic, "topic"),
                    path_segment(partition, "partition"),
                    scope=scope,
                    receive=receive,
                    send=send,
                    ticket=until_sent.enter_context(service.answers.enter()),
                ),
            )
            if answer is not None:
                await send_answer(scope, send, answer)

    async def _pop(self, group: bytes, topic: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await send_answer(scope, send, method_not_allowed("POST"))
            return
        with ExitStack() as until_sent:
            answer = await self._answered(
                "pop",
                lambda service: answer_pop(
                    service,
                    path_segment(group, "group"),
                    path_segment(topic, "topic"),
                    scope=scope,
                    receive=receive,
                    ticket=until_sent.enter_context(service.answers.enter()),
                ),
            )
            if answer is not None:
                await send_answer(scope, send, answer)

    async def _on_handles(self, group: bytes, call: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await send_answer(scope, send, method_not_allowed("POST"))
            return
        answer = await self._answered(
            call.decode(), lambda service: answer_handles(service, call, path_segment(group, "group"), scope, receive)
        )
        if answer is not None:
            await send_answer(scope, send, answer)

    async def _answered(self, call: str, endpoint: Endpoint) -> Answer | None:
        """Return the endpoint's answer, or the problem that it raised; None when the client has gone."""
        service = self._service()
        if service is None:
            return answer_of(Unavailable("the service is starting", code="starting"))
        try:
            answer = await endpoint(service)
        except ClientGone:
            return None
        except Exception as error:
            answer = answer_of(as_deltamq_error(error))
        if answer is not None:
            service.metrics.requests[call, answer.status] += 1
        return answer


async def _send_half(send: Send, answer: Answer) -> None:
    """Send an answer in two halves with a failpoint between them, for tests."""
    assert isinstance(answer.body, bytes), "acknowledgements are small"
    body = answer.body
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
    await asyncio.sleep(0.01)  # the transport writes at the end of the loop's turn
    failpoint("ack.half_responded")
    await send({"type": "http.response.body", "body": body[len(body) // 2 :]})


def _bounded(receive: Receive) -> Receive:
    """Wrap `receive` so that it refuses a body over the limit of administrative calls."""
    received = 0

    async def counted() -> MutableMapping[str, Any]:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > ADMIN_BYTES_MAX:
            detail = f"body: at most {ADMIN_BYTES_MAX} bytes are taken by this call"
            raise TooLarge(detail, code="request_too_large", field="body", extra={"limit": ADMIN_BYTES_MAX})
        return message

    return counted
