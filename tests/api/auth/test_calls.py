"""The table of what each call needs, and how paths find their entry (SPEC SEC-4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match

from deltamq.api.app import create_app
from deltamq.api.auth.calls import CALLS, CallsDisagree, Need, Required, check_complete, needs_of, required_by
from deltamq.api.front import HOT_CALLS
from deltamq.api.principals import AUTH_ROUTERS
from deltamq.api.routes import ROUTERS
from deltamq.mq.auth.principals import CLUSTER, VERBS
from tests.api.running import config_for

ADMIN = Required(needs_of("cluster admin"), (CLUSTER,))


def test_sec_04_each_entry_names_verbs_that_its_resource_has_and_names_of_its_path() -> None:
    for name, text in CALLS.items():
        for need in needs_of(text).needs:
            assert set(need.verbs) <= set(VERBS[need.resource]), name
            names = ("{topic}", "{subject}") if need.resource == "topic" else (f"{{{need.resource}}}",)
            assert need.resource == "cluster" or any(one in name for one in names), name


def test_sec_04_a_call_without_an_entry_stops_the_service_and_so_does_an_entry_without_a_call(tmp_path: Path) -> None:
    create_app(config_for(tmp_path))
    with pytest.raises(CallsDisagree, match="GET /v1/secrets"):
        check_complete([*CALLS, "GET /v1/secrets"])
    with pytest.raises(CallsDisagree, match="GET /healthz"):
        check_complete(CALLS.keys() - {"GET /healthz"})


@pytest.mark.parametrize(
    ("method", "path", "text", "names"),
    [
        ("POST", "/v1/topics/orders/messages", "topic publish", ("orders",)),
        ("GET", "/v1/topics/orders/partitions/orders%40a/messages", "topic subscribe", ("orders",)),
        ("DELETE", "/v1/topics/orders/messages/a%2Fb/c", "topic publish", ("orders",)),
        ("POST", "/v1/groups/g/topics/orders/pop", "group subscribe, topic subscribe", ("g", "orders")),
        ("POST", "/v1/groups/g/ack", "group subscribe", ("g",)),
        ("PUT", "/v1/topics/%25RETRY%25x", "topic create|alter", ("%RETRY%x",)),
        ("DELETE", "/v1/groups/prices%40worker-1", "group delete", ("prices",)),
        ("GET", "/v1/topics/..", "topic describe", ("..",)),
        ("GET", "/v1/topics/%252e%252e", "topic describe", ("%2e%2e",)),
        ("GET", "/v1/topics/%6Frders", "topic describe", ("orders",)),
        ("GET", "/v1/topics/%D0%BErders", "topic describe", ("оrders",)),  # its first letter is Cyrillic
        ("GET", "/schemas/subjects/orders-value/versions", "topic describe", ("orders",)),
        ("POST", "/schemas/subjects/a%2Fb-key/versions", "topic alter|create", ("a/b",)),
        ("DELETE", "/schemas/subjects/orders", "topic delete", ("orders",)),
        ("PUT", "/schemas/config", "cluster admin", (CLUSTER,)),
        ("GET", "/", "any", ()),
        ("GET", "/console/pages/topic.js", "open", ()),
        ("GET", "/v1/topics", "any", ()),
        ("GET", "/healthz", "open", ()),
    ],
)
def test_sec_04_a_path_finds_its_entry_and_its_names(method: str, path: str, text: str, names: tuple[str, ...]) -> None:
    assert required_by(method, path.encode()) == Required(needs_of(text), names)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/topics/orders%2Fmessages"),
        ("GET", "/schemas/subjects/orders-value/versions/1/schema/"),
        ("GET", "/schemas/nothing"),
        ("POST", "/v1/topics/a%2Fb/messages"),
        ("GET", "/v1/topics/"),
        ("GET", "//v1/topics"),
        ("GET", "/V1/topics"),
        ("GET", "/v1/topics/orders/"),
        ("GET", "/healthz/"),
        ("GET", "/%2Fhealthz"),
        ("GET", "/v1/topics/%c0%af"),
        ("GET", "/v1/topics/orders/../orders"),
        ("PATCH", "/v1/topics/orders"),
        ("POST", "/healthz"),
        ("OPTIONS", "/v1/topics"),
        ("get", "/healthz"),
        ("GET", "/docs"),
        ("GET", "*"),
        ("GET", ""),
    ],
)
def test_sec_04_what_the_table_does_not_have_needs_an_administrator(method: str, path: str) -> None:
    assert required_by(method, path.encode()) == ADMIN


PIECES = [
    *("v1", "topics", "groups", "orders", "g@c", "messages", "partitions", "auth", "keys", "ack", "pop", "", ".", ".."),
    *("offsets", "a/b", "cluster", "healthz", "ä", "dead-letters", "replay", "%2F", "locks", "clients", "remap"),
]
ROUTES = [route for router in (*ROUTERS, *AUTH_ROUTERS) for route in router.routes]


def routed(method: str, raw: str) -> tuple[str, dict[str, Any]] | None:
    """The entry of the call that the service runs for a request, and the names that it is given."""
    segments = raw.split("/")
    for call in HOT_CALLS:
        wanted, _, template = call.partition(" ")
        pairs = list(zip(template.split("/"), segments, strict=False))
        if template.count("/") == raw.count("/") and all(part in (one, f"{{{part[1:-1]}}}") for part, one in pairs):
            names = {part[1:-1]: unquote(one) for part, one in pairs if part.startswith("{")}
            return (call, names) if wanted == method else None
    scope = {"type": "http", "method": method, "path": unquote(raw), "root_path": "", "headers": []}
    for route in ROUTES:
        match, found = route.matches(scope)
        if match is Match.FULL:
            return f"{method} {route.path}", found["path_params"]
    return None


@pytest.mark.promise("AUTH-3")
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
    st.lists(st.sampled_from(PIECES), max_size=8),
    st.booleans(),
    st.sampled_from(["v1/topics/", "v1/groups/", "v1/groups/g/topics/", "v1/auth/", ""]),
)
def test_sec_04_what_is_checked_is_what_is_run(method: str, pieces: list[str], quoted: bool, begin: str) -> None:
    raw = "/" + begin + "/".join(quote(one, safe="" if quoted else "/") for one in pieces)
    required = required_by(method, raw.encode())
    found = routed(method, raw)
    if found is None or required == ADMIN:
        return
    call, names = found
    needs = needs_of(CALLS[call])
    assert required.call == needs
    assert required.names == tuple(_named(need, names) for need in needs.needs)


def _named(need: Need, names: dict[str, Any]) -> str:
    if need.resource == "cluster":
        return CLUSTER
    name: str = names[need.resource]
    return name.partition("@")[0] if need.resource == "group" and len(name.partition("@")[2]) else name
