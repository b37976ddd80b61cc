"""What an administrative call asked for, as the audit shows it: names, and fields that its calls know (SPEC SEC-40)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

#: The fields of bodies and queries that are recorded. What no call knows may be anything, a password too.
SHOWN_FIELDS: Final = frozenset(
    (
        # topics
        *("partitions", "routes", "order_strategy", "retention_ms", "message_type", "flush", "partitioner", "static"),
        *("total_queues", "scope", "clusters", "brokers", "mode", "queues", "plan", "force", "world", "settings"),
        # brokers and partitions
        *("readable", "writable", "reason", "until"),
        # groups
        *("consume_strategy", "allocation_strategy", "order", "consume_from", "max_attempts", "retry_policy"),
        *("invisible_ms", "to", "retries", "offsets", "state", "topic", "from_time", "all"),
        # who may do what
        *("note", "principal", "resource", "verbs", "pattern", "effect"),
        *("requests_per_s", "bytes_in_per_s", "bytes_out_per_s"),
    )
)
#: The names in paths that say what an act is about, the one that says most first.
_RESOURCES: Final = ("acl_id", "key_id", "principal", "broker", "group", "topic")
_KINDS: Final = {"acl_id": "acl", "key_id": "key"}


def asked_of(values: Mapping[str, str], query: bytes, body: bytes) -> dict[str, Any]:
    """Return what was asked: known fields of query and body, and the names in the path."""
    fields = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    sent = _object(body)
    shown = {name: value for name, value in {**fields, **sent}.items() if name in SHOWN_FIELDS}
    return {**shown, **values}


def resource_of(values: Mapping[str, str], asked: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of what an act is about."""
    for name in _RESOURCES:
        if name in values:
            return _KINDS.get(name, name), values[name]
    named = asked.get("principal")
    return ("principal", named) if isinstance(named, str) else ("cluster", "*")


def _object(body: bytes) -> dict[str, Any]:
    """Return a body that is a JSON object; empty for any other, which the call itself refuses."""
    try:
        sent = msgspec.json.decode(body) if body else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return sent if isinstance(sent, dict) else {}
