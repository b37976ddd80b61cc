"""Two processes of one warehouse with authentication (SPEC SEC-5, SEC-6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from deltamq.mq.auth.changes import decide_disable_principal, decide_revoke_key
from deltamq.tables.config_sections import Secret
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from tests.api.auth.test_guarded_service import refused, waiting
from tests.api.exclusive import Member, exclusive_group
from tests.api.guarded import SECRET, Guarded, guarded
from tests.api.running import JSON, until


class Two(NamedTuple):
    """`a` serves broker-a and the meta role, `b` broker-b."""

    a: Guarded
    b: Guarded


def two_in(folder: Path, secret_of_b: str = SECRET) -> Iterator[Two]:
    with (
        guarded(folder, brokers=("broker-a",), cluster_secret=Secret(SECRET)) as a,
        guarded(folder, token=a.token, brokers=("broker-b",), cluster_secret=Secret(secret_of_b)) as b,
    ):
        until(lambda: all(one.service.meta.now.brokers.available == ("broker-a", "broker-b") for one in (a, b)))
        until(lambda: b.service.hosting.hosts("broker-b"))
        yield Two(a, b)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    yield from two_in(tmp_path_factory.mktemp("two") / "warehouse")


def consumer(two: Two, name: str, *verbs: str) -> Guarded:
    """A principal that may do this to the topic and the group of its name."""
    two.a.put_topic(name, partitions=2)
    two.a.put_principal(name)
    for resource in ("topic", "group"):
        two.a.rule(name, resource, name, "subscribe")
    two.a.rule(name, "topic", name, "publish")
    return two.a.by(two.a.key(name)["key"])


def test_sec_06_what_one_process_asks_another_is_asked_by_its_caller(two: Two) -> None:
    caller = consumer(two, "asked")
    here, there = caller, caller.at(two.b)
    for partition in ("asked@broker-a", "asked@broker-b"):
        sent = here.send("asked", {"body": partition, "partition": partition})
        assert sent.status == 200, sent
    handles = []
    for partition in ("asked@broker-a", "asked@broker-b"):
        for api in (here, there):
            asked = {"partition": partition, "wait_ms": 1_000, "ack": list(handles)}
            reply = api.call("POST", "/v1/groups/asked/topics/asked/pop", asked)
            assert reply.status == 200, reply
            handles = [message["handle"] for message in reply.json["messages"]] or handles
    assert here.call("POST", "/v1/groups/asked/ack", {"handles": handles}).status == 200
    for api in (here, there):
        shown = api.call("GET", "/v1/groups/asked").json
        assert {lane["partition"] for one in shown["topics"] for lane in one["partitions"]} >= {
            "asked@broker-a",
            "asked@broker-b",
        }
        path = "/v1/groups/asked/topics/asked/offsets"
        commit = api.call("PUT", path, {"offsets": {"asked@broker-a": 1, "asked@broker-b": 1}})
        assert commit.status == 200, commit
        assert api.call("GET", "/v1/groups/asked/statistics").status == 200
        beat = api.call("POST", "/v1/groups/asked/clients/c/heartbeat", {"topics": {"asked": {}}})
        assert beat.status == 200, beat
    assert two.b.call("PUT", "/v1/groups/asked", {"max_attempts": 3}).status == 200


def test_sec_05_a_new_key_is_good_and_a_revoked_one_is_not_at_each_process(two: Two) -> None:
    caller = consumer(two, "rotated")
    for _ in range(10):
        made = two.a.key("rotated")
        assert two.b.by(made["key"]).call("GET", "/v1/topics/rotated").status == 200
        assert two.b.call("DELETE", f"/v1/auth/keys/{made['key_id']}").status == 204
        assert two.a.by(made["key"]).call("GET", "/v1/topics/rotated").status == 401
    assert caller.at(two.b).call("GET", "/v1/topics/rotated").status == 200


def test_sec_05_a_pop_that_waits_at_another_process_ends_with_its_key(two: Two) -> None:
    caller = consumer(two, "awaited")
    path, asked = "/v1/groups/awaited/topics/awaited/pop", {"partition": "awaited@broker-b", "wait_ms": 20_000}
    thread, found = waiting(caller, path, asked, JSON)
    assert two.b.call("DELETE", f"/v1/auth/keys/{str(caller.token)[4:20]}").status == 204
    thread.join(18)
    assert refused(found[0]) == (401, "unauthenticated")
    for api in two:
        assert refused(caller.at(api).call("POST", path, asked)) == (401, "unauthenticated")


def test_sec_05_a_lock_that_is_awaited_at_another_process_ends_with_its_key(two: Two) -> None:
    caller = consumer(two, "locked")
    exclusive_group(two.a, "locked")
    holder = Member(caller, "locked", "locked", "one")
    holder.beat()
    until(lambda: holder.take("locked@broker-b")["partitions"])
    path = "/v1/groups/locked/topics/locked/locks"
    asked = {"client_id": "two", "partitions": ["locked@broker-b"], "wait_ms": 20_000}
    thread, found = waiting(caller, path, asked, JSON)
    began = time.monotonic()
    assert two.a.call("DELETE", f"/v1/auth/keys/{str(caller.token)[4:20]}").status == 204
    thread.join(18)
    assert time.monotonic() - began < 15
    assert refused(found[0]) == (401, "unauthenticated")


@pytest.mark.parametrize("how", ["revoked", "disabled"])
def test_sec_05_what_nobody_tells_a_process_it_finds_within_5_s(tmp_path: Path, how: str) -> None:
    """The process that changed the metadata may be cut off from the others: they read it themselves."""
    with guarded(tmp_path) as admin:
        admin.put_topic("orders")
        caller = admin.caller("reports", ("topic", "orders", "subscribe"))
        path = f"/v1/topics/orders/partitions/{quote('orders@broker-a')}/messages"
        thread, found = waiting(caller, path, None, "text/event-stream")
        warehouse = Warehouse.open(str(tmp_path))
        elsewhere, began = MetaLog(warehouse), time.monotonic()
        if how == "revoked":
            key_id = str(caller.token)[4:20]
            elsewhere.submit_any(lambda meta: decide_revoke_key(meta.auth, key_id))
        else:
            elsewhere.submit_any(lambda meta: decide_disable_principal(meta.auth, "reports", 5))
        thread.join(18)
        assert found and time.monotonic() - began < 15
        code = (401, "unauthenticated") if how == "revoked" else (403, "principal_disabled")
        assert f'"code":"{code[1]}"'.encode() in found[0].body.rpartition(b"event: refused")[2]
        assert refused(caller.call("GET", "/v1/topics/orders")) == code
        warehouse.close()


def test_sec_06_a_process_with_another_secret_is_not_believed(tmp_path: Path) -> None:
    for two in two_in(tmp_path / "warehouse", secret_of_b="f" * 64):
        two.a.put_topic("strangers", partitions=2)
        path = f"/v1/groups/strangers/topics/{quote('strangers')}/pop"
        reply = two.a.call("POST", path, {"partition": "strangers@broker-b"})
        assert refused(reply) == (403, "forwarded_unproved")
        assert "service.cluster_secret" in reply.json["detail"]


@pytest.mark.promise("AUTH-6")
def test_sec_06_handles_are_signed_with_what_is_not_in_the_warehouse(two: Two) -> None:
    consumer(two, "signed")
    assert two.a.send("signed", {"body": "a", "partition": "signed@broker-a"}).status == 200
    asked = {"partition": "signed@broker-a", "wait_ms": 1_000}
    assert two.a.call("POST", "/v1/groups/signed/topics/signed/pop", asked).json["messages"]
    folder = Path(two.a.service.warehouse.uri)
    assert (folder / "sys").is_dir() and not (folder / "sys" / "handle_keys").exists()
    stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert SECRET.encode() not in stored and (two.a.token or "").encode()[-43:] not in stored
