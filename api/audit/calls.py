"""Administrative calls over REST as acts: begun before the call runs, ended before its answer is sent (SPEC SEC-40).

The audit shows the names and the known fields of each call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.types import ASGIApp

from deltamq.api.audit.acts import Act, Acts, Asking
from deltamq.api.auth.caller import caller_of
from deltamq.api.auth.calls import FoundCall, call_of
from deltamq.api.wire.answer import answer_of, send_answer
from deltamq.api.wire.request import ClientDisconnected, Receive, Scope, Send
from deltamq.mq.audit import ANONYMOUS
from deltamq.mq.errors import DeltaMQError

log = logging.getLogger("deltamq.api")

_BAD_REQUEST: Final = 400
_INTERNAL: Final = 500
_BAD_INPUT: Final = frozenset((400, 413, 415, 422))


class AuditedCalls:
    """Runs calls, and records those that are acts."""

    def __init__(self, acts: Acts) -> None:
        self._acts = acts

    async def run(self, scope: Scope, receive: Receive, send: Send, app: ASGIApp) -> None:
        """Run one call; if it is an act, as an act."""
        call = call_of(scope["method"], scope["raw_path"])
        if call is None or not call.is_audited:
            await app(scope, receive, send)
            return
        # The request is recorded first, so its body is read here; the call reads it again.
        try:
            body = await _body(receive)
            act = await self._begin(scope, call, body)
        except DeltaMQError as error:
            await send_answer(scope, send, answer_of(error))
            return
        await self._carry_out(act, scope, _again(body, receive), send, app)

    async def _begin(self, scope: Scope, call: FoundCall, body: bytes) -> Act:
        asked = asked_of(call.values, scope["query_string"], body)
        resource, name = resource_of(call.values, asked)
        principal = caller_of(scope).name or ANONYMOUS
        return await self._acts.begin(Asking(principal, address_of(scope), call.name, resource, name, asked))

    async def _carry_out(self, act: Act, scope: Scope, receive: Receive, send: Send, app: ASGIApp) -> None:
        messages: list[MutableMapping[str, Any]] = []

        async def held(message: MutableMapping[str, Any]) -> None:
            messages.append(message)  # answers of administrative calls are small

        try:
            with self._acts.present(act):
                await app(scope, receive, held)
        except BaseException:
            with suppress(DeltaMQError):
                await self._acts.end(act, *_result(messages, _INTERNAL))
            await _send_all(messages, send)
            raise
        status, code, detail = _result(messages, _INTERNAL)
        try:
            await self._acts.end(act, status, code, detail)
        except DeltaMQError as error:
            if status < _BAD_REQUEST:  # it must not be confirmed
                await send_answer(scope, send, answer_of(error))
                return
        await _send_all(messages, send)


async def _send_all(messages: list[MutableMapping[str, Any]], send: Send) -> None:
    for message in messages:
        await send(message)


def _result(messages: list[MutableMapping[str, Any]], default: int) -> tuple[int, str, str]:
    """Return status, code and detail of an answer; `default` if no status was sent."""
    status = next((message["status"] for message in messages if message["type"] == "http.response.start"), default)
    if status < _BAD_REQUEST:
        return status, "", ""
    pieces = [message.get("body", b"") for message in messages if message["type"] == "http.response.body"]
    problem = _problem(b"".join(pieces))
    # The detail about a wrong value may repeat the value.
    detail = "" if status in _BAD_INPUT else str(problem.get("detail", ""))
    return status, str(problem.get("code", "internal")), detail


def code_of(body: object) -> str:
    """Return the code of a problem document; empty if it is none."""
    return str(_problem(body).get("code", "")) if isinstance(body, bytes) else ""


def _problem(body: Any) -> dict[str, Any]:
    try:
        problem = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return {}
    return problem if isinstance(problem, dict) else {}


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    left = [body]

    async def receiving() -> MutableMapping[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return receiving


def address_of(scope: Scope) -> str:
    """Return host and port of the caller's connection."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


#: The fields of bodies and queries that are recorded. An unknown field may hold anything, a password too.
SHOWN_FIELDS: Final = frozenset(
    (
        # topics
        *("partitions", "routes", "order_strategy", "retention_ms", "retention_bytes", "message_type"),
        *("flush", "commit_window_ms", "partitioner", "schema", "static"),
        *("total_queues", "scope", "clusters", "brokers", "mode", "queues", "plan", "force", "world", "settings"),
        # brokers and partitions
        *("readable", "writable", "reason", "until", "overlap_ms", "level", "logger"),
        # groups
        *("consume_strategy", "allocation_strategy", "order", "consume_from", "max_attempts", "retry_policy"),
        *("invisible_ms", "to", "retries", "offsets", "state", "topic", "from_time", "all", "code", "cursor"),
        # who may do what
        *("note", "principal", "resource", "verbs", "pattern", "effect"),
        *("requests_per_s", "bytes_in_per_s", "bytes_out_per_s"),
        # schemas
        *("compatibility", "permanent", "normalize", "schemaType", "references", "version", "id"),
        # what was applied from files
        *("topics", "groups", "principals", "replace"),
    )
)
#: The names in paths that name the thing that an act changes, the most specific first.
_RESOURCES: Final = ("acl_id", "key_id", "principal", "broker", "group", "topic", "subject")
_KINDS: Final = {"acl_id": "acl", "key_id": "key"}


def asked_of(values: Mapping[str, str], query: bytes, body: bytes) -> dict[str, Any]:
    """Return the parameters of a call: known fields of query and body, and the names in the path."""
    fields = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    sent = _object(body)
    shown = {name: value for name, value in {**fields, **sent}.items() if name in SHOWN_FIELDS}
    return {**shown, **values}


def resource_of(values: Mapping[str, str], asked: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of the thing that an act changes."""
    for name in _RESOURCES:
        if name in values:
            return _KINDS.get(name, name), values[name]
    named = asked.get("principal")
    return ("principal", named) if isinstance(named, str) else ("cluster", "*")


def _object(body: bytes) -> dict[str, Any]:
    """Return a body that is a JSON object; empty for any other body, which the call itself refuses."""
    try:
        sent = msgspec.json.decode(body) if body else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return sent if isinstance(sent, dict) else {}
