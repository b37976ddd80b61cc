"""What the audit does when something fails, and what keys do when clocks jump (SPEC SEC-40, SEC-1)."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.first_start import make_administrator
from deltamq.api.ports import Ports
from deltamq.mq.errors import StorageFull, Unavailable
from deltamq.tables.config_sections import Secret
from tests.api.audit.test_killed_acts import Admin, serving
from tests.api.guarded import SECRET, Guarded, guarded
from tests.api.running import config_for, until
from tests.faulty_store import FaultyStore, faulty_disk
from tests.set_clock import AheadClock

AUDIT = "sys/audit"
#: The calls of a store that write.
WRITES = ("put", "put_if_absent", "replace", "sync")


def acts(api: Guarded) -> list[dict[str, Any]]:
    reply = api.call("GET", "/v1/audit?limit=1000")
    assert reply.status == 200, reply
    found: list[dict[str, Any]] = reply.json["acts"]
    return found


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return faulty_disk(tmp_path)


def broken(store: FaultyStore, error: Exception, *, first: int = 1) -> None:
    """Let the calls that write below the audit's folder fail, from the `first` commit on."""
    commits = [0]

    def fail(key: str) -> None:
        if AUDIT in key:
            commits[0] += key.endswith(".json")
            if commits[0] >= first:
                raise error

    for name in WRITES:
        store.before[name] = fail


@pytest.mark.parametrize("error", [StorageFull("no space left"), Unavailable("read-only file system")])
def test_sec_40_acts_fail_and_messages_flow_while_the_audit_cannot_be_written(
    tmp_path: Path, store: FaultyStore, error: Exception
) -> None:
    with guarded(tmp_path, Ports(store=store)) as admin:
        admin.put_topic("orders", partitions=1)
        caller = admin.caller("ada", ("topic", "orders", "publish", "subscribe"))
        broken(store, error)
        before = admin.service.meta.offset
        for method, path, body in (
            ("PUT", "/v1/topics/other", {}),
            ("DELETE", "/v1/topics/orders", None),
            ("POST", "/v1/auth/keys", {"principal": "ada"}),
        ):
            reply = admin.call(method, path, body)
            assert (reply.status, reply.json["code"]) == (503, "audit_unavailable"), reply
        events = admin.service.meta.offset - before
        assert admin.call("GET", "/v1/topics").json["topics"] == ["orders"]
        assert len(admin.call("GET", "/v1/auth/keys?principal=ada").json["keys"]) == 1
        assert caller.send("orders", "flows").status == 200
        assert caller.fetch("orders", "orders@broker-a").json["messages"][0]["body"] == "flows"
        assert events < 3, "nothing but leases was renewed"
        store.before.clear()
        until(lambda: admin.call("PUT", "/v1/topics/other", {}).status == 201)
        assert [one["name"] for one in acts(admin) if one["call"] == "PUT /v1/topics/{topic}"][-1] == "other"
        assert not [one for one in acts(admin) if one["outcome"] == "done" and one["call"].startswith("DELETE")]


def test_sec_40_an_act_whose_end_cannot_be_recorded_is_not_confirmed(tmp_path: Path, store: FaultyStore) -> None:
    with guarded(tmp_path, Ports(store=store)) as admin:
        admin.put_principal("ada")
        broken(store, StorageFull("no space left"), first=2)
        reply = admin.call("POST", "/v1/auth/keys", {"principal": "ada"})
        assert (reply.status, reply.json["code"]) == (503, "audit_incomplete"), reply
        assert "mqk_" not in reply.body.decode()
        store.before.clear()
        until(lambda: acts(admin)[-1]["outcome"] == "done")
        (made,) = admin.call("GET", "/v1/auth/keys?principal=ada").json["keys"]
        assert acts(admin)[-1]["after"]["auth/ada"]["keys"][0]["id"] == made["key_id"]


def test_sec_40_two_administrators_at_two_processes_leave_one_history(tmp_path: Path) -> None:
    each = 8
    with ExitStack() as both:
        one = both.enter_context(guarded(tmp_path, cluster_secret=Secret(SECRET), brokers=("broker-a",)))
        other = both.enter_context(
            guarded(tmp_path, token=one.token, cluster_secret=Secret(SECRET), brokers=("broker-b",))
        )
        one.put_principal("shared")
        until(lambda: other.call("GET", "/v1/auth/principals/shared").status == 200)
        start = threading.Barrier(2)

        def add(api: Guarded, name: str) -> None:
            start.wait()
            for number in range(each):
                api.rule("shared", "topic", f"{name}{number}", "publish")

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(add, (one, other), ("a", "b")))
        until(lambda: len(acts(one)) == len(acts(other)))
        found = [act for act in acts(other) if act["call"] == "POST /v1/auth/acls"]
    assert [act["outcome"] for act in found] == ["done"] * 2 * each
    assert {act["process"] for act in found} == {one.service.hosting.id, other.service.hosting.id}
    # Each act saw what the one before it in the metadata left.
    rules = {
        tuple(sorted(rule["pattern"] for rule in act["before"]["auth/shared"]["acls"])): tuple(
            sorted(rule["pattern"] for rule in act["after"]["auth/shared"]["acls"])
        )
        for act in found
    }
    at: tuple[str, ...] = ()
    for _ in range(2 * each):
        at = rules.pop(at)
    assert len(at) == 2 * each and not rules


