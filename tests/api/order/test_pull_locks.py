"""Pull locks over REST: who pulls and commits a partition of an exclusive group, and how it is handed over."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.limits import PULL_LOCK_MS, WAIT_MS_MAX
from tests.api.exclusive import Member, exclusive_group
from tests.api.running import Api, Reply, config_for, running, until
from tests.rows import next_millisecond
from tests.set_clock import SetClock

pytestmark = pytest.mark.static_too


@pytest.fixture
def group(api: Api, topic: str) -> str:
    """An exclusive group and a topic of four partitions, both named so."""
    api.put_topic(topic, partitions=4)
    exclusive_group(api, topic)
    return topic


def member(api: Api, topic: str, name: str) -> Member:
    """A client of the group that is named as the topic is."""
    return Member(api, topic, topic, name)


def fill(api: Api, partition: str, count: int) -> None:
    topic = partition.partition("@")[0].partition("#")[0]
    messages: list[dict[str, object] | str] = [{"body": str(at), "partition": partition} for at in range(count)]
    assert api.send(topic, *messages).status == 200


def refused(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["code"]


NOT_HOLDER = (409, "not_lock_holder")
MOVED = (409, "partition_moved")


def _last_consumed(api: Api, group: str, partition: str) -> str | None:
    shown = api.call("GET", f"/v1/groups/{group}/topics/{group}/offsets").json["partitions"]
    found: str | None = {view["partition"]: view["last_consume_time"] for view in shown}[partition]
    return found


def test_cons_06_a_pull_under_the_lock_and_a_commit_are_consumption(api: Api, group: str) -> None:
    client, partition = member(api, group, "c0"), f"{group}@broker-a"
    fill(api, partition, 3)
    client.beat()
    assert refused(client.fetch(partition)) == NOT_HOLDER
    client.take(partition)
    assert client.fetch(partition, "&offset=3").json["messages"] == []
    assert _last_consumed(api, group, partition) is None, "nothing was taken"
    assert len(client.fetch(partition).json["messages"]) == 3
    pulled = _last_consumed(api, group, partition)
    assert pulled is not None
    until(lambda: api.service.lanes.logs.now_ms() > int(datetime.fromisoformat(pulled).timestamp() * 1000))
    assert client.commit(partition, 1).status == 200
    committed = _last_consumed(api, group, partition)
    assert committed is not None and committed > pulled
    assert _last_consumed(api, group, f"{group}@broker-b") is None


def test_order_05_who_has_said_that_it_goes_commits_and_releases_and_gets_no_lock(api: Api, group: str) -> None:
    """Its last commits, then its locks: nothing else, until it comes back."""
    goes, stays = member(api, group, "c0"), member(api, group, "c1")
    partition = f"{group}@broker-a"
    fill(api, partition, 3)
    goes.beat()
    number = goes.take(partition)["locks"][partition]
    stays.beat()
    assert goes.leave()["authorized_until_ms"] <= api.service.now_ms()
    assert goes.take(partition)["refused"] == [partition], "it would have the lock for as long as it asks"
    assert refused(goes.fetch(partition)) == MOVED
    assert goes.commit(partition, 2, locks={partition: number}).status == 200
    assert stays.take(partition)["refused"] == [partition]
    assert goes.release(partition) == [partition]
    assert goes.take(partition)["refused"] == [partition]
    assert stays.take(partition)["offsets"] == {partition: 2}


@pytest.mark.promise("LOCK-5")
def test_order_04_only_the_holder_of_the_lock_pulls_and_commits(api: Api, group: str) -> None:
    holder, other = member(api, group, "c0"), member(api, group, "c1")
    partition = f"{group}@broker-a"
    fill(api, partition, 3)
    holder.beat()
    assert refused(holder.fetch(partition)) == refused(holder.commit(partition, 1)) == NOT_HOLDER, "not locked yet"
    taken = holder.take(partition)
    assert taken["offsets"] == {partition: 0} and taken["refused"] == taken["unanswered"] == []
    assert [m["body"] for m in holder.fetch(partition).json["messages"]] == ["0", "1", "2"]
    assert holder.commit(partition, 2).json["offsets"] == {partition: 2}
    other.beat()
    for who in (other, member(api, group, "nobody")):
        assert who.take(partition)["refused"] == [partition]
        assert refused(who.fetch(partition)) == refused(who.commit(partition, 3)) == NOT_HOLDER
    nameless = api.fetch(group, partition, f"?group={group}")
    assert refused(nameless) == NOT_HOLDER and nameless.json["field"] == "client_id"
    path = f"/v1/groups/{group}/topics/{group}/offsets"
    unsigned = api.call("PUT", path, {"offsets": {partition: 3}})
    assert refused(unsigned) == NOT_HOLDER and unsigned.json["field"] == "client_id"
    assert api.call("GET", path).json["offsets"] == {partition: 2}
    assert api.fetch(group, partition).status == 200, "a read for no group needs no lock"


@pytest.mark.promise("LOCK-5")
def test_order_04_nothing_is_committed_when_one_partition_is_not_the_clients(api: Api, group: str) -> None:
    holder = member(api, group, "c0")
    mine, free = f"{group}@broker-a", f"{group}#1@broker-a"
    for partition in (mine, free):
        fill(api, partition, 1)
    holder.beat()
    holder.take(mine)
    path = f"/v1/groups/{group}/topics/{group}/offsets"
    reply = api.call("PUT", path, {"offsets": {mine: 1, free: 1}, "client_id": "c0"})
    assert refused(reply) == NOT_HOLDER
    assert (reply.json["partition"], reply.json["field"]) == (free, f"offsets.{free}")
    assert api.call("GET", path).json["offsets"] == {mine: 0}, "where it began with the lock"


@pytest.mark.promise("LOCK-6")
def test_order_05_a_handover_goes_on_where_the_other_committed(api: Api, group: str) -> None:
    old, new = member(api, group, "c0"), member(api, group, "c1")
    old.beat()
    held = old.take(*old.allocated())["partitions"]
    for partition in held:
        fill(api, partition, 3)
    new.beat()
    moved = sorted(set(held) - set(old.allocated()))
    assert sorted(new.allocated()) == moved and len(moved) == 2
    assert new.take(*moved)["refused"] == moved, "the other has not finished"
    for partition in moved:
        reply = old.fetch(partition)
        assert refused(reply) == MOVED and reply.json["partition"] == partition
        assert old.commit(partition, 2, locks={partition: old.numbers[partition]}).status == 200
    assert old.release(*moved, locks={partition: old.numbers[partition] for partition in moved}) == moved
    assert old.release(*moved) == [], "once"
    assert new.take(*moved)["offsets"] == dict.fromkeys(moved, 2)
    for partition in moved:
        assert refused(old.commit(partition, 3)) == NOT_HOLDER
        assert [m["offset"] for m in new.fetch(partition, "&offset=2").json["messages"]] == [2]


@pytest.mark.promise("LOCK-6")
def test_order_05_who_waits_for_a_lock_gets_it_with_its_release(api: Api, group: str) -> None:
    old, new = member(api, group, "c0"), member(api, group, "c1")
    old.beat()
    old.take(*old.allocated())
    new.beat()
    moved = new.allocated()
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        waiting = pool.submit(new.take, *moved, wait_ms=WAIT_MS_MAX)
        until(lambda: api.service.locks.waiting)
        old.release(moved[0])
        answer = waiting.result(60)
    assert time.monotonic() - began < WAIT_MS_MAX / 1_000, "not at the end of its wait"
    assert (answer["partitions"], answer["refused"]) == ([moved[0]], [moved[1]])


def test_order_05_a_pull_that_waits_is_ended_when_its_partition_moves(api: Api, group: str) -> None:
    old, new = member(api, group, "c0"), member(api, group, "c1")
    old.beat()
    held = old.take(*old.allocated())["partitions"]
    with ThreadPoolExecutor(4) as pool:
        began = time.monotonic()
        pulls = {partition: pool.submit(old.fetch, partition, f"&wait_ms={WAIT_MS_MAX}") for partition in held}
        for partition in held:
            until(lambda name=partition: api.hosted(group, name).has_waiters)
        new.beat()
        moved = new.allocated()
        for partition in moved:
            assert refused(pulls[partition].result(60)) == MOVED
        assert time.monotonic() - began < WAIT_MS_MAX / 1_000, "not at the end of its wait"
        kept = set(held) - set(moved)
        for partition in kept:
            fill(api, partition, 1)
            assert len(pulls[partition].result(60).json["messages"]) == 1, "who keeps it waits on"


@pytest.mark.promise("LOCK-17")
def test_order_05_a_release_that_comes_late_takes_nothing_back(api: Api, group: str) -> None:
    client = member(api, group, "c0")
    client.beat()
    partition = f"{group}@broker-a"
    first = client.take(partition)["locks"][partition]
    second = client.take(partition)["locks"][partition]
    assert second > first, "a client that asks anew gets another number"
    assert refused(client.commit(partition, 0, locks={partition: first})) == NOT_HOLDER
    assert client.release(partition, locks={partition: first}) == []
    assert client.take(partition, held=[partition])["locks"] == {partition: second}, "a renewal changes nothing"
    assert client.commit(partition, 0, locks={partition: second}).status == 200


def test_order_04_a_lock_lives_a_minute_after_its_last_pull_or_renewal(tmp_path: Path) -> None:
    clock = SetClock()
    # While the time of the locks passes, neither the lease ends nor an authorization.
    config = config_for(tmp_path, lease_ms=600_000, authorization_ms=600_000)
    with running(config, Ports(lease_clock=clock)) as api:
        api.put_topic("orders", partitions=4)
        exclusive_group(api, "orders")
        old, new = member(api, "orders", "c0"), member(api, "orders", "c1")
        old.beat()
        kept = old.allocated()[0]
        moved = old.allocated()[-1]
        old.take(kept, moved)
        new.beat()
        assert moved in new.allocated() and kept in old.allocated()
        for _ in range(3):
            clock.advance_ms(PULL_LOCK_MS - 1)
            assert old.fetch(kept).status == 200, "each pull renews"
        assert refused(old.commit(moved, 0)) == NOT_HOLDER, "it was not renewed"
        assert new.take(moved)["partitions"] == [moved]
        clock.advance_ms(PULL_LOCK_MS)
        assert refused(old.fetch(kept)) == NOT_HOLDER
        assert old.take(held=[kept])["refused"] == [kept], "too late to renew"
        assert old.take(kept)["partitions"] == [kept]


@pytest.mark.promise("LOCK-17")
def test_order_10_who_lost_a_lock_is_not_given_it_by_a_renewal(api: Api, group: str) -> None:
    client = member(api, group, "c0")
    client.beat()
    partition = f"{group}@broker-a"
    client.take(partition)
    assert client.release(partition) == [partition]
    began = time.monotonic()
    assert client.take(held=[partition], wait_ms=WAIT_MS_MAX)["refused"] == [partition]
    assert time.monotonic() - began < WAIT_MS_MAX / 1_000, "who lost what it held is told at once"
    assert client.take(partition)["partitions"] == [partition]


def test_order_03_the_locks_of_who_is_gone_are_free(tmp_path: Path) -> None:
    with running(config_for(tmp_path, authorization_ms=1_000)) as api:
        api.put_topic("orders", partitions=1)
        exclusive_group(api, "billing")
        silent, other = (Member(api, "billing", "orders", name) for name in ("c0", "c1"))
        silent.beat()
        assert silent.take("orders@broker-a")["partitions"]
        until(other.allocated)
        assert other.take("orders@broker-a")["partitions"] == ["orders@broker-a"]
        silent.beat()
        assert refused(silent.fetch("orders@broker-a")) == NOT_HOLDER, "another stay has not its lock"


@pytest.mark.promise("LOCK-8")
def test_pop_18_a_reset_takes_the_locks_so_that_it_stands(api: Api, group: str) -> None:
    client = member(api, group, "c0")
    client.beat()
    partition = f"{group}@broker-a"
    fill(api, partition, 5)
    client.take(partition)
    assert client.commit(partition, 4).status == 200
    path = f"/v1/groups/{group}/topics/{group}/offsets"
    assert api.call("POST", f"{path}/reset", {"to": {partition: 1}}).status == 200
    assert refused(client.commit(partition, 5)) == NOT_HOLDER, "it would undo the reset"
    assert client.take(held=[partition])["refused"] == [partition]
    assert client.take(partition)["offsets"] == {partition: 1}


@pytest.mark.parametrize(("consume_from", "expected"), [("first", 0), ("last", 3), ("time", 3)])
def test_cons_02_a_group_begins_where_its_settings_say(api: Api, topic: str, consume_from: str, expected: int) -> None:
    api.put_topic(topic, partitions=1)
    partition = f"{topic}@broker-a"
    fill(api, partition, 3)
    next_millisecond()
    start = datetime.now(UTC).isoformat().replace("+00:00", "Z") if consume_from == "time" else consume_from
    exclusive_group(api, topic, consume_from=start)
    client = member(api, topic, "c0")
    client.beat()
    assert client.take(partition)["offsets"] == {partition: expected}
    fill(api, partition, 3)
    client.release(partition)
    assert client.take(partition)["offsets"] == {partition: expected}, "the next client begins there, too"


def test_cons_01_a_shared_group_has_no_locks(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    assert api.call("PUT", f"/v1/groups/{topic}", {}).status == 201
    client = member(api, topic, "c0")
    partition = f"{topic}@broker-a"
    assert refused(client.send_take(partition)) == (409, "group_not_exclusive")
    assert client.fetch(partition).status == 200
    assert client.commit(partition, 0).status == 200


def test_order_04_an_event_stream_ends_when_its_partition_moves(api: Api, group: str) -> None:
    old, new = member(api, group, "c0"), member(api, group, "c1")
    old.beat()
    partitions = old.take(*old.allocated())["partitions"]
    path = f"{api.messages_path(group, partitions[-1])}?group={group}&client_id=c0"
    stranger = path.replace("client_id=c0", "client_id=c9")
    assert refused(api.call("GET", stranger, accept="text/event-stream")) == NOT_HOLDER
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(api.call, "GET", path, accept="text/event-stream")
        until(lambda: api.hosted(group, partitions[-1]).has_waiters)
        new.beat()
        assert partitions[-1] in new.allocated()
        body = stream.result(20).body.decode()
    assert "event: refused" in body and '"code":"partition_moved"' in body


def test_meta_01_locks_of_several_processes_are_asked_for_in_one_call(tmp_path: Path) -> None:
    with (
        running(config_for(tmp_path, brokers=("broker-a",))) as one,
        running(config_for(tmp_path, brokers=("broker-b",))) as other,
    ):
        one.put_topic("orders", partitions=2)
        other.put_topic("orders", partitions=4)
        exclusive_group(one, "billing")
        asker = Member(other, "billing", "orders", "c0")
        partitions = asker.allocated()
        brokers = {name.partition("@")[2] for name in partitions}
        assert brokers == {"broker-a", "broker-b"}
        taken = asker.take(*partitions)
        assert sorted(taken["partitions"]) == sorted(partitions) and sorted(taken["offsets"]) == sorted(partitions)
        assert one.service.locks.held == other.service.locks.held == 2
        for partition in partitions:
            fill(one, partition, 1)
            for api in (one, other):
                reply = Member(api, "billing", "orders", "c0").fetch(partition, "&wait_ms=10000")
                assert len(reply.json["messages"]) == 1, "any process answers for the owner"
                assert refused(Member(api, "billing", "orders", "c1").fetch(partition)) == NOT_HOLDER
        path = "/v1/topics/orders/partitions/orders@broker-a/messages?group=billing&client_id=c0"
        stream = other.call("GET", path, accept="text/event-stream")
        assert refused(stream) == (503, "not_owner"), "a stream that does not end cannot be sent on"
        assert stream.json["address"].endswith(f":{one.port}")
        shown = [api.call("GET", "/v1/groups/billing").json["clients"][0]["authorized_ms"] for api in (one, other)]
        assert shown[0] > 0 and shown[1] is None, "only the owner of the meta role knows"
        assert sorted(asker.release(*partitions)) == sorted(partitions)
        assert one.service.locks.held == other.service.locks.held == 0


def test_metrics_count_clients_locks_and_heartbeats(tmp_path: Path) -> None:
    with running(config_for(tmp_path, authorization_ms=1_000)) as api:
        api.put_topic("orders", partitions=2)
        exclusive_group(api, "billing")
        client = Member(api, "billing", "orders", "c0")
        client.beat()
        client.take(*api.partitions("orders"))
        found = measured(api)
        assert (found["deltamq_online_clients"], found["deltamq_pull_locks"]) == (1, 2)
        assert (found["deltamq_heartbeats_total"], found["deltamq_lapsed_clients_total"]) == (1, 0)
        until(lambda: measured(api)["deltamq_lapsed_clients_total"] == 1)
        assert measured(api)["deltamq_online_clients"] == 0


def measured(api: Api) -> dict[str, float]:
    """The metrics without labels."""
    lines = api.call("GET", "/metrics").body.decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_order_08_failed_attempts_are_committed_and_told_to_whoever_gets_the_lock(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=1)
        exclusive_group(api, "orders")
        fill(api, "orders@broker-a", 4)
        one = member(api, "orders", "one")
        one.beat()
        assert one.take("orders@broker-a")["attempts"] == {}
        for offset, attempts in ((0, 3), (1, 5), (1, 2), (0, 9)):
            reply = one.commit("orders@broker-a", offset, attempts={"orders@broker-a": attempts})
            assert reply.status == 200, reply
        assert one.release("orders@broker-a") == ["orders@broker-a"]
    with running(config) as api:
        one = member(api, "orders", "one")
        one.beat()
        taken = one.take("orders@broker-a")
        assert (taken["offsets"], taken["attempts"]) == ({"orders@broker-a": 1}, {"orders@broker-a": 5})
        assert one.commit("orders@broker-a", 2).status == 200
        assert one.take("orders@broker-a", held=["orders@broker-a"])["attempts"] == {}, "another message is there"


def test_order_08_the_end_of_a_client_counts_for_the_message_that_it_may_have_been_at(api: Api, group: str) -> None:
    client, partition = member(api, group, "c0"), f"{group}@broker-a"
    client.beat()
    client.take(partition)
    assert client.take(partition)["attempts"] == {}, "there is no message yet, nor is anything committed"
    fill(api, partition, 2)
    assert client.commit(partition, 1).status == 200
    assert client.take(partition)["attempts"] == {partition: 1}, "it asks as one that has no lock: it has begun anew"
    assert client.take(partition)["attempts"] == {partition: 2}
    assert client.take(held=[partition])["attempts"] == {partition: 2}, "a renewal"
    assert client.release(partition) == [partition]
    assert client.take(partition)["attempts"] == {partition: 2}, "it was given back"
    assert client.commit(partition, 2).status == 200
    assert client.take(partition)["attempts"] == {}, "there is no message"
    assert client.commit(partition, 2, attempts={partition: 3}).status == 200
    shown = api.call("GET", f"/v1/groups/{group}/topics/{group}/offsets").json
    assert shown["offsets"][partition] == 2


@pytest.mark.parametrize(
    ("attempts", "status", "field"),
    [
        ({"{p}": -1}, 422, "attempts.{p}"),
        ({"{p}": 10_001}, 422, "attempts.{p}"),
        ({"{p}": "3"}, 400, "attempts.{p}"),
        ({"orders@nowhere": 3}, 422, "attempts.orders@nowhere"),
        ([3], 400, "attempts"),
    ],
)
def test_order_08_attempts_out_of_bounds_are_refused_by_name(
    api: Api, group: str, attempts: object, status: int, field: str
) -> None:
    client, partition = member(api, group, "c0"), f"{group}@broker-a"
    client.beat()
    client.take(partition)
    if isinstance(attempts, dict):
        attempts = {name.format(p=partition): number for name, number in attempts.items()}
    reply = client.commit(partition, 0, attempts=attempts)
    assert (reply.status, reply.json["field"]) == (status, field.format(p=partition))


def test_order_08_a_shared_group_commits_no_attempts(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    body = {"offsets": {f"{topic}@broker-a": 0}, "attempts": {f"{topic}@broker-a": 1}}
    reply = api.call("PUT", f"/v1/groups/{topic}/topics/{topic}/offsets", body)
    assert refused(reply) == (409, "group_not_exclusive")
