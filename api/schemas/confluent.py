"""Requests under `/schemas` as Confluent's clients send them, and answers as they read them.

    Content-Type: application/vnd.schemaregistry.v1+json    both ways
    problem document with `code`  ->  {"error_code": 40401, "message": ...}

So all that refuses a request, also in front of the registry's own calls, raises what it raises elsewhere.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

import msgspec

from deltamq.api.wire.answer import PROBLEM_TYPE, WRITE_WHOLE
from deltamq.api.wire.request import Scope, Send

PREFIX: Final = b"/schemas"
CONTENT_TYPE: Final = b"application/vnd.schemaregistry.v1+json"

#: The number of each error for Confluent's clients; others have their HTTP status.
ERROR_CODES: Final = {
    "subject_not_found": 40401,
    "version_not_found": 40402,
    "schema_not_found": 40403,
    "subject_deleted": 40404,
    "subject_not_deleted": 40405,
    "version_deleted": 40406,
    "version_not_deleted": 40407,
    "compatibility_not_set": 40408,
    "mode_not_set": 40409,
    "invalid_schema": 42201,
    "invalid_version": 42202,
    "invalid_compatibility": 42203,
    "invalid_mode": 42204,
    "operation_not_permitted": 42205,
    "reference_exists": 42206,
    "invalid_subject": 42208,
    "schema_too_large": 42209,
    "rules_not_supported": 42210,
    "unauthenticated": 40101,
    "forbidden": 40301,
}


def is_registry(raw_path: bytes) -> bool:
    """Whether a path is one of the registry's."""
    return raw_path == PREFIX or raw_path.startswith(PREFIX + b"/")


def as_confluent(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """Return the scope and the `send` of a request under `/schemas`, so that its refusals are Confluent's."""
    # Answers pass through `send`, whose head and body are written together elsewhere.
    extensions = {name: value for name, value in scope.get("extensions", {}).items() if name != WRITE_WHOLE}
    held: list[MutableMapping[str, Any]] = []

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and (b"content-type", PROBLEM_TYPE) in message["headers"]:
            held.append(message)
        elif not held:
            await send(message)
        elif message.get("body"):  # a problem document is one piece
            body = _error_of(message["body"])
            kept = [(name, value) for name, value in held[0]["headers"] if not name.startswith(b"content-")]
            head = [*kept, (b"content-type", CONTENT_TYPE), (b"content-length", b"%d" % len(body))]
            await send({**held[0], "headers": head})
            await send({"type": "http.response.body", "body": body})

    return {**scope, "extensions": extensions}, sending


def _error_of(body: bytes) -> bytes:
    problem = msgspec.json.decode(body)
    number = ERROR_CODES.get(problem["code"], problem["status"])
    return msgspec.json.encode({"error_code": number, "message": problem["detail"]})
