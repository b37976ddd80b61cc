"""Principals that may do nothing for a while, and keep what they have (SPEC SEC-19)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from deltamq import Admin
from deltamq.mq.errors import Conflict, Forbidden, NotFound
from tests.api.auth.test_guarded_service import refused, waiting
from tests.api.auth.test_two_processes import Two, consumer, two_in
from tests.api.guarded import Guarded, guarded
from tests.api.running import JSON, until


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("disabled")) as admin:
        yield admin


@pytest.mark.promise("AUTH-5")
def test_sec_19_a_disabled_principal_is_refused_and_enabled_again_has_all_it_had(admin: Guarded) -> None:
    caller = admin.caller("rests", ("topic", "rests*", "publish", "create", "describe"))
    second = admin.by(admin.key("rests")["key"])
    assert admin.call("PUT", "/v1/auth/quotas/rests", {"requests_per_s": 1_000}).status == 200
    assert caller.send("rests", "a").status == 200
    before = admin.call("GET", "/v1/auth/principals/rests").json
    shown = admin.call("POST", "/v1/auth/principals/rests/disable")
    assert shown.status == 200 and shown.json == {**before, "disabled_time": shown.json["disabled_time"]}
    assert shown.json["disabled_time"] is not None
    for key in (caller, second):
        for method, path in (("GET", "/v1/topics"), ("GET", "/v1/nothing"), ("DELETE", "/v1/topics/rests")):
            reply = key.call(method, path)
            assert refused(reply) == (403, "principal_disabled"), reply
        assert refused(key.send("rests", "b")) == (403, "principal_disabled")
        assert key.call("GET", "/healthz").status == 200
    assert refused(admin.by("mqk_" + "0" * 16 + "_" + "a" * 43).call("GET", "/v1/topics")) == (401, "unauthenticated")
    assert admin.call("POST", "/v1/auth/principals/rests/disable").json == shown.json, "it is disabled since then"
    assert admin.call("PUT", "/v1/auth/principals/rests", {"note": "away"}).json["disabled_time"] is not None
    third = admin.call("POST", "/v1/auth/keys", {"principal": "rests"})
    assert refused(third) == (409, "too_many_keys"), "its keys are still there"
    assert admin.call("POST", "/v1/auth/principals/rests/enable").json == {**before, "note": "away"}
    for key in (caller, second):
        assert key.send("rests", "c").status == 200


def test_sec_19_lists_say_who_is_disabled(admin: Guarded) -> None:
    for name in ("list.a", "list.b", "list.c"):
        admin.put_principal(name)
    with Admin(f"http://127.0.0.1:{admin.port}", token=admin.token) as sdk:
        assert sdk.disable_principal("list.b").disabled_time is not None
        assert sdk.get_principal("list.b").disabled_time is not None
        page = admin.call("GET", "/v1/auth/principals?limit=2&after=list").json
        assert page == {"principals": ["list.a", "list.b"], "disabled": ["list.b"], "next": "list.b"}
        assert "list.b" in sdk.list_principals()
        assert sdk.list_principals(disabled=True) == ["list.b"]
        assert {"list.a", "list.c"} <= set(sdk.list_principals(disabled=False)) and "list.b" not in (
            sdk.list_principals(disabled=False)
        )
        assert sdk.enable_principal("list.b").disabled_time is None
        assert sdk.list_principals(disabled=True) == []
        with pytest.raises(NotFound):
            sdk.disable_principal("list.d")


def test_sec_19_who_may_not_be_disabled_and_who_may_not_disable(admin: Guarded) -> None:
    with Admin(f"http://127.0.0.1:{admin.port}", token=admin.token) as sdk, pytest.raises(Conflict) as last:
        sdk.disable_principal("admin")
    assert last.value.code == "last_administrator"
    assert refused(admin.call("DELETE", "/v1/auth/principals/admin")) == (409, "last_administrator")
    admin.put_principal("group:resting")
    assert admin.call("POST", "/v1/auth/principals/group:resting/disable").status == 422
    assert refused(admin.call("POST", "/v1/auth/principals/nobody/enable")) == (404, "principal_not_found")
    other = admin.caller("other.sender", ("topic", "*", "publish"))
    for how in ("disable", "enable"):
        reply = other.call("POST", f"/v1/auth/principals/admin/{how}")
        assert refused(reply) == (403, "forbidden")
    second = admin.caller("second.admin", ("cluster", "*", "admin"))
    assert second.call("POST", "/v1/auth/principals/admin/disable").status == 200
    with Admin(f"http://127.0.0.1:{admin.port}", token=admin.token) as sdk, pytest.raises(Forbidden) as disabled:
        sdk.list_principals()
    assert disabled.value.code == "principal_disabled"
    assert refused(second.call("POST", "/v1/auth/principals/second.admin/disable")) == (409, "last_administrator")
    assert second.call("POST", "/v1/auth/principals/admin/enable").status == 200


def test_sec_19_what_is_disabled_at_one_process_ends_at_both_within_5_s(tmp_path: Path) -> None:
    for two in two_in(tmp_path / "warehouse"):
        _disable_at_both(two)


def _disable_at_both(two: Two) -> None:
    caller = consumer(two, "rests")
    streams = []
    for api, broker in ((two.a, "broker-a"), (two.b, "broker-b")):
        path = f"/v1/topics/rests/partitions/{quote('rests@' + broker)}/messages"
        streams.append(waiting(caller.at(api), path, None, "text/event-stream"))
    asked = {"partition": "rests@broker-b", "wait_ms": 20_000}
    pop, popped = waiting(caller, "/v1/groups/rests/topics/rests/pop", asked, JSON)
    until(lambda: two.b.service.gate is not None and len(two.b.service.gate._waiting) == 2)
    began = time.monotonic()
    assert two.b.call("POST", "/v1/auth/principals/rests/disable").status == 200
    for api in two:
        assert refused(caller.at(api).call("GET", "/v1/topics/rests")) == (403, "principal_disabled")
    for thread, found in streams:
        thread.join(18)
        assert b'"code":"principal_disabled"' in found[0].body.rpartition(b"event: refused")[2]
    pop.join(18)
    assert popped[0].status == 403 or not popped[0].json["messages"]
    assert time.monotonic() - began < 15
    assert two.a.call("POST", "/v1/auth/principals/rests/enable").status == 200
    for api in two:
        assert caller.at(api).call("GET", "/v1/topics/rests").status == 200


def test_sec_19_it_is_disabled_after_a_restart(tmp_path: Path) -> None:
    with guarded(tmp_path) as admin:
        caller = admin.caller("rests", ("topic", "*", "describe"))
        assert admin.call("POST", "/v1/auth/principals/rests/disable").status == 200
        tokens = admin.token, caller.token
    with guarded(tmp_path, token=tokens[0]) as admin:
        assert refused(admin.by(tokens[1]).call("GET", "/v1/topics")) == (403, "principal_disabled")
