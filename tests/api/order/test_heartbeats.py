"""Heartbeats of exclusive clients: allocation, authorization, the scan (SPEC ORDER-1 to ORDER-3)."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mq.errors import Unknown
from mq.meta.online import Member as Stay
from mq.order_limits import CLIENTS_MAX
from tests.api.exclusive import Member, exclusive_group
from tests.api.running import Api, config_for, running, until


def member(api: Api, topic: str, name: str) -> Member:
    """A client of the group that is named as the topic is."""
    return Member(api, topic, topic, name)


@pytest.fixture
def group(api: Api, topic: str) -> str:
    """An exclusive group and a topic of four partitions, both named so."""
    api.put_topic(topic, partitions=4)
    exclusive_group(api, topic)
    return topic


def test_order_01_each_partition_has_one_client_and_counts_differ_by_one_at_most(api: Api, group: str) -> None:
    clients = [member(api, group, f"c{number}") for number in range(3)]
    for client in clients:
        client.beat()
    shares = [client.allocated() for client in clients]
    assert sorted(partition for share in shares for partition in share) == sorted(api.partitions(group))
    assert sorted(map(len, shares)) == [1, 1, 2]
    clients[0].leave()
    left = [client.allocated() for client in clients[1:]]
    assert sorted(map(len, left)) == [2, 2]
    assert all(set(before) <= set(after) for before, after in zip(shares[1:], left, strict=True)), "nobody lost any"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("average", {"c0": ["@broker-a", "@broker-b"], "c1": ["#1@broker-a", "#2@broker-b"]}),
        ("circle", {"c0": ["@broker-a", "#1@broker-a"], "c1": ["@broker-b", "#2@broker-b"]}),
    ],
)
def test_order_01_a_group_allocates_by_its_strategy(
    api: Api, group: str, strategy: str, expected: dict[str, list[str]]
) -> None:
    exclusive_group(api, group, allocation_strategy=strategy)
    clients = [member(api, group, name) for name in expected]
    for client in clients:
        client.beat()
    assert {client.id: client.allocated() for client in clients} == {
        name: [f"{group}{one}" for one in those] for name, those in expected.items()
    }


def test_order_01_a_strategy_that_changes_allocates_anew(api: Api, group: str) -> None:
    clients = [member(api, group, name) for name in ("c0", "c1")]
    for client in clients:
        client.beat()
    epoch = clients[0].beat()["allocation_epoch"]
    exclusive_group(api, group, allocation_strategy="circle")
    until(lambda: clients[0].beat()["allocation_epoch"] != epoch)
    assert clients[0].allocated() == [f"{group}@broker-a", f"{group}#1@broker-a"]


def test_order_02_a_heartbeat_that_says_nothing_new_writes_nothing(api: Api, group: str) -> None:
    client = member(api, group, "c0")
    first = client.beat()
    before = api.service.meta.now.online
    again = client.beat()
    assert api.service.meta.now.online is before
    assert again["allocation"] == first["allocation"] and again["allocation_epoch"] == first["allocation_epoch"]


def test_order_02_a_client_that_goes_has_nothing_from_then_on(api: Api, group: str) -> None:
    first, second = member(api, group, "c0"), member(api, group, "c1")
    first.beat()
    second.beat()
    gone = second.leave()
    assert gone["allocation"] == {} and gone["authorized_ms"] == 0
    assert gone["authorized_until_ms"] <= api.service.now_ms()
    assert len(first.allocated()) == 4
    shown = {one["client_id"]: one["online"] for one in api.call("GET", f"/v1/groups/{group}").json["clients"]}
    assert shown == {"c0": True, "c1": False}
    assert len(second.allocated()) == 2, "it came back"


def test_order_02_a_client_that_was_never_there_may_go(api: Api, group: str) -> None:
    assert member(api, group, "c0").leave()["authorized_ms"] == 0
    assert api.call("GET", f"/v1/groups/{group}").json["clients"] == []


def test_order_02_an_expansion_is_allocated_by_the_scan(api: Api, group: str) -> None:
    client = member(api, group, "c0")
    epoch = client.beat()["allocation_epoch"]
    api.put_topic(group, partitions=6)
    assert len(client.wait_for_change(epoch)["allocation"][group]) == 6


def test_order_02_a_topic_that_is_made_later_is_allocated_then(api: Api, topic: str) -> None:
    exclusive_group(api, topic)
    client = member(api, topic, "c0")
    first = client.beat()
    assert first["allocation"] == {topic: []}
    api.put_topic(topic, partitions=2)
    assert len(client.wait_for_change(first["allocation_epoch"])["allocation"][topic]) == 2
    assert api.call("DELETE", f"/v1/topics/{topic}").status == 204
    until(lambda: client.allocated() == [])


def test_order_03_a_silent_client_is_called_offline_when_its_authorization_is_over(tmp_path: Path) -> None:
    with running(config_for(tmp_path, authorization_ms=1_500)) as api:
        api.put_topic("orders", partitions=4)
        exclusive_group(api, "billing")
        silent, other = (Member(api, "billing", "orders", name) for name in ("c0", "c1"))
        began = time.monotonic()
        answer = silent.beat()
        assert 0 < answer["authorized_ms"] <= 1_500
        assert abs(answer["authorized_until_ms"] - time.time_ns() // 1_000_000) < 60_000
        until(lambda: len(other.allocated()) == 4)
        assert time.monotonic() - began >= 1.5, "nobody is called offline before its time"
        assert len(silent.allocated()) == 2, "it comes back as another stay"


def test_order_03_a_condemned_client_joins_anew_when_its_end_is_stored(tmp_path: Path) -> None:
    """While the scan stores that a client is gone, a heartbeat of it grants nothing that this would break."""
    with running(config_for(tmp_path, authorization_ms=1_000)) as api:
        api.put_topic("orders", partitions=1)
        exclusive_group(api, "billing")
        client = Member(api, "billing", "orders", "c0")
        client.beat()
        online = api.service.online
        before = online.lapsed
        stays = set()
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            # As often as its authorization lasts: some meet the scan.
            time.sleep(0.995)
            answer = client.beat()
            assert answer["authorized_ms"] > 0
            (shown,) = api.call("GET", "/v1/groups/billing").json["clients"]
            stays.add(shown["since_time"])
        assert len(stays) == online.lapsed - before + 1, "each end that was stored is followed by another stay"


def test_order_05_who_waits_is_told_of_another_allocation_at_once(api: Api, group: str) -> None:
    first, second = member(api, group, "c0"), member(api, group, "c1")
    epoch = first.beat()["allocation_epoch"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.wait_for_change, epoch)
        until(lambda: api.service.online.waiting)
        began = time.monotonic()
        second.beat()
        answer = waiting.result(10)
    assert time.monotonic() - began < 2.5, "not at the end of its wait"
    assert len(answer["allocation"][group]) == 2 and answer["allocation_epoch"] != epoch


def test_order_05_who_knows_less_is_answered_without_a_wait(api: Api, group: str) -> None:
    client = member(api, group, "c0")
    epoch = client.beat()["allocation_epoch"]
    began = time.monotonic()
    assert client.wait_for_change(epoch - 1)["allocation_epoch"] == epoch
    assert time.monotonic() - began < 2.5


def test_order_05_who_keeps_what_it_has_is_not_woken_by_others(api: Api, group: str) -> None:
    """With hundreds of clients, each that joins would wake all others."""
    first, second, third = (member(api, group, name) for name in ("c0", "c1", "c2"))
    first.beat()
    second.beat()
    before = {client.id: client.beat() for client in (first, second)}

    def waited(client: Member) -> tuple[float, Any]:
        began = time.monotonic()
        answer = client.wait_for_change(before[client.id]["allocation_epoch"], 2_500)
        return time.monotonic() - began, answer

    with ThreadPoolExecutor(2) as pool:
        waiting = {client.id: pool.submit(waited, client) for client in (first, second)}
        until(lambda: api.service.online.waiting == 2)
        third.beat()
        found = {name: one.result(20) for name, one in waiting.items()}
    same = {name: answer["allocation"] == before[name]["allocation"] for name, (_, answer) in found.items()}
    assert sorted(same.values()) == [False, True], "one of them gave a partition up"
    for name, (took_s, answer) in found.items():
        assert (took_s >= 2.5) == same[name]
        assert answer["allocation_epoch"] > before[name]["allocation_epoch"]


def test_order_02_clients_that_start_together_share_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(config_for(tmp_path)) as api:
        api.put_topic("orders", partitions=16)
        exclusive_group(api, "billing")
        online, appends = api.service.online, []
        submit = online._changes._submit

        async def when_all_wait(decide: Any) -> Any:
            appends.append(decide)
            async with asyncio.timeout(20):
                while online.heartbeats < 16:
                    await asyncio.sleep(0.001)
            return await submit(decide)

        monkeypatch.setattr(online._changes, "_submit", when_all_wait)
        clients = [Member(api, "billing", "orders", f"c{at}") for at in range(16)]
        with ThreadPoolExecutor(16) as pool:
            assert all(answer["authorized_ms"] for answer in pool.map(Member.beat, clients))
        assert len(appends) <= 2, "the first, and all others"
        assert [len(client.allocated()) for client in clients] == [1] * 16


def test_order_03_a_wait_ends_before_the_authorization(tmp_path: Path) -> None:
    with running(config_for(tmp_path, authorization_ms=1_500)) as api:
        api.put_topic("orders", partitions=1)
        exclusive_group(api, "billing")
        client = Member(api, "billing", "orders", "c0")
        epoch = client.beat()["allocation_epoch"]
        for _ in range(4):
            assert client.wait_for_change(epoch)["authorized_ms"] > 0
        assert client.beat()["allocation_epoch"] == epoch, "it was there all the time"


def test_cons_01_a_shared_group_allocates_nothing(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    assert api.call("PUT", f"/v1/groups/{topic}", {}).status == 201
    answer = member(api, topic, "c0").beat("?wait_ms=5000&allocation_epoch=0")
    assert answer["consume_strategy"] == "shared" and answer["allocation"] == {} and answer["authorized_ms"] > 0
    shown = api.call("GET", f"/v1/groups/{topic}").json
    assert [one["client_id"] for one in shown["clients"]] == ["c0"] and shown["allocation"] == {}
    assert member(api, topic, "c0").leave()["authorized_ms"] == 0
    assert api.call("GET", f"/v1/groups/{topic}").json["clients"] == []


def test_cons_01_clients_of_a_group_that_is_shared_now_are_forgotten(api: Api, group: str) -> None:
    client = member(api, group, "c0")
    client.beat()
    assert api.call("PUT", f"/v1/groups/{group}", {"consume_strategy": "shared"}).status == 200
    until(lambda: api.call("GET", f"/v1/groups/{group}").json["clients"] == [])
    assert client.beat()["consume_strategy"] == "shared"


def test_meta_01_the_owner_of_the_meta_role_answers_for_all(tmp_path: Path) -> None:
    with (
        running(config_for(tmp_path, brokers=("broker-a",))) as one,
        running(config_for(tmp_path, brokers=("broker-b",))) as other,
    ):
        one.put_topic("orders", partitions=4)
        exclusive_group(one, "billing")
        clients = [Member(api, "billing", "orders", f"c{at}") for at, api in enumerate((one, other))]
        for client in clients:
            client.beat()
        shares = [client.allocated() for client in clients]
        assert sorted(partition for share in shares for partition in share) == sorted(one.partitions("orders"))
        assert one.service.online.heartbeats == 4 and other.service.online.heartbeats == 0
        stays = one.service.meta.now.online.members()
        assert {stay.client for stay in stays} == {"c0", "c1"}
        assert all(isinstance(stay, Stay) for stay in stays)


def test_order_02_online_clients_survive_the_meta_role(tmp_path: Path) -> None:
    """Whoever takes the role over knows the clients, and authorizes them."""
    with ExitStack() as first_life, ExitStack() as second_life:
        one = first_life.enter_context(running(config_for(tmp_path, brokers=("broker-a",))))
        other = second_life.enter_context(running(config_for(tmp_path, brokers=("broker-b",))))
        one.put_topic("orders", partitions=2)
        exclusive_group(one, "billing")
        client = Member(other, "billing", "orders", "c0")
        before = client.beat()
        assert one.service.online.heartbeats == 1
        first_life.close()
        until(lambda: client.send_beat().status == 200)
        after = client.beat()
        assert after["allocation"] == before["allocation"] and after["authorized_ms"] > 0
        assert after["allocation_epoch"] == before["allocation_epoch"], "nothing was allocated anew"
        assert other.service.online.heartbeats >= 2


def test_a_group_has_so_many_clients_at_most(api: Api, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CLIENTS_MAX > 1_000
    monkeypatch.setattr("api.order.online_clients.CLIENTS_MAX", 2)
    for name in ("c0", "c1"):
        member(api, group, name).beat()
    refused = member(api, group, "c2").send_beat()
    assert (refused.status, refused.json["code"]) == (429, "too_many_clients")
    assert member(api, group, "c1").beat()["authorized_ms"] > 0


def test_order_03_an_end_of_unknown_outcome_grants_nothing_until_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(config_for(tmp_path, authorization_ms=1_000)) as api:
        api.put_topic("orders", partitions=1)
        exclusive_group(api, "billing")
        client = Member(api, "billing", "orders", "c0")
        client.beat()
        stay = api.service.meta.now.online.members()
        meta, failed = api.service.meta, threading.Event()
        submit = meta.submit_any

        async def stored_without_an_answer(decide: Any) -> Any:
            found = await submit(decide)
            if not failed.is_set() and stay - found.online.members():
                failed.set()
                raise Unknown
            return found

        monkeypatch.setattr(meta, "submit_any", stored_without_an_answer)
        assert failed.wait(10), "the client was called offline"
        assert client.beat()["authorized_ms"] > 0
        assert not stay & meta.now.online.members(), "what it has now, it has as another stay"
