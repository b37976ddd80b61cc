"""A service with authentication: one check in front of everything (SPEC SEC-4, SEC-5, SEC-6)."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deltamq.api.auth.calls import CALLS, access_of
from deltamq.mq.client.admin.admin import Admin
from tests.api.guarded import Guarded, guarded
from tests.api.routes.test_dead_letters import bury, letter
from tests.api.running import JSON, PROBLEM, Reply, config_for, running, until

OPEN = ("GET /healthz", "GET /readyz", "GET /console/{file:path}", "GET /v1/auth/sign-in")
CLOSED = [name for name in CALLS if name not in OPEN]
#: What no entry of the table is about.
UNKNOWN = ["GET /docs", "GET /v1/secrets", "PATCH /v1/topics/orders", "TRACE /", "OPTIONS /v1/topics", "GET //healthz"]


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("guarded")) as admin:
        yield admin


@pytest.fixture(scope="module")
def nobody(admin: Guarded) -> Guarded:
    """A principal with a key and without a grant."""
    return admin.caller("nobody")


def sent(api: Guarded, name: str, **headers: str) -> Reply:
    """Call the entry of the table with names filled in."""
    method, _, path = name.partition(" ")
    return api.call(method, re.sub(r"\{(\w+)(:path)?\}", r"x-\1", path), **headers)


def refused(reply: Reply) -> tuple[int, Any]:
    if reply.headers["content-type"] == "application/vnd.schemaregistry.v1+json":
        return reply.status, {40101: "unauthenticated", 40301: "forbidden"}[reply.json["error_code"]]
    assert reply.headers["content-type"] == PROBLEM
    return reply.status, reply.json["code"]


@pytest.mark.promise("AUTH-1")
@pytest.mark.parametrize("name", [*CLOSED, *UNKNOWN])
def test_sec_04_nothing_is_answered_without_a_key(admin: Guarded, name: str) -> None:
    reply = sent(admin.by(None), name)
    if name.startswith("HEAD"):
        assert reply.status == 401
    elif name == "GET /":
        assert (reply.status, reply.headers["content-type"]) == (401, "text/html; charset=utf-8"), "it asks for a key"
        assert "script-src 'self'" in reply.headers["content-security-policy"]
    else:
        assert refused(reply) == (401, "unauthenticated")
    assert reply.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.promise("AUTH-2")
@pytest.mark.parametrize("name", [*CLOSED, *UNKNOWN])
def test_sec_04_a_key_without_a_grant_opens_nothing(nobody: Guarded, name: str) -> None:
    reply = sent(nobody, name)
    assert reply.status == 403 if name.startswith("HEAD") else refused(reply) == (403, "forbidden")


@pytest.mark.parametrize("name", ["GET /healthz", "GET /readyz", "GET /console/app.js", "GET /console/pages/topic.js"])
def test_sec_04_health_readiness_and_the_files_of_the_console_are_open(admin: Guarded, name: str) -> None:
    assert sent(admin.by(None), name).status == sent(admin.by("wrong"), name).status == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YWRtaW46YWRtaW4=",
        "Bearer mqk_0011223344556677_" + "a" * 43,
        "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
        "Bearer " + "a" * 20_000,
        "Bearer m\u00fcll",
    ],
)
def test_sec_04_what_is_no_key_is_refused(admin: Guarded, header: str) -> None:
    assert refused(admin.by(None).call("GET", "/v1/topics", Authorization=header)) == (401, "unauthenticated")


def test_sec_04_a_key_that_is_nearly_right_is_refused(admin: Guarded) -> None:
    token = admin.token or ""
    for wrong in (
        token[:-1],
        token + "A",
        token[:-1] + ("A" if token[-1] != "A" else "B"),
        token.upper(),
        f"{token} x",
    ):
        assert admin.by(wrong).call("GET", "/v1/topics").status == 401
    for scheme in ("bearer", "BEARER"):
        assert admin.by(None).call("GET", "/v1/topics", Authorization=f"{scheme} {token}").status == 200


def test_sec_04_who_may_only_publish_may_only_publish(admin: Guarded) -> None:
    admin.put_topic("orders.eu")
    sender = admin.caller("sender", ("topic", "orders.*", "publish"))
    assert sender.send("orders.eu", "a").status == 200
    assert sender.call("GET", "/v1/topics/orders.eu").status == 200, "a producer must see the route"
    for forbidden in (
        sender.fetch("orders.eu", "orders.eu@broker-a"),
        sender.call("POST", "/v1/groups/g/topics/orders.eu/pop", {}),
        sender.call("DELETE", "/v1/topics/orders.eu"),
        sender.call("PUT", "/v1/topics/orders.eu", {"retention_ms": 5_000}),
        sender.call("GET", "/v1/auth/keys"),
        sender.call("GET", "/metrics"),
        sender.send("orders", "a"),
        sender.send("ORDERS.eu", "a"),
    ):
        assert refused(forbidden) == (403, "forbidden")


def test_sec_04_a_topic_is_made_by_sending_to_it_only_with_create(admin: Guarded) -> None:
    sender = admin.caller("maker", ("topic", "made.*", "publish"))
    assert refused(sender.send("made.one", "a")) == (403, "forbidden")
    assert admin.call("GET", "/v1/topics/made.one").status == 404
    admin.rule("maker", "topic", "made.*", "create")
    assert sender.send("made.one", "a").status == 200
    assert sender.call("PUT", "/v1/topics/made.two", {}).status == 201
    assert refused(sender.call("PUT", "/v1/topics/made.two", {"retention_ms": 5_000})) == (403, "forbidden")
    admin.rule("maker", "topic", "made.two", "alter")
    assert sender.call("PUT", "/v1/topics/made.two", {"retention_ms": 5_000}).status == 200


def test_sec_04_a_pop_needs_the_group_and_the_topic(admin: Guarded) -> None:
    admin.put_topic("popped")
    admin.send("popped", "a")
    path = "/v1/groups/poppers/topics/popped/pop"
    for have, lacks in ((("topic", "popped", "subscribe"), "group"), (("group", "poppers", "subscribe"), "topic")):
        half = admin.caller(f"half-{lacks}", have)
        reply = half.call("POST", path, {})
        assert (*refused(reply), reply.json["field"]) == (403, "forbidden", lacks)
    both = admin.caller("both", ("topic", "popped", "subscribe"), ("group", "poppers", "subscribe"))
    (message,) = both.call("POST", path, {}).json["messages"]
    ack = {"handles": [message["handle"]]}
    assert (
        admin.caller("acker", ("topic", "popped", "subscribe")).call("POST", "/v1/groups/poppers/ack", ack).status
        == 403
    )
    assert both.call("POST", "/v1/groups/poppers/ack", ack).json["acked"] == 1


def test_sec_04_a_handle_needs_its_topic_when_it_is_used(admin: Guarded) -> None:
    caller = admin.caller("holder", ("group", "holders", "subscribe"), ("topic", "held.a", "subscribe"))
    rule = admin.rule("holder", "topic", "held.b", "subscribe")
    handles = []
    for topic in ("held.a", "held.b"):
        admin.put_topic(topic)
        admin.send(topic, "1", "2")
        popped = caller.call("POST", f"/v1/groups/holders/topics/{topic}/pop", {"max_messages": 2}).json["messages"]
        handles.append([message["handle"] for message in popped])
    assert admin.call("DELETE", f"/v1/auth/acls/{rule}").status == 204
    (a1, a2), (b1, b2) = handles
    acked = caller.call("POST", "/v1/groups/holders/ack", {"handles": [b1, a1]}).json
    assert acked == {"acked": 1, "failed": [{"handle": b1, "code": "forbidden"}]}
    for call, more in (("nack", {}), ("dead", {"reason": "x"})):
        failed = caller.call("POST", f"/v1/groups/holders/{call}", {"handles": [b2], **more}).json["failed"]
        assert failed == [{"handle": b2, "code": "forbidden"}]
    longer = {"handle": b2, "invisible_ms": 60_000}
    assert refused(caller.call("POST", "/v1/groups/holders/invisible", longer)) == (403, "forbidden")
    carried = caller.call("POST", "/v1/groups/holders/topics/held.a/pop", {"ack": [a2, b2]}).json
    assert carried["failed_acks"] == [{"handle": b2, "code": "forbidden"}]
    assert admin.call("POST", "/v1/groups/holders/ack", {"handles": [b1, b2]}).json["acked"] == 2


def test_sec_05_a_stream_for_a_group_ends_with_the_access_to_the_group(admin: Guarded) -> None:
    admin.put_topic("streamed")
    assert admin.call("PUT", "/v1/groups/streamers", {}).status == 201
    caller = admin.caller("streamer", ("topic", "streamed", "subscribe"))
    rule = admin.rule("streamer", "group", "streamers", "subscribe")
    path = f"/v1/topics/streamed/partitions/{quote('streamed@broker-a')}/messages?group=streamers"
    thread, found = waiting(caller, path, None, "text/event-stream")
    assert admin.call("DELETE", f"/v1/auth/acls/{rule}").status == 204
    thread.join(18)
    assert b'"code":"forbidden"' in found[0].body.rpartition(b"event: refused")[2]


def test_sec_04_a_fetch_for_a_group_needs_the_group(admin: Guarded) -> None:
    admin.put_topic("fetched")
    reader = admin.caller("reader", ("topic", "fetched", "subscribe"))
    assert reader.fetch("fetched", "fetched@broker-a").status == 200
    assert refused(reader.fetch("fetched", "fetched@broker-a", "?group=g")) == (403, "forbidden")


def test_sec_04_a_heartbeat_needs_each_topic_that_it_names(admin: Guarded) -> None:
    admin.put_topic("beat.one")
    assert admin.call("PUT", "/v1/groups/beaters", {}).status == 201
    client = admin.caller("beater", ("group", "beaters", "subscribe"), ("topic", "beat.one", "subscribe"))
    path = "/v1/groups/beaters/clients/c/heartbeat"
    assert client.call("POST", path, {"topics": {"beat.one": {}}}).status == 200
    assert refused(client.call("POST", path, {"topics": {"beat.one": {}, "beat.two": {}}})) == (403, "forbidden")


def test_sec_04_dead_letters_go_back_where_the_caller_may_publish(admin: Guarded) -> None:
    assert admin.call("PUT", "/v1/groups/buriers", {}).status == 201
    for number, topic in enumerate(("dead.one", "dead.two")):
        admin.put_topic(topic)
        bury(admin, "buriers", letter(topic, number))
    one = admin.caller("burier", ("group", "buriers", "subscribe"), ("topic", "dead.one", "subscribe", "publish"))
    listed = one.call("GET", "/v1/groups/buriers/dead-letters").json
    assert [message["topic"] for message in listed["messages"]] == ["dead.one"]
    assert listed["total"] == 1, "letters that it may not read are not counted"
    assert admin.call("GET", "/v1/groups/buriers/dead-letters").json["total"] == 2
    done = one.call("POST", "/v1/groups/buriers/dead-letters/replay", {"to": "origin"}).json
    assert done["replayed"] == 1 and [failed["code"] for failed in done["failed"]] == ["forbidden"]
    assert one.call("POST", "/v1/groups/buriers/dead-letters/replay", {"to": "retry"}).json["failed_total"] == 1


def test_sec_04_lists_show_what_may_be_described(admin: Guarded) -> None:
    for name in ("shown.a", "shown.b", "hidden"):
        admin.put_topic(name)
        assert admin.call("PUT", f"/v1/groups/{name}", {}).status == 201
    viewer = admin.caller("viewer", ("topic", "shown.*", "describe"), ("group", "shown.*", "describe"))
    admin.rule("viewer", "topic", "shown.b", "describe", effect="deny")
    assert viewer.call("GET", "/v1/topics").json["topics"] == ["shown.a"]
    assert viewer.call("GET", "/v1/groups").json["groups"] == ["shown.a", "shown.b"]
    assert viewer.call("GET", "/v1/topics?limit=1").json == {"topics": ["shown.a"]}
    everything = admin.call("GET", "/v1/topics").json["topics"]
    assert {"shown.a", "shown.b", "hidden"} <= set(everything)


def test_sec_04_a_group_is_shown_without_topics_that_may_not_be_described(admin: Guarded) -> None:
    for topic in ("progress.one", "progress.two"):
        admin.put_topic(topic)
        partition = f"{topic}@broker-a"
        admin.send(topic, {"body": "a", "partition": partition})
        path = f"/v1/groups/progress/topics/{topic}/offsets"
        assert admin.call("PUT", path, {"offsets": {partition: 1}}).status == 200
    viewer = admin.caller("one-of-two", ("group", "progress", "describe"), ("topic", "progress.one", "describe"))
    seen = viewer.call("GET", "/v1/groups/progress").json
    assert [one["topic"] for one in seen["topics"]] == ["progress.one"]
    assert {one["topic"] for one in admin.call("GET", "/v1/groups/progress").json["topics"]} == {
        "progress.one",
        "progress.two",
    }


@pytest.mark.promise("AUTH-4")
def test_sec_05_keys_are_changed_without_a_failed_request(admin: Guarded) -> None:
    admin.put_topic("rotated")
    sender = admin.caller("rotating", ("topic", "rotated", "publish"))
    current, statuses, end = [sender], list[int](), threading.Event()

    def send() -> None:
        while not end.is_set():
            statuses.append(current[0].send("rotated", "a").status)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        for _ in range(5):
            old = str(current[0].token)[4:20]
            current[0] = admin.by(admin.key("rotating")["key"])
            reached = len(statuses) + 2
            until(lambda reached=reached: len(statuses) >= reached)
            assert admin.call("DELETE", f"/v1/auth/keys/{old}").status == 204
    finally:
        end.set()
        sending.join()
    assert set(statuses) == {200}


def test_sec_05_a_key_that_is_revoked_or_over_is_refused(admin: Guarded) -> None:
    caller = admin.caller("short", ("topic", "*", "describe"))
    assert caller.call("GET", "/v1/topics").status == 200
    assert admin.call("DELETE", f"/v1/auth/keys/{str(caller.token)[4:20]}").status == 204
    assert refused(caller.call("GET", "/v1/topics")) == (401, "unauthenticated")
    soon = admin.service.now_ms() + 1_500
    from_until = admin.key("short", until=_rfc3339(soon))
    ends = admin.by(from_until["key"])
    assert ends.call("GET", "/v1/topics").status == 200
    until(lambda: ends.call("GET", "/v1/topics").status == 401)
    assert admin.service.now_ms() >= soon


def _rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def waiting(caller: Guarded, path: str, body: object, accept: str) -> tuple[threading.Thread, list[Reply]]:
    """A request that waits, in a thread, and its answer once it is there."""
    found: list[Reply] = []
    method = "GET" if body is None else "POST"
    thread = threading.Thread(target=lambda: found.append(caller.call(method, path, body, Accept=accept)))
    thread.start()
    until(lambda: caller.service.gate is not None and caller.service.gate._waiting)
    return thread, found


def check_stream_ends(caller: Guarded, act: Callable[[], bool], code: str) -> None:
    """Check that a waiting stream of `orders` ends with this code soon after `act`, which says if it is done."""
    path = f"/v1/topics/orders/partitions/{quote('orders@broker-a')}/messages"
    thread, found = waiting(caller, path, None, "text/event-stream")
    began = time.monotonic()
    assert act()
    thread.join(18)
    assert time.monotonic() - began < 15 and f'"code":"{code}"'.encode() in found[0].body.rpartition(b"refused")[2]


def request_that_waits(caller: Guarded, call: str, name: str) -> tuple[str, object, str]:
    """Path, body and wanted media type of a call that waits in the topic and group of this name."""
    messages = f"/v1/topics/{name}/partitions/{quote(name + '@broker-a')}/messages"
    if call == "pop":
        return f"/v1/groups/{name}/topics/{name}/pop", {"wait_ms": 20_000}, JSON
    if call == "fetch":
        return f"{messages}?wait_ms=20000", None, JSON
    if call == "stream":
        return messages, None, "text/event-stream"
    if call == "lock":
        partition = f"{name}@broker-a"
        caller.call("POST", f"/v1/groups/{name}/clients/other/heartbeat", {"topics": {name: {"order": True}}})
        path, body = f"/v1/groups/{name}/topics/{name}/locks", {"client_id": "other", "partitions": [partition]}
        until(lambda: caller.call("POST", path, body).json["partitions"])
        return path, {**body, "client_id": "c", "wait_ms": 20_000}, JSON
    path, body = f"/v1/groups/{name}/clients/c/heartbeat", {"topics": {name: {}}}
    epoch = caller.call("POST", path, body).json["allocation_epoch"]
    return f"{path}?wait_ms=20000&allocation_epoch={epoch}", body, JSON


@pytest.mark.promise("AUTH-5")
@pytest.mark.parametrize("how", ["key", "rule", "principal", "disabled"])
@pytest.mark.parametrize("call", ["pop", "fetch", "stream", "heartbeat", "lock"])
def test_sec_05_requests_that_wait_end_when_their_access_does(admin: Guarded, call: str, how: str) -> None:
    name = f"waiter.{call}.{how}"
    admin.put_topic(name)
    strategy = "exclusive" if call in ("heartbeat", "lock") else "shared"
    assert admin.call("PUT", f"/v1/groups/{name}", {"consume_strategy": strategy}).status == 201
    caller = admin.caller(name)
    rules = {resource: admin.rule(name, resource, name, "subscribe") for resource in ("topic", "group")}
    path, body, accept = request_that_waits(caller, call, name)
    thread, found = waiting(caller, path, body, accept)
    ended = {
        "key": f"keys/{str(caller.token)[4:20]}",
        "rule": f"acls/{rules['topic' if body is None else 'group']}",
        "principal": f"principals/{name}",
        "disabled": f"principals/{name}/disable",
    }[how]
    began = time.monotonic()
    assert admin.call("POST" if how == "disabled" else "DELETE", f"/v1/auth/{ended}").status in (200, 204)
    thread.join(18)
    assert not thread.is_alive() and time.monotonic() - began < 15
    codes = {"rule": (403, "forbidden"), "disabled": (403, "principal_disabled")}
    (reply,), code = found, codes.get(how, (401, "unauthenticated"))
    if call == "stream":
        assert reply.status == 200 and f'"code":"{code[1]}"'.encode() in reply.body.rpartition(b"event: refused")[2]
    else:
        assert refused(reply) == code
    assert refused(caller.call("GET" if body is None else "POST", path, body)) == code


@pytest.mark.parametrize("how", ["disabled", "unread"])
@pytest.mark.parametrize(
    ("line", "body"),
    [
        ("POST /v1/topics/{}/messages", {"messages": [{"body": "late"}]}),
        ("PUT /v1/topics/{}.other", {"partitions": 1}),
        ("PUT /v1/groups/{}/topics/{}/offsets", {"offsets": {}}),
        ("POST /schemas/subjects/{}/versions", {"schema": '"string"'}),
    ],
)
def test_sec_05_a_body_that_comes_after_the_end_of_its_access_is_refused(
    admin: Guarded, monkeypatch: pytest.MonkeyPatch, line: str, body: dict[str, object], how: str
) -> None:
    name = f"slow.{line.count('/')}.{line[1]}.{how}"
    admin.put_topic(name, partitions=1)
    everything = ("publish", "subscribe", "create", "alter", "describe")
    caller = admin.caller(name, ("topic", f"{name}*", *everything), ("group", name, "subscribe"))
    sent = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", admin.port), timeout=60) as sock:
        head = f"{line.format(name, name)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {caller.token}\r\n"
        sock.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n".encode())
        began = time.monotonic()
        until(lambda: time.monotonic() > began + 1.2)  # a body that is there within a second is not checked again
        if how == "disabled":
            assert admin.call("POST", f"/v1/auth/principals/{name}/disable").status == 200
        else:
            monkeypatch.setattr(admin.service.meta, "_read_within_s", -3_600)
        sock.sendall(sent)
        answer = sock.recv(65_536)
    monkeypatch.undo()
    status = b"403" if how == "disabled" else b"503"
    assert answer.startswith(b"HTTP/1.1 " + status), answer
    assert sum(admin.stored(name).values()) == 0 and not admin.stored(f"{name}.other")


def test_sec_06_a_forged_header_of_a_process_is_refused(admin: Guarded) -> None:
    forged = {"Mq_Forwarded": admin.service.hosting.id, "Mq_Meta_Offset": "1"}
    for proof in ({}, {"Mq_Proof": "1.00"}, {"Mq_Proof": f"{admin.service.now_ms()}.{'0' * 64}"}):
        assert refused(admin.call("GET", "/v1/topics", **forged, **proof)) == (403, "forwarded_unproved")
        assert refused(admin.by(None).call("GET", "/v1/topics", **forged, **proof)) == (401, "unauthenticated")


def test_sec_01_a_key_is_shown_once(admin: Guarded) -> None:
    admin.put_principal("once", "Ada")
    made = admin.key("once")
    assert re.fullmatch(r"mqk_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", made["key"])
    shown = admin.call("GET", "/v1/auth/principals/once").json
    assert [one["key_id"] for one in shown["keys"]] == [made["key_id"]] and shown["note"] == "Ada"
    admin.key("once")
    third = admin.call("POST", "/v1/auth/keys", {"principal": "once"})
    assert refused(third) == (409, "too_many_keys")
    listed = admin.call("GET", "/v1/auth/keys?principal=once").body + admin.call("GET", "/v1/auth/principals/once").body
    state = admin.service.meta.now.auth
    assert made["key"][-43:].encode() not in listed and state.keys[made["key_id"]].digest.encode() not in listed


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"principal": "p", "resource": "topic", "pattern": "a*b", "verbs": ["publish"]}, "pattern"),
        ({"principal": "p", "resource": "topic", "pattern": "a", "verbs": ["reset"]}, "verbs"),
        ({"principal": "p/q", "resource": "topic", "pattern": "a", "verbs": ["publish"]}, "principal"),
        ({"principal": "unknown", "resource": "topic", "pattern": "a", "verbs": ["publish"]}, "principal"),
    ],
)
def test_sec_03_a_wrong_rule_is_refused_by_its_part(admin: Guarded, body: dict[str, object], field: str) -> None:
    reply = admin.call("POST", "/v1/auth/acls", body)
    assert reply.status in (400, 404, 422) and reply.json["field"] == field


def test_sec_03_principals_and_rules_are_removed(admin: Guarded) -> None:
    admin.put_principal("gone")
    rule = admin.rule("gone", "topic", "a", "publish")
    assert admin.rule("gone", "topic", "a", "publish") == rule
    assert admin.call("DELETE", f"/v1/auth/acls/{rule}").status == 204
    assert refused(admin.call("DELETE", f"/v1/auth/acls/{rule}")) == (404, "acl_not_found")
    assert "gone" in admin.call("GET", "/v1/auth/principals").json["principals"]
    assert admin.call("DELETE", "/v1/auth/principals/gone").status == 204
    assert refused(admin.call("GET", "/v1/auth/principals/gone")) == (404, "principal_not_found")


def test_sec_04_the_document_says_what_each_call_needs(admin: Guarded) -> None:
    document = json.loads(admin.call("GET", "/openapi.json").body)
    told = {
        f"{method.upper()} {path}": (call["x-deltamq-access"], bool(call["security"]), "401" in call["responses"])
        for path, methods in document["paths"].items()
        for method, call in methods.items()
    }
    expected = {
        name.replace(":path", ""): access_of(name)
        for name in CALLS
        if not name.endswith("/openapi.json") and not name.startswith("GET /console/") and " /schemas" not in name
    }
    assert told == {name: (text, text != "open", text != "open") for name, text in expected.items()}


def test_look_10_a_caller_learns_what_it_may_do(admin: Guarded) -> None:
    everything = admin.call("GET", "/v1/auth/may").json
    assert (everything["principal"], everything["cluster"]) == ("admin", ["admin", "metrics", "audit"])
    assert "delete" in everything["topic"] and "reset" in everything["group"]
    caller = admin.caller("asks", ("topic", "asked.*", "publish", "subscribe"), ("group", "asked", "reset"))
    admin.rule("asks", "topic", "asked.secret", "subscribe", effect="deny")
    assert caller.call("GET", "/v1/auth/may").json == {"principal": "asks", "cluster": [], "topic": [], "group": []}
    named = caller.call("GET", "/v1/auth/may?topic=asked.secret&group=asked%40client-1").json
    assert (named["topic"], named["group"]) == (["publish", "describe"], ["reset", "describe"])
    with Admin(f"http://127.0.0.1:{admin.port}", token=caller.token) as sdk:
        assert sdk.allowed(topic="asked.eu").topic == ("publish", "subscribe", "describe")


def test_sec_03_it_all_is_there_after_a_restart(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        caller = admin.caller("stays", ("topic", "*", "describe"))
        tokens = admin.token, caller.token
    with guarded(tmp_path, token=tokens[0]) as admin:
        assert admin.call("GET", "/v1/auth/principals").json["principals"] == ["admin", "stays"]
        assert admin.by(tokens[1]).call("GET", "/v1/topics").status == 200


def test_sec_08_without_authentication_keys_cannot_be_made(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        reply = api.call("POST", "/v1/auth/keys", {"principal": "admin"})
        assert refused(reply) == (409, "auth_off")
        assert api.call("GET", "/v1/topics", Authorization="Bearer whatever").status == 200
