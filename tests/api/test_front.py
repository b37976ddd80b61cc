"""Hot calls before the service has started: refused, and others are passed on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from deltamq.api.front import Front

PATHS = [
    ("POST", "/v1/topics/orders/messages"),
    ("GET", "/v1/topics/orders/partitions/orders@broker-a/messages"),
    ("POST", "/v1/groups/billing/topics/orders/pop"),
    ("POST", "/v1/groups/billing/ack"),
]


def call(method: str, path: str) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body of the answer; 0 if the request was passed on."""
    sent: list[dict[str, Any]] = []

    async def others(_scope: Any, _receive: Any, _send: Any) -> None:
        sent.append({"status": 0, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "raw_path": path.encode(), "query_string": b"", "headers": []}
    asyncio.run(Front(others, within_ms=1_000)(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], headers, json.loads(body) if body else None


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_a_hot_call_is_refused_until_the_service_has_started(method: str, path: str) -> None:
    status, _, problem = call(method, path)
    assert (status, problem["code"]) == (503, "starting")


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_another_method_is_refused_first(method: str, path: str) -> None:
    status, headers, _ = call("PUT", path)
    assert (status, headers["allow"]) == (405, method)


@pytest.mark.parametrize("path", ["/v1/topics/orders", "/v1/groups/billing/offsets", "/healthz", "/"])
def test_other_calls_are_passed_on(path: str) -> None:
    assert call("GET", path)[0] == 0
