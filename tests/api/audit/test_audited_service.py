"""The audit of a running service: each administrative act once, with who, what, and what became of it (SPEC SEC-40)."""

from __future__ import annotations

import json
from asyncio import run_coroutine_threadsafe
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.audit.calls import SHOWN_FIELDS
from deltamq.api.auth.calls import CALLS, is_audited
from deltamq.mq.audit import ActBegun, ActEnded, RefusalCount
from deltamq.mq.auth.changes import decide_put_password
from deltamq.mq.auth.keys import password_of
from deltamq.tables.config_sections import AuditWhen
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.records import audit_records_of
from deltamq.tables.queue.refs import AUDIT
from tests.api.guarded import Guarded, guarded
from tests.api.running import Reply, config_for, running, until


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("audit")) as api:
        yield api


def acts(api: Guarded, query: str = "", limit: int = 1_000) -> list[dict[str, Any]]:
    """All acts, page by page."""
    found: list[dict[str, Any]] = []
    following: int | None = 0
    while following is not None:
        reply = api.call("GET", f"/v1/audit?limit={limit}&after={following}{query}")
        assert reply.status == 200, reply
        found += reply.json["acts"]
        following = reply.json["next"]
    return found


def last(api: Guarded) -> dict[str, Any]:
    return acts(api)[-1]


def stored(folder: Path) -> list[Any]:
    warehouse = Warehouse.open(str(folder))
    log = warehouse.open_partition(AUDIT)
    found = [record for page in pages(log, 0) for record in audit_records_of(page.rows)]
    warehouse.close()
    return found


#: Fields that are never recorded: the keys of an erasure would stay in the audit.
HIDDEN_FIELDS = frozenset(("keys",))
#: Acts in an order in which all of them succeed, with the resource that is recorded.
ACTS: list[tuple[str, str, object, tuple[str, str]]] = [
    ("PUT", "/v1/topics/orders", {"partitions": 2}, ("topic", "orders")),
    ("PUT", "/v1/topics/orders/partitions/orders%40broker-a", {"writable": False}, ("topic", "orders")),
    ("PUT", "/v1/topics/fixed", {"static": True, "total_queues": 2}, ("topic", "fixed")),
    ("POST", "/v1/topics/fixed/remap", {"brokers": ["broker-a"], "mode": "strict"}, ("topic", "fixed")),
    ("POST", "/v1/topics/fixed/repair", {"plan": True}, ("topic", "fixed")),
    (
        "POST",
        "/schemas/subjects/orders-value/versions",
        {"schemaType": "AVRO", "schema": '"int"'},
        ("subject", "orders-value"),
    ),
    ("PUT", "/schemas/config/orders-value", {"compatibility": "NONE"}, ("subject", "orders-value")),
    ("DELETE", "/schemas/config/orders-value", None, ("subject", "orders-value")),
    ("PUT", "/schemas/mode/orders-value", {"mode": "READWRITE"}, ("subject", "orders-value")),
    ("DELETE", "/schemas/mode/orders-value", None, ("subject", "orders-value")),
    ("DELETE", "/schemas/subjects/orders-value/versions/1", None, ("subject", "orders-value")),
    ("DELETE", "/schemas/subjects/orders-value?permanent=true", None, ("subject", "orders-value")),
    ("PUT", "/schemas/config", {"compatibility": "FULL"}, ("cluster", "*")),
    ("DELETE", "/schemas/config", None, ("cluster", "*")),
    ("PUT", "/schemas/mode", {"mode": "READWRITE"}, ("cluster", "*")),
    ("PUT", "/v1/topics/typed", {"schema": {"format": "columns", "schema": "id STRING"}}, ("topic", "typed")),
    ("POST", "/v1/topics/typed/quarantine/replay", {"code": "missing"}, ("topic", "typed")),
    ("DELETE", "/v1/topics/typed/quarantine", {"all": True}, ("topic", "typed")),
    ("POST", "/v1/topics/orders/erase", {"keys": ["ada@example.org"]}, ("topic", "orders")),
    ("PUT", "/v1/groups/billing", {"max_attempts": 3}, ("group", "billing")),
    ("POST", "/v1/groups/billing/pause", {"reason": "audit"}, ("group", "billing")),
    ("POST", "/v1/groups/billing/resume", None, ("group", "billing")),
    ("POST", "/v1/groups/billing/topics/orders/offsets/reset", {"to": "first"}, ("group", "billing")),
    ("POST", "/v1/groups/billing/dead-letters/replay", {"to": "retry"}, ("group", "billing")),
    ("DELETE", "/v1/groups/billing/dead-letters", {"all": True}, ("group", "billing")),
    ("DELETE", "/v1/groups/billing", None, ("group", "billing")),
    ("DELETE", "/v1/topics/orders", None, ("topic", "orders")),
    ("PUT", "/v1/auth/principals/reports", {"note": "Ada"}, ("principal", "reports")),
    ("POST", "/v1/auth/principals/reports/disable", None, ("principal", "reports")),
    ("POST", "/v1/auth/principals/reports/enable", None, ("principal", "reports")),
    ("POST", "/v1/auth/keys", {"principal": "reports"}, ("principal", "reports")),
    (
        "POST",
        "/v1/auth/acls",
        {"principal": "reports", "resource": "topic", "pattern": "a", "verbs": ["publish"]},
        ("principal", "reports"),
    ),
    ("PUT", "/v1/auth/quotas/reports", {"requests_per_s": 9}, ("principal", "reports")),
    ("DELETE", "/v1/auth/principals/reports/passwords/SCRAM-SHA-512", None, ("principal", "reports")),
    ("DELETE", "/v1/auth/keys/KEY", None, ("key", "KEY")),
    ("DELETE", "/v1/auth/acls/ACL", None, ("acl", "ACL")),
    ("DELETE", "/v1/auth/principals/reports", None, ("principal", "reports")),
    ("PUT", "/v1/brokers/broker-b", {"readable": True}, ("broker", "broker-b")),
    ("POST", "/v1/cluster/upgrade", None, ("cluster", "*")),
    ("PUT", "/v1/applied", {"topics": {"orders": {"partitions": 2}}}, ("cluster", "*")),
    ("PUT", "/v1/log-level", {"level": "info"}, ("cluster", "*")),
]