def test_sec_05_a_kill_in_the_middle_of_a_change_of_keys_leaves_a_key_that_works(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    _, token = make_administrator(config_for(warehouse), "admin")
    with serving(warehouse, "audit.before_ended=kill@3") as process:
        admin = Admin(process, token)
        assert admin.call("PUT", "/v1/auth/principals/ada", {})[0] == 201
        first = admin.call("POST", "/v1/auth/keys", {"principal": "ada"})[1]["key"]
        with pytest.raises((OSError, http.client.HTTPException)):
            admin.call("POST", "/v1/auth/keys", {"principal": "ada"})  # it is made, and nobody knows it
        process.wait()
    with serving(warehouse) as process:
        admin = Admin(process, token)
        assert Admin(process, first).call("GET", "/v1/topics")[0] == 403, "it is known, and has no rules"
        keys = admin.call("GET", "/v1/auth/keys?principal=ada")[1]["keys"]
        assert len(keys) == 2
        (lost,) = [one["key_id"] for one in keys if one["key_id"] not in first]
        until(lambda: "unknown" not in {one["outcome"] for one in admin.acts()}, within_s=60)
        made = [one for one in admin.acts() if one["call"] == "POST /v1/auth/keys"]
        assert [one["outcome"] for one in made] == ["done", "done"]
        status, answer = admin.call("POST", "/v1/auth/keys", {"principal": "ada"})
        assert (status, answer["code"]) == (409, "too_many_keys")
        assert admin.call("DELETE", f"/v1/auth/keys/{lost}")[0] == 204
        second = admin.call("POST", "/v1/auth/keys", {"principal": "ada"})[1]["key"]
        assert admin.call("DELETE", f"/v1/auth/keys/{first.split('_')[1]}")[0] == 204
        assert Admin(process, first).call("GET", "/v1/topics")[0] == 401
        assert Admin(process, second).call("GET", "/v1/topics")[0] == 403


HOUR_MS = 3_600_000


def test_sec_01_a_key_ends_by_the_wall_clock_wherever_that_jumps(tmp_path: Path) -> None:
    clock = AheadClock()
    with guarded(tmp_path, Ports(clock=clock)) as admin:
        admin.put_topic("orders", partitions=1)
        caller = admin.caller("ada", ("topic", "orders", "subscribe"))
        until_ms = clock.wall_us() // 1_000 + HOUR_MS
        ends = admin.key("ada", until=_rfc3339(until_ms))["key"]
        timed = caller.by(ends)
        assert timed.fetch("orders", "orders@broker-a").status == 200
        answers: list[int] = []

        def wait() -> None:
            path = admin.messages_path("orders", "orders@broker-a")
            answers.append(timed.call("GET", f"{path}?wait_ms=20000").status)

        waiting = threading.Thread(target=wait)
        waiting.start()
        gate = admin.service.gate
        until(lambda: gate is not None and gate._waiting)
        clock.ahead_ms = 2 * HOUR_MS  # forward, over the end: what waits ends, too
        waiting.join(20)
        assert answers == [401]
        assert timed.fetch("orders", "orders@broker-a").status == 401
        assert caller.fetch("orders", "orders@broker-a").status == 200, "a key without an end does not mind"
        clock.ahead_ms = -HOUR_MS  # back: by the clock the key has not ended
        assert timed.fetch("orders", "orders@broker-a").status == 200
        clock.ahead_ms = HOUR_MS + 60_000
        assert timed.fetch("orders", "orders@broker-a").status == 401


def test_sec_09_quotas_and_waits_do_not_mind_a_wall_clock_that_jumps(tmp_path: Path) -> None:
    clock = AheadClock()
    with guarded(tmp_path, Ports(clock=clock)) as admin:
        admin.put_topic("orders", partitions=1)
        caller = admin.caller("ada", ("topic", "orders", "subscribe", "publish"))
        assert admin.call("PUT", "/v1/auth/quotas/ada", {"requests_per_s": 1}).status == 200
        until(lambda: caller.send("orders", "x").status == 429)
        clock.ahead_ms = 24 * HOUR_MS
        statuses = [caller.send("orders", "x").status for _ in range(3)]
        assert statuses.count(429) >= 2, "a jump forward fills no quota"
        clock.ahead_ms = -24 * HOUR_MS
        until(lambda: caller.send("orders", "x").status == 200, within_s=10)


def test_sec_40_the_audit_keeps_its_order_when_the_wall_clock_is_set_back(tmp_path: Path) -> None:
    clock = AheadClock()
    with guarded(tmp_path, Ports(clock=clock)) as admin:
        admin.put_topic("first")
        clock.ahead_ms = -HOUR_MS
        admin.put_topic("second")
        found = [(one["name"], one["outcome"]) for one in acts(admin) if one["resource"] == "topic"]
    assert found == [("first", "done"), ("second", "done")]


def _rfc3339(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat()
