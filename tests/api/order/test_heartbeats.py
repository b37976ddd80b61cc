"""Heartbeats of exclusive clients: allocation, authorization, the scan (SPEC ORDER-1 to ORDER-3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.errors import Unknown
from deltamq.mq.limits import CLIENTS_MAX, WAIT_MS_MAX
from deltamq.mq.meta.online import Member as Stay
from tests.api.as_static import AsStatic, is_static
from tests.api.exclusive import Member, exclusive_group
from tests.api.running import Api, config_for, running, until
from tests.faulty_store import faulty_disk
from tests.set_clock import SetClock

pytestmark = pytest.mark.static_too

#: In the key of what is appended to the metadata log.
META = "sys/meta"
#: So long that no renewal of a lease comes between what is appended there.
SELDOM_RENEWED: dict[str, Any] = {"lease_ms": 600_000, "lease_renew_ms": 300_000}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Api]:
    """A service whose clients may wait as long as anybody may: a third of an authorization is longer."""
    with running(config_for(tmp_path_factory.mktemp("warehouse"), authorization_ms=600_000)) as found:
        yield AsStatic(found.port, found.service) if is_static(request) else found


def member(api: Api, topic: str, name: str) -> Member:
    """A client of the group that is named as the topic is."""
    return Member(api, topic, topic, name)


@pytest.fixture
def group(api: Api, topic: str) -> str:
    """An exclusive group and a topic of four partitions, both named so."""
    api.put_topic(topic, partitions=4)
    exclusive_group(api, topic)
    return topic


@pytest.mark.promise("LOCK-1")
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


@pytest.mark.promise("LOCK-2")
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


@pytest.mark.promise("LOCK-2")
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


@pytest.mark.promise("LOCK-3")
def test_order_03_a_condemned_client_joins_anew_when_its_end_is_stored(tmp_path: Path) -> None:
    """While the scan stores that a client is gone, a heartbeat of it grants nothing that this would break."""
    clock, store = SetClock(), faulty_disk(tmp_path)
    storing, gate = threading.Event(), threading.Event()

    def slow(_: str) -> None:
        storing.set()
        assert gate.wait(60)

    config = config_for(tmp_path, authorization_ms=1_000, **SELDOM_RENEWED)
    with running(config, Ports(lease_clock=clock, store=store)) as api, ThreadPoolExecutor(1) as pool:
        api.put_topic("orders", partitions=1)
        exclusive_group(api, "billing")
        client, online = Member(api, "billing", "orders", "c0"), api.service.online
        client.beat()
        stays = api.service.meta.now.online.members()
        store.once("before", "put_if_absent", slow, key=META)
        clock.advance_ms(1_000)
        assert storing.wait(30), "the scan has begun to store its end"
        beating = pool.submit(client.beat)
        until(lambda: online.heartbeats == 2)
        assert not beating.done()
        gate.set()
        assert beating.result(30)["authorized_ms"] == 1_000
        (stay,) = api.service.meta.now.online.members()
        assert stay.client == "c0" and stay not in stays, "what it has now, it has as another stay"
        assert online.lapsed == 1


def test_order_05_who_waits_is_told_of_another_allocation_at_once(api: Api, group: str) -> None:
    first, second = member(api, group, "c0"), member(api, group, "c1")
    epoch = first.beat()["allocation_epoch"]
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        waiting = pool.submit(first.wait_for_change, epoch, WAIT_MS_MAX)
        until(lambda: api.service.online.waiting)
        second.beat()
        answer = waiting.result(60)
    assert time.monotonic() - began < WAIT_MS_MAX / 1_000, "not at the end of its wait"
    assert len(answer["allocation"][group]) == 2 and answer["allocation_epoch"] != epoch


def test_order_05_who_knows_less_is_answered_without_a_wait(api: Api, group: str) -> None:
    client = member(api, group, "c0")
    epoch = client.beat()["allocation_epoch"]
    began = time.monotonic()
    assert client.wait_for_change(epoch - 1, WAIT_MS_MAX)["allocation_epoch"] == epoch
    assert time.monotonic() - began < WAIT_MS_MAX / 1_000


def test_order_05_who_keeps_what_it_has_is_not_woken_by_others(api: Api, group: str) -> None:
    """With hundreds of clients, each that joins would wake all others."""
    clients = {name: member(api, group, name) for name in ("c0", "c1", "c2")}
    third = clients.pop("c2")
    for client in clients.values():
        client.beat()
    before = {name: client.beat() for name, client in clients.items()}
    with ThreadPoolExecutor(2) as pool:
        waiting = {
            name: pool.submit(client.wait_for_change, before[name]["allocation_epoch"], WAIT_MS_MAX)
            for name, client in clients.items()
        }
        until(lambda: api.service.online.waiting == 2)
        third.beat()
        until(lambda: any(one.done() for one in waiting.values()))
        assert api.service.online.waiting == 1, "one of them gave a partition up, the other waits on"
        (woken,) = [name for name, one in waiting.items() if one.done()]
        (kept,) = clients.keys() - {woken}
        answers = {woken: waiting[woken].result(), kept: clients[kept].beat()}
        clients[kept].leave()
        waiting[kept].result(60)
    for name, answer in answers.items():
        assert (answer["allocation"] == before[name]["allocation"]) == (name == kept)
        assert answer["allocation_epoch"] > before[name]["allocation_epoch"]


def test_order_02_clients_that_start_together_share_appends(tmp_path: Path) -> None:
    store = faulty_disk(tmp_path)
    with running(config_for(tmp_path, **SELDOM_RENEWED), Ports(store=store)) as api:
        api.put_topic("orders", partitions=16)
        exclusive_group(api, "billing")
        store.once("before", "put_if_absent", lambda _: until(lambda: api.service.online.heartbeats == 16), key=META)
        before = len(store.calls)
        clients = [Member(api, "billing", "orders", f"c{at}") for at in range(16)]
        with ThreadPoolExecutor(16) as pool:
            assert all(answer["authorized_ms"] for answer in pool.map(Member.beat, clients))
        appends = [key for name, key in store.calls[before:] if name == "put_if_absent" and META in key]
        assert len(appends) == 2, "the first, and all others"
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


@pytest.mark.promise("LOCK-4")
def test_order_02_online_clients_survive_the_meta_role(tmp_path: Path) -> None:
    """A process that takes the role over knows the clients, and authorizes them."""
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


def test_a_group_has_so_many_clients_at_most(tmp_path: Path) -> None:
    assert CLIENTS_MAX > 1_000
    with running(config_for(tmp_path), Ports(clients_max=2)) as api:
        api.put_topic("orders", partitions=4)
        exclusive_group(api, "orders")
        for name in ("c0", "c1"):
            member(api, "orders", name).beat()
        refused = member(api, "orders", "c2").send_beat()
        assert (refused.status, refused.json["code"]) == (429, "too_many_clients")
        assert member(api, "orders", "c1").beat()["authorized_ms"] > 0


@pytest.mark.promise("LOCK-3")
def test_order_03_an_end_of_unknown_outcome_grants_nothing_until_it_is_known(tmp_path: Path) -> None:
    clock, store, lost = SetClock(), faulty_disk(tmp_path), threading.Event()

    def unanswered(key: str) -> None:
        if META in key:
            lost.set()
            raise Unknown("the disk has not answered")

    config = config_for(tmp_path, authorization_ms=1_000, **SELDOM_RENEWED)
    with running(config, Ports(lease_clock=clock, store=store)) as api, ThreadPoolExecutor(1) as pool:
        api.put_topic("orders", partitions=1)
        exclusive_group(api, "billing")
        client, online = Member(api, "billing", "orders", "c0"), api.service.online
        client.beat()
        stays = api.service.meta.now.online.members()
        store.after["put_if_absent"] = store.before["read"] = unanswered
        clock.advance_ms(1_000)
        assert lost.wait(30), "its end was stored, and nobody knows"
        beating = pool.submit(client.beat)
        until(lambda: online.heartbeats == 2)
        assert not beating.done()
        del store.after["put_if_absent"], store.before["read"]
        assert beating.result(30)["authorized_ms"] > 0
        (stay,) = api.service.meta.now.online.members()
        assert stay not in stays, "what it has now, it has as another stay"