@pytest.mark.promise("AUDIT-1")
def test_sec_40_each_administrative_act_is_in_the_audit_once_with_who_and_what(admin: Guarded) -> None:
    before = len(acts(admin))
    word_of = password_of("reports", "SCRAM-SHA-512", salt=b"s", iterations=4_096, salted=b"p", now_ms=1)
    setting = admin.service.meta.submit_any(lambda meta: decide_put_password(meta.auth, word_of))
    run_coroutine_threadsafe(setting, admin.service.loop).result(30)  # only Kafka's clients set one
    known: dict[str, str] = {}
    for method, path, body, (kind, name) in ACTS:
        for word, value in known.items():
            path, name = path.replace(word, value), name.replace(word, value)
        reply = admin.call(method, path, body)
        assert reply.status in (200, 201, 204), (path, reply)
        if path.endswith(("/keys", "/acls")):
            word = path[-4:-1].upper()
            known[word] = reply.json[f"{word.lower()}_id"]
        found = last(admin)
        assert (found["principal"], found["outcome"], found["status"]) == ("admin", "done", reply.status), found
        assert (found["resource"], found["name"]) == (kind, name)
        assert found["process"] == admin.service.hosting.id
        assert found["address"].startswith("127.0.0.1:")
        if isinstance(body, dict):
            assert HIDDEN_FIELDS.isdisjoint(found["asked"])
            recorded = {k: v for k, v in body.items() if k not in {"schema", *HIDDEN_FIELDS}}
            assert found["asked"].items() >= recorded.items()
    found = acts(admin, limit=3)[before:]
    assert len(found) == len(ACTS) == len({one["id"] for one in found})
    only_between_clusters = {"PUT /v1/topics/{topic}/global"}
    assert {one["call"] for one in found} | only_between_clusters == {name for name in CALLS if is_audited(name)}


def test_sec_40_an_act_shows_what_was_before_and_after(admin: Guarded) -> None:
    admin.put_topic("shown", partitions=1, retention_ms=60_000)
    made = last(admin)
    assert made["before"] == {"topic/shown": None}
    assert made["after"]["topic/shown"]["settings"]["retention_ms"] == 60_000
    admin.put_topic("shown", retention_ms=70_000)
    changed = last(admin)
    assert changed["before"] == made["after"]
    assert changed["after"]["topic/shown"]["settings"]["retention_ms"] == 70_000
    admin.caller("seen", ("topic", "shown", "subscribe"))
    (rule,) = acts(admin)[-2]["after"]["auth/seen"]["acls"]
    assert (rule["pattern"], rule["verbs"], rule["effect"]) == ("shown", ["subscribe"], "allow")
    for how, was, now in (("disable", False, True), ("enable", True, False)):
        assert admin.call("POST", f"/v1/auth/principals/seen/{how}").status == 200
        switched = last(admin)
        assert [switched[when]["auth/seen"]["disabled_ms"] is not None for when in ("before", "after")] == [was, now]
        assert len(switched["after"]["auth/seen"]["acls"]) == 1
    assert admin.call("DELETE", "/v1/auth/principals/seen").status == 204
    assert last(admin)["after"] == {"auth/seen": None}


