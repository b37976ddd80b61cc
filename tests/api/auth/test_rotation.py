"""A change of keys without a pause, why somebody may do something, and what patterns cover (SPEC SEC-49)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli import root as cli
from deltamq.mq.errors import Conflict
from tests.api.auth.test_guarded_service import refused
from tests.api.guarded import Guarded, guarded

HOUR_MS = 3_600_000


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path / "warehouse") as found:
        yield found


def _live_of(admin: Guarded, principal: str) -> dict[str, bool]:
    """Whether each live key of a principal has an end."""
    keys = admin.call("GET", f"/v1/auth/keys?principal={principal}").json["keys"]
    return {one["key_id"]: one["until_time"] is not None for one in keys if one["live"]}


def test_sec_49_a_rotated_key_is_good_until_its_overlap_is_over(
    admin: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    admin.put_topic("orders")
    old = admin.caller("reports", ("topic", "orders", "subscribe"))
    first = str(old.token)[4:20]
    made = admin.call("POST", "/v1/auth/keys", {"principal": "reports", "overlap_ms": HOUR_MS})
    assert made.status == 201
    assert _live_of(admin, "reports") == {first: True, made.json["key_id"]: False}
    for caller in (old, admin.by(made.json["key"])):
        assert caller.call("GET", "/v1/topics/orders").status == 200
    again = admin.call("POST", "/v1/auth/keys", {"principal": "reports", "overlap_ms": HOUR_MS})
    assert refused(again) == (409, "too_many_keys")
    assert "deltamq_ending_keys 1.0" in admin.call("GET", "/metrics").body.decode()
    gate = admin.service.gate
    assert gate is not None
    gate._warn_at_ms = 0
    with caplog.at_level(logging.WARNING, "deltamq.api"):
        admin.service.loop.call_soon_threadsafe(gate.end_waiting)
        assert admin.call("GET", "/v1/topics").status == 200  # the loop has done what was called before
    told = [one.getMessage().partition(" principal")[0] for one in caplog.records]
    # The process looks by itself, too, and may have done so meanwhile.
    assert {one for one in told if "key_ends" in one} == {f"event=key_ends key={first}"}
    at_once = admin.call("DELETE", f"/v1/auth/keys/{first}")
    assert at_once.status == 204
    made = admin.call("POST", "/v1/auth/keys", {"principal": "reports", "overlap_ms": 0})
    assert made.status == 201 and list(_live_of(admin, "reports")) == [made.json["key_id"]]
    for overlap_ms, status in ((-1, 422), ("1h", 400)):
        bad = admin.call("POST", "/v1/auth/keys", {"principal": "reports", "overlap_ms": overlap_ms})
        assert (bad.status, bad.json["field"]) == (status, "overlap_ms")


def test_sec_49_why_somebody_may_do_something_is_told_with_the_rules(admin: Guarded) -> None:
    def asked(verb: str, name: str, resource: str = "topic", more: str = "") -> tuple[bool, list[str]]:
        query = f"principal=ada&verb={verb}&resource={resource}&name={name}{more}"
        reply = admin.call("GET", f"/v1/auth/explain?{query}")
        assert reply.status == 200, reply
        return reply.json["allowed"], [rule["acl_id"] for rule in reply.json["rules"]]

    admin.put_principal("ada")
    admin.put_principal("group:team")
    allow = admin.rule("ada", "topic", "orders.*", "publish")
    deny = admin.call(
        "POST",
        "/v1/auth/acls",
        {"principal": "ada", "resource": "topic", "pattern": "orders.eu", "verbs": ["publish"], "effect": "deny"},
    ).json["acl_id"]
    team = admin.rule("group:team", "topic", "orders.eu", "subscribe")
    assert asked("publish", "orders.us") == (True, [allow])
    assert asked("describe", "orders.us") == (True, [allow]), "who may publish may describe"
    assert asked("publish", "orders.eu") == (False, [deny])
    assert asked("publish", "payments") == (False, [])
    assert asked("subscribe", "orders.eu") == (False, [])
    assert asked("subscribe", "orders.eu", more="&groups=group:team") == (True, [team])
    assert asked("admin", "", "cluster") == (False, [])
    assert admin.call("POST", "/v1/auth/principals/ada/disable").status == 200
    assert asked("publish", "orders.us") == (False, [allow])
    for query, field in (("verb=admin&resource=topic&name=a", "verb"), ("verb=publish&resource=topic", "name")):
        reply = admin.call("GET", f"/v1/auth/explain?principal=ada&{query}")
        assert (reply.status, reply.json["field"]) == (422, field)
    curious = admin.caller("eve", ("topic", "*", "subscribe"))
    assert curious.call("GET", "/v1/auth/explain?principal=ada&verb=publish&resource=topic&name=a").status == 403


def test_sec_49_a_rule_shows_what_its_pattern_covers_now(admin: Guarded) -> None:
    admin.put_principal("ada")
    for name in ("orders.a", "orders.b", "orders.c", "orders.d", "orders", "other"):
        admin.put_topic(name, partitions=1)
    for pattern in ("orders.*", "orders", "none.*", "*"):
        admin.rule("ada", "topic", pattern, "publish")
    shown = admin.call("GET", "/v1/auth/acls?principal=ada").json["acls"]
    assert {one["pattern"]: (one["matches"], one["matched"]) for one in shown} == {
        "orders.*": (4, ["orders.a", "orders.b", "orders.c"]),
        "orders": (1, ["orders"]),
        "none.*": (0, []),
        "*": (6, ["orders", "orders.a", "orders.b"]),
    }


def test_sec_49_a_rule_without_a_pattern_grants_nothing_but_the_cluster(admin: Guarded) -> None:
    admin.put_principal("ada")
    for resource in ("topic", "group"):
        reply = admin.call("POST", "/v1/auth/acls", {"principal": "ada", "resource": resource, "verbs": ["describe"]})
        assert refused(reply) == (400, "invalid_pattern") and reply.json["field"] == "pattern"
    added = admin.call("POST", "/v1/auth/acls", {"principal": "ada", "resource": "cluster", "verbs": ["metrics"]})
    assert (added.status, added.json["pattern"]) == (201, "*")


def test_sec_49_the_sdk_and_the_command_line(admin: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    url, token = f"http://127.0.0.1:{admin.port}", str(admin.token)
    access = ["--url", url, "--token", token]
    with Admin(url, token=token) as sdk:
        sdk.put_principal("ada")
        sdk.add_acl("ada", "topic", ["publish"], pattern="orders*")
        first = sdk.create_key("ada")
        second = sdk.create_key("ada", overlap=timedelta(hours=2))
        ends = {one.key_id: one.until_time for one in sdk.list_keys("ada")}
        assert ends[second.key_id] is None and ends[first.key_id] is not None
        assert timedelta(hours=1) < ends[first.key_id] - datetime.now(UTC) <= timedelta(hours=2)
        with pytest.raises(Conflict):
            sdk.create_key("ada", overlap=timedelta(hours=2))
        sdk.revoke_key(first.key_id)
        assert sdk.explain("ada", "publish", "topic", "orders").allowed
    assert cli._status(["auth", "key", "rotate", "ada", "--hours", "1", *access]) == 0
    assert capsys.readouterr().out.startswith("mqk_")
    assert cli._status(["auth", "acl", "explain", "ada", "publish", "topic", "orders", *access]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ada may publish topic orders: by\n") and "orders*" in out
    assert cli._status(["auth", "acl", "explain", "ada", "admin", "cluster", *access]) == 0
    assert capsys.readouterr().out == "ada may NOT admin cluster: no rule allows it\n"
    assert cli._status(["auth", "acl", "list", *access]) == 0
    assert "nothing" in capsys.readouterr().out
