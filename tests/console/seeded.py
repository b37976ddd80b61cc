"""A warehouse with something on every page of the console, also what tries to break them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

__all__ = ["MARKUP", "MARKUP_GROUP", "NASTY_TOPIC", "Call", "seed"]

#: Sends a request, and returns the JSON of its answer.
Call = Callable[[str, str, Any], Any]

MARKUP: Final = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
NASTY_TOPIC: Final = "50%25.off|a-b"
MARKUP_GROUP: Final = "<img src=x onerror=document.title='run'>"
_MIB: Final = 1 << 20


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _order(number: int) -> dict[str, Any]:
    body = {"order": number, "amount": round(3.5 * (number % 97) + 1, 2), "currency": "EUR", "items": [number % 7, 2]}
    tag = ("created", "paid", "shipped")[number % 3]
    return {"key": f"order-{number % 40}", "tag": tag, "headers": {"region": "eu"}, "body": json.dumps(body)}


def _nasty() -> list[dict[str, Any]]:
    return [
        {"key": MARKUP, "tag": "markup", "headers": {MARKUP[:60]: MARKUP, "plain": "yes"}, "body": MARKUP},
        {"key": "control", "body": "bell \a, null \0, escape \x1b[31m, turned \u202etext\u202c, two\nlines"},
        {"key": "binary", "body_base64": base64.b64encode(bytes(range(256)) * 3).decode()},
        {"key": "large", "body": json.dumps({"text": "x" * _MIB, "number": 12345678901234567890})},
        {"key": "deep", "body": "[" * 5_000 + "]" * 5_000},
        {"key": "early", "born_time": "1970-01-01T00:00:00Z", "body": "born at the beginning"},
        {"key": "late", "born_time": "2099-12-31T23:59:59.999Z", "body": "born at the end"},
        {"key": "headers", "headers": {f"header-{n}": "v" * 900 for n in range(60)}, "body": "many headers"},
        {"body": ""},
    ]


def _pop(call: Call, group: str, topic: str, count: int, client: str) -> list[str]:
    asked = {"max_messages": count, "client_id": client, "invisible_ms": 600_000}
    return [one["handle"] for one in call("POST", _path("groups", group, "topics", topic, "pop"), asked)["messages"]]


def seed(call: Call) -> None:
    """Make topics, groups, messages, dead letters and delayed messages, also what tries to break a page."""
    for topic, partitions in (("orders", 3), ("orders.eu", 1), ("payments", 2), (NASTY_TOPIC, 1), ("empty", 1)):
        call("PUT", _path("topics", topic), {"partitions": partitions})
    call("PUT", _path("topics", "static"), {"static": True, "total_queues": 2})
    for start in range(0, 600, 200):
        call(
            "POST", _path("topics", "orders", "messages"), {"messages": [_order(n) for n in range(start, start + 200)]}
        )
    call("POST", _path("topics", "payments", "messages"), {"messages": [_order(n) for n in range(50)]})
    call(
        "POST",
        _path("topics", "static", "messages"),
        {"messages": [{"key": str(n), "body": "queued"} for n in range(9)]},
    )
    for message in _nasty():
        call("POST", _path("topics", NASTY_TOPIC, "messages"), {"messages": [message]})
    whole = {"type": "integer"}
    fields = json.dumps(
        {"type": "object", "properties": {"id": whole | {"minimum": 1}, "note": {"type": "string"}, "big": whole}}
    )
    typed = {"format": "json", "schema": fields, "on_invalid": "quarantine"}
    call("PUT", _path("topics", "typed"), {"partitions": 1, "schema": typed})
    bodies = (
        '{"id": 1, "note": "first", "big": 9007199254740993}',
        '{"id": 0}',
        '{"id": "two"}',
        '{"id": 3, "note": 5}',
        MARKUP,
    )
    sent = [{"key": f"row-{n}", "body": body, "headers": {"n": str(n)}} for n, body in enumerate(bodies)]
    call("POST", _path("topics", "typed", "messages"), {"messages": sent})
    delayed = [{"body": f"remind {n}", "message_id": f"reminder/{n}", "delay_ms": 3_600_000 + n} for n in range(5)]
    call("POST", _path("topics", "orders.eu", "messages"), {"messages": delayed})
    for group in ("billing", "shipping", MARKUP_GROUP, "idle"):
        call("PUT", _path("groups", group), {"max_attempts": 5})
    call("PUT", _path("groups", "reports"), {"consume_strategy": "exclusive"})
    watched = {"topics": {"orders": {"order": True, "tags": "*"}}, "online": True}
    call("POST", _path("groups", "reports", "clients", "reader-1", "heartbeat"), watched)
    for _ in range(4):
        call("POST", _path("groups", "billing", "ack"), {"handles": _pop(call, "billing", "orders", 32, "worker-1")})
    dead = _pop(call, "billing", "orders", 24, "worker-2")
    reasons = ("no such account", "amount is not a number", MARKUP[:200])
    for at, reason in enumerate(reasons):
        call("POST", _path("groups", "billing", "dead"), {"handles": dead[at * 8 : at * 8 + 8], "reason": reason})
    _pop(call, "billing", "orders", 12, "worker-2")
    _pop(call, "billing", "orders", 5, "worker-3")
    failed = {"handles": _pop(call, "billing", "orders", 3, "worker-3"), "delay_ms": 3_600_000}
    call("POST", _path("groups", "billing", "nack"), failed)
    _pop(call, "shipping", "orders", 7, "packer-1")
    _pop(call, MARKUP_GROUP, NASTY_TOPIC, 2, "<b>client</b>")