def test_sec_40_an_act_that_is_refused_or_changes_nothing_is_told_as_such(admin: Guarded) -> None:
    assert admin.call("DELETE", "/v1/topics/nowhere").status == 404
    refused = last(admin)
    assert (refused["outcome"], refused["code"], refused["before"]) == ("refused", "topic_not_found", None)
    assert admin.call("PUT", "/v1/topics/bad", {"partitions": "many"}).status in (400, 422)
    assert last(admin)["outcome"] == "refused"
    admin.put_principal("same")
    admin.put_principal("same")
    again = last(admin)
    assert (again["outcome"], again["before"], again["after"]) == ("done", None, None)


def test_sec_40_neither_secrets_nor_bodies_nor_unknown_fields_are_recorded(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        admin.put_principal("reports")
        key = admin.key("reports")["key"]
        admin.put_topic("orders")
        admin.send("orders", "the body of a message")
        sent = {"principal": "reports", "password": "hunter2", "key": "mqk_typed"}
        assert admin.call("POST", "/v1/auth/keys", sent).status == 400
        assert (
            admin.call("PUT", "/v1/topics/x?token=querysecret", b"not json: sesame", "application/json").status == 400
        )
        digests = [one.digest for one in admin.service.meta.now.auth.keys.values()]
    text = json.dumps([str(record) for record in stored(tmp_path)])
    for secret in (key, key.split("_", 2)[2], "hunter2", "mqk_typed", "querysecret", "sesame", "the body", *digests):
        assert secret not in text, secret


def test_sec_40_the_fields_of_all_administrative_calls_are_recorded(admin: Guarded) -> None:
    document = json.loads(admin.call("GET", "/openapi.json").body)
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            name = f"{method.upper()} {path}"
            if not call["x-deltamq-audited"]:
                continue
            schema = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
            queries = {one["name"] for one in call.get("parameters", ()) if one["in"] == "query"}
            assert {*schema.get("properties", ()), *queries} <= SHOWN_FIELDS | HIDDEN_FIELDS, name


def test_sec_40_what_is_large_is_recorded_as_its_size(admin: Guarded) -> None:
    routes = [f"large-{'x' * 90}-{number}@nowhere" for number in range(1_000)]
    assert admin.call("PUT", "/v1/topics/large", {"routes": routes}).status in (400, 422)
    assert last(admin)["asked"]["(bytes)"] > 65_536


def test_sec_40_acts_are_recorded_without_authentication_only_if_the_settings_say_so(tmp_path: Path) -> None:
    with running(config_for(tmp_path / "a")) as api:
        api.put_topic("orders")
        assert api.call("GET", "/v1/audit").json["code"] == "audit_off"
    assert not (tmp_path / "a/sys/audit").exists()
    with running(config_for(tmp_path / "b", audit=AuditWhen.ALWAYS)) as api:
        api.put_topic("orders")
        (act,) = api.call("GET", "/v1/audit").json["acts"]
        assert (act["principal"], act["outcome"]) == ("(anonymous)", "done")
    with guarded(tmp_path / "c", audit=AuditWhen.NEVER) as admin:
        admin.put_topic("orders")
    assert not (tmp_path / "c/sys/audit").exists()


def test_sec_40_the_first_administrator_is_in_the_audit(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        (act,) = acts(admin)
    assert (act["principal"], act["call"], act["name"]) == ("(files)", "deltamq auth init", "admin")
    assert act["outcome"] == "done"
    assert act["before"] == {"feature/guarded": None, "auth/admin": None}
    begun, ended = stored(tmp_path)
    assert isinstance(begun, ActBegun)
    assert isinstance(ended, ActEnded)
    assert begun.id == ended.id


def test_sec_41_refusals_are_counted_by_minute_principal_call_and_reason(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        poor = admin.caller("poor", ("topic", "orders", "publish"))
        for _ in range(3):
            assert poor.fetch("orders", "orders@broker-a").status == 403
        assert poor.call("DELETE", "/v1/topics/orders").status == 403
        assert poor.call("GET", "/v1/secrets").status == 403
        for _ in range(2):
            assert admin.by(None).call("GET", "/v1/topics").status == 401
        assert admin.by("mqk_wrong").send("orders", "x").status == 401
        before = acts(admin)
    found = [record for record in stored(tmp_path) if isinstance(record, RefusalCount)]
    counted = {(one.principal, one.call, one.status, one.code): one.count for one in found}
    assert counted == {
        ("poor", "GET /v1/topics/{topic}/partitions/{partition}/messages", 403, "forbidden"): 3,
        ("poor", "DELETE /v1/topics/{topic}", 403, "forbidden"): 1,
        ("poor", "(none)", 403, "forbidden"): 1,
        ("(anonymous)", "GET /v1/topics", 401, "unauthenticated"): 2,
        ("(anonymous)", "POST /v1/topics/{topic}/messages", 401, "unauthenticated"): 1,
    }
    assert all(one.minute_ms % 60_000 == 0 and one.address for one in found)
    assert "DELETE /v1/topics/{topic}" not in {one["call"] for one in before}, "what is refused is no act"
    with guarded(tmp_path, token=admin.token) as admin:
        listed = admin.call("GET", "/v1/audit/refusals?principal=poor").json["refusals"]
        assert sum(one["count"] for one in listed) == 5
        one, two = (admin.call("GET", f"/v1/audit/refusals?limit={n}").json for n in (4, 1000))
        assert len(one["refusals"]) == 4
        rest = admin.call("GET", f"/v1/audit/refusals?after={one['next']}").json["refusals"]
        assert one["refusals"] + rest == two["refusals"]


def test_sec_41_refusals_of_names_in_bodies_and_of_quotas_are_counted(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        poor = admin.caller("poor", ("group", "billing", "subscribe"))
        beat = {"topics": {"secret": {}}}
        assert poor.call("POST", "/v1/groups/billing/clients/c/heartbeat", beat).status == 403
        busy = admin.caller("busy", ("topic", "orders", "publish", "create"))
        assert admin.call("PUT", "/v1/auth/quotas/busy", {"requests_per_s": 1}).status == 200
        until(lambda: busy.send("orders", "x").status == 429)
    found = {(one.principal, one.status, one.code) for one in stored(tmp_path) if isinstance(one, RefusalCount)}
    assert found == {("poor", 403, "forbidden"), ("busy", 429, "quota_exceeded")}


def test_sec_42_who_may_read_the_audit_and_nobody_else(admin: Guarded) -> None:
    auditor = admin.caller("auditor", ("cluster", "*", "audit"))
    for path in ("/v1/audit", "/v1/audit/refusals"):
        assert auditor.call("GET", path).status == 200
        assert (
            admin.caller("curious", ("topic", "*", "subscribe"), ("cluster", "*", "admin")).call("GET", path).status
            == 403
        )
        assert admin.call("DELETE", "/v1/auth/principals/curious").status == 204
    assert auditor.call("PUT", "/v1/topics/x").status == 403


def test_sec_42_acts_are_found_by_time_and_principal(admin: Guarded) -> None:
    maker = admin.caller("maker", ("topic", "made-*", "create"))
    made = maker.call("PUT", "/v1/topics/made-1")
    assert made.status == 201, made
    (act,) = acts(admin, "&principal=maker")
    assert act["name"] == "made-1"
    assert maker.call("PUT", "/v1/topics/made-2").status == 201
    time = acts(admin, "&principal=maker")[-1]["time"]
    reply = admin.call("GET", f"/v1/audit?principal=maker&since={time}")
    assert [one["name"] for one in reply.json["acts"]] == ["made-2"]
    assert admin.call("GET", "/v1/audit?since=yesterday").status == 400


SYS = ("sys%2Faudit", "sys%2Fmeta", "rmq_sys_x", "sys/audit")


@pytest.mark.parametrize("name", SYS)
def test_sec_40_clients_cannot_touch_the_names_of_the_system(admin: Guarded, name: str) -> None:
    def status(reply: Reply) -> int:
        return reply.status

    calls = [
        ("POST", f"/v1/topics/{name}/messages", {"messages": [{"body": "forged"}]}),
        ("PUT", f"/v1/topics/{name}", {}),
        ("DELETE", f"/v1/topics/{name}", None),
        ("POST", f"/v1/groups/g/topics/{name}/pop", {}),
        ("GET", f"/v1/topics/{name}/partitions/audit%40audit/messages", None),
        ("PUT", f"/v1/topics/{name}/partitions/audit%40audit", {"writable": False}),
    ]
    before = admin.service.audit
    assert before is not None
    for method, path, body in calls:
        assert status(admin.call(method, path, body)) in (400, 404, 422), (method, path)
    forged = [one for one in acts(admin) if "forged" in str(one)]
    assert not forged
