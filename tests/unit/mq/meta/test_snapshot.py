"""A snapshot says all that the events before it said (SPEC META-3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from deltamq.mq.auth.state import AuthState
from deltamq.mq.errors import Corrupt
from deltamq.mq.meta.access import Access, AccessState
from deltamq.mq.meta.brokers import (
    BrokersState,
    Host,
    Ownership,
    decide_ask,
    decide_give_back,
    decide_leave,
    decide_register,
    decide_renew,
    decide_takeover,
)
from deltamq.mq.meta.fold import AnyEvent, Meta, event_from_json
from deltamq.mq.meta.group import (
    Group,
    GroupsState,
    decide_begin,
    decide_delete_group,
    decide_put_group,
    decide_reset_offsets,
)
from deltamq.mq.meta.group_settings import GroupRequest
from deltamq.mq.meta.moved_keys import Move, MovedKeys, decide_seal, moves_of
from deltamq.mq.meta.online import (
    GroupOnline,
    OnlineClient,
    OnlineState,
    Subscription,
    TopicAllocation,
    TopicPartitions,
    decide_heartbeat,
    decide_scan,
)
from deltamq.mq.meta.snapshot import MetaSnapshot
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import MetaState, StaticQueues, Topic, decide_delete_topic, decide_put_topic
from deltamq.mq.names import member_name
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.schemas.registry import RegistryState

AB = ("A", "B")
TOPICS, GROUPS, CLIENTS, HOSTS = ("orders", "refunds"), ("billing", "audit"), ("c1", "c2", "c3"), ("h1", "h2")

Decide = Callable[[Meta], Sequence[AnyEvent]]


def put_topic(name: str, partitions: int, new_id: int) -> Decide:
    def decide(meta: Meta) -> Sequence[AnyEvent]:
        present = meta.topics.topics.get(name)
        count = max(partitions, len(present.route.partitions) if present else 0)
        request = TopicRequest(partitions=count, order_strategy="strict")
        events = decide_put_topic(meta.topics, name, request, AB, f"id-{new_id}", 1_000 + new_id)
        return (*events, *moves_of(meta.topics, events))

    return decide


def delete_topic(name: str) -> Decide:
    return lambda meta: decide_delete_topic(meta.topics, name) if name in meta.topics.topics else ()


def seal(name: str, end_offset: int) -> Decide:
    def decide(meta: Meta) -> Sequence[AnyEvent]:
        topic = meta.topics.topics.get(name)
        moved = meta.moved_keys(topic.id) if topic else MovedKeys()
        waiting = [(move.source, move.epoch) for move in moved.moves if move.end_offset is None]
        return decide_seal(moved, topic.id, *waiting[0], end_offset) if topic and waiting else ()

    return decide


def put_group(name: str, attempts: int, strategy: str = "shared") -> Decide:
    request = GroupRequest.from_json({"max_attempts": attempts, "consume_from": "last", "consume_strategy": strategy})
    return lambda meta: decide_put_group(meta.groups, name, request, 2_000)


def begin(group: str, topic: str) -> Decide:
    def decide(meta: Meta) -> Sequence[AnyEvent]:
        present = meta.topics.topics.get(topic)
        if present is None or group not in meta.groups.groups:
            return ()
        return decide_begin(meta.groups, group, {present.id: len(present.route.partitions)})

    return decide


def delete_group(name: str) -> Decide:
    return lambda meta: decide_delete_group(meta.groups, name) if name in meta.groups.groups else ()


def forget_client(group: str, client: str) -> Decide:
    member = member_name(group, client)
    return lambda meta: decide_delete_group(meta.groups, member) if meta.groups.find(member) is not None else ()


def reset(group: str, topic: str, offset: int) -> Decide:
    def decide(meta: Meta) -> Sequence[AnyEvent]:
        present = meta.topics.topics.get(topic)
        if present is None or group not in meta.groups.groups:
            return ()
        lanes = {LaneKey(present.id, group, retry, f"{topic}@A"): offset for retry in (False, True)}
        return decide_reset_offsets(meta.groups, group, topic, lanes)

    return decide


def host(id: str, action: str) -> Decide:
    def decide(meta: Meta) -> Sequence[AnyEvent]:
        state = meta.brokers
        if id not in state.hosts:
            return decide_register(
                state, Host(id=id, address=f"http://{id}:1", brokers=AB[id == "h2" :], renewal=0, load=0)
            )
        if action == "renew":
            return decide_renew(state, id, 7)
        if action == "ask":
            return decide_ask(state, id, state.hosts.keys())
        if action == "leave":
            return decide_leave(state, id)
        if action == "give back":
            return decide_give_back(state, id, AB)
        return decide_takeover(state, id, {other: one.renewal for other, one in state.hosts.items() if other != id})

    return decide


def partitions_of(meta: Meta) -> dict[str, TopicPartitions]:
    return {name: TopicPartitions(topic.id, topic.route.partitions) for name, topic in meta.topics.topics.items()}


def heartbeat(group: str, client: str, online: bool) -> Decide:
    return lambda meta: decide_heartbeat(
        meta.online,
        group,
        client,
        subscriptions={topic: Subscription(order=True, tags="a||b") for topic in TOPICS},
        online=online,
        topics=partitions_of(meta),
        strategy="sticky",
        now_ms=3_000,
    )


def scan(client: str) -> Decide:
    return lambda meta: decide_scan(
        meta.online,
        over={member for member in meta.online.members() if member.client == client},
        strategies=dict.fromkeys(GROUPS, "sticky"),
        topics=partitions_of(meta),
    )


topics, groups = st.sampled_from(TOPICS), st.sampled_from(GROUPS)
decisions = st.one_of(
    st.builds(put_topic, topics, st.integers(1, 9), st.integers(0, 10**6)),
    st.builds(delete_topic, topics),
    st.builds(seal, topics, st.integers(0, 99)),
    st.builds(put_group, groups, st.integers(1, 9)),
    st.builds(begin, groups, topics),
    st.builds(put_group, groups, st.integers(1, 9), st.just("broadcast")),
    st.builds(delete_group, groups),
    st.builds(forget_client, groups, st.sampled_from(CLIENTS)),
    st.builds(reset, groups, topics, st.integers(0, 99)),
    st.builds(host, st.sampled_from(HOSTS), st.sampled_from(["renew", "leave", "give back", "take over"])),
    st.builds(heartbeat, groups, st.sampled_from(CLIENTS), st.booleans()),
    st.builds(scan, st.sampled_from(CLIENTS)),
)


#: Leads to a state in which nothing is empty: two clients shared a topic that was expanded and is sealed in part.
PRELUDE: tuple[Decide, ...] = (
    host("h1", "register"),
    put_topic("refunds", 1, 1),
    delete_topic("refunds"),
    put_topic("orders", 2, 2),
    put_group("billing", 3),
    put_group("prices", 3, "broadcast"),
    forget_client("prices", "c1"),
    begin("billing", "orders"),
    reset("billing", "orders", 5),
    heartbeat("billing", "c1", True),
    heartbeat("billing", "c2", True),
    put_topic("orders", 4, 3),
    seal("orders", 120),
    scan("nobody"),
)


def decided(meta: Meta, decisions: Sequence[Decide]) -> Meta:
    for decide in decisions:
        meta = meta.apply_all(decide(meta))
    return meta


def stored(meta: Meta) -> Meta:
    """`meta` by way of a snapshot as it lies in the log."""
    found = MetaSnapshot.from_json(MetaSnapshot(meta=meta, previous=3, told={"groups": 5}).to_json())
    assert (found.previous, found.told) == (3, {"groups": 5})
    return found.meta


@pytest.mark.promise("HOST-9")
@given(st.lists(decisions, max_size=30), st.lists(decisions, max_size=10))
def test_meta_3_who_starts_at_a_snapshot_knows_what_the_others_know(before: list[Decide], after: list[Decide]) -> None:
    meta = decided(decided(Meta(), PRELUDE), before)
    begun = stored(meta)
    assert begun == meta
    for decide in after:
        events = decide(meta)
        assert decide(begun) == events, "both decide the same"
        meta, begun = meta.apply_all(events), begun.apply_all(events)
    assert begun == meta


def test_meta_3_a_snapshot_holds_who_had_a_partition_before_and_what_is_sealed() -> None:
    meta = stored(decided(Meta(), PRELUDE))
    (moved,) = meta.moved.values()
    assert {move.end_offset for move in moved.moves} == {120, None}
    assert meta.online.groups["billing"].topics["orders"].earlier == {"orders@B": {"c1"}}
    assert meta.topics.ended == {"refunds": 1} and meta.groups.resets and meta.groups.began and meta.brokers.epoch == 3


def test_kafka_15_a_snapshot_holds_the_settings_that_kafkas_clients_gave() -> None:
    asked = TopicRequest(kafka={"cleanup.policy": "compact"})
    meta = stored(Meta().apply_all(decide_put_topic(MetaState(), "orders", asked, AB, "id-1", 5)))
    assert meta.topics.topic("orders").kafka == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("state", "stored_fields"),
    [
        (Meta, {"topics", "groups", "brokers", "online", "moved", "static", "access", "auth", "features", "schemas"}),
        (AuthState, {"principals", "keys", "rules", "quotas", "passwords", "client_quotas"}),
        (AccessState, {"brokers", "partitions"}),
        (RegistryState, {"subjects", "schemas", "rules", "last_id"}),
        (Access, {"readable", "writable", "reason", "until_ms"}),
        (MetaState, {"topics", "routes_epoch", "ended"}),
        (Topic, {"name", "id", "route", "settings", "created_ms", "generation", "static", "kafka"}),
        (StaticQueues, {"owners", "epoch", "brokers", "made", "world"}),
        (GroupsState, {"groups", "resets", "epoch", "began", "forgotten"}),
        (Group, {"name", "epoch", "settings", "created_ms", "paused"}),
        (BrokersState, {"hosts", "roles", "epoch", "asked"}),
        (Ownership, {"host", "epoch"}),
        (OnlineState, {"groups", "epoch"}),
        (GroupOnline, {"clients", "topics"}),
        (OnlineClient, {"id", "joined", "topics", "leaving", "since_ms"}),
        (TopicAllocation, {"topic_id", "epoch", "owners", "owner", "earlier"}),
        (MovedKeys, {"moves"}),
    ],
)
def test_meta_3_every_field_of_the_state_is_in_the_snapshot(state: Any, stored_fields: set[str]) -> None:
    """A field that is added to a state must be added to `mq.meta.snapshot`, or the next start forgets it.

    What is not compared follows from the other fields.
    """
    assert {one.name for one in fields(state) if not one.name.startswith("_")} == stored_fields


def test_meta_3_every_field_of_a_host_and_of_a_move_comes_back() -> None:
    values = {one.name: _unlike_default(one.name) for one in fields(Host)}
    one = Host(**values)
    assert stored(Meta(brokers=BrokersState(hosts={one.id: one}))).brokers.hosts == {one.id: one}
    assert Move._fields == ("epoch", "source", "target", "ranges", "end_offset", "remaps", "at_once")


def _unlike_default(name: str) -> Any:
    return {"brokers": AB, "renewal": 4, "load": 9, "features": ("one", "two")}.get(name, f"a {name}")


def damage(path: Sequence[str]) -> bytes:
    """A snapshot that lacks one field."""
    value: dict[str, Any] = json.loads(MetaSnapshot(meta=Meta(), previous=0, told={}).to_json())
    inner = value
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "path",
    [
        ["moved"],
        ["previous"],
        ["told"],
        ["topics", "ended"],
        ["groups", "resets"],
        ["brokers", "roles"],
        ["online", "epoch"],
    ],
)
def test_a_damaged_snapshot_is_corrupt(path: list[str]) -> None:
    with pytest.raises(Corrupt) as corrupt:
        MetaSnapshot.from_json(damage(path))
    assert corrupt.value.code == "meta_event_corrupt"


def test_a_snapshot_is_no_event_of_a_family() -> None:
    with pytest.raises(Corrupt) as corrupt:
        event_from_json(MetaSnapshot.kind, b"{}")
    assert corrupt.value.code == "meta_event_unknown"
