"""ROUTE-6: an ordered topic is expanded, and keys that move keep their order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from deltamq.api.ports import Ports
from deltamq.api.wire.route_batch import first_held_back
from deltamq.mq.limits import LOGICAL_PARTITIONS
from deltamq.mq.meta.moved_keys import KeysMoved, MovedKeys, moves_between
from deltamq.mq.meta.topics import Topic, TopicPut
from deltamq.mq.partitioners import logical_partition
from deltamq.mq.routing import expand
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.fences import ROUTE_FENCE
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import META_PARTITION, MetaLog
from tests.api.queue_calls import Consumer
from tests.api.running import Api, Reply, config_for, running, until
from tests.faulty_store import FaultyStore, faulty_disk

KEYS = [f"k{i}" for i in range(64)]
GROUP = "billing"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service whose disk may be slow."""
    folder = tmp_path_factory.mktemp("warehouse")
    with running(config_for(folder), Ports(store=faulty_disk(folder))) as found:
        yield found


def strict(api: Api, topic: str, partitions: int) -> None:
    api.put_topic(topic, partitions=partitions, order_strategy="strict")


def send(api: Api, topic: str, keys: Sequence[str], number: int) -> list[dict[str, Any]]:
    """One message of each key."""
    reply = api.send(topic, *({"key": key, "body": f"{key}:{number}"} for key in keys))
    assert reply.status == 200, reply
    ranges: list[dict[str, Any]] = reply.json["ranges"]
    return ranges


def of(api: Api, topic: str) -> Topic:
    return api.service.meta.now.topics.topic(topic)


def moved_keys(api: Api, topic: str) -> MovedKeys:
    return api.service.meta.now.moved_keys(of(api, topic).id)


def places(api: Api, topic: str) -> dict[str, str]:
    """The partition that each key goes to by the route."""
    route = of(api, topic).route
    return {key: route.partitions[route.partition_of(key)] for key in KEYS}


def pull(api: Api, topic: str, partition: str, offset: int, **query: object) -> dict[str, Any]:
    asked = {"offset": offset, "group": GROUP, "max_messages": 1000, **query}
    reply = api.fetch(topic, partition, "?" + "&".join(f"{name}={value}" for name, value in asked.items()))
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def bodies(found: dict[str, Any]) -> list[str]:
    return [message["body"] for message in found["messages"]]


def commit(api: Api, topic: str, offsets: dict[str, int]) -> None:
    reply = api.call("PUT", f"/v1/groups/{GROUP}/topics/{topic}/offsets", {"offsets": offsets})
    assert reply.status == 200, reply


@pytest.fixture
def group(api: Api) -> None:
    assert api.call("PUT", f"/v1/groups/{GROUP}", {"consume_strategy": "shared"}).status in (200, 201)


def test_route_06_moved_keys_go_to_the_new_partition_behind_a_seal(api: Api, topic: str) -> None:
    strict(api, topic, 2)
    send(api, topic, KEYS, 0)
    before = places(api, topic)
    ends = api.stored(topic)
    strict(api, topic, 4)
    moves = moved_keys(api, topic).moves
    assert {(move.source, move.end_offset) for move in moves} == set(ends.items())
    send(api, topic, KEYS, 1)
    after = places(api, topic)
    assert any(before[key] != after[key] for key in KEYS)
    for name, texts in api.bodies(topic).items():
        expected = [key for key in KEYS if before[key] == name], [key for key in KEYS if after[key] == name]
        assert texts == [f"{key}:{number}" for number, keys in enumerate(expected) for key in keys]


def test_route_06_the_partition_that_gave_keys_up_says_so_in_its_log(api: Api, topic: str) -> None:
    strict(api, topic, 2)
    send(api, topic, KEYS, 0)
    strict(api, topic, 4)
    epoch = of(api, topic).route.epoch
    hosted = api.service.topics.find(topic)
    assert hosted is not None
    fences = {one.name: dict(one.open().fences).get(ROUTE_FENCE) for one in hosted.partitions}
    olds = {f"{topic}@broker-a", f"{topic}@broker-b"}
    assert {name for name, fence in fences.items() if fence == epoch} == olds
    assert all(fences[name] is None for name in fences.keys() - olds)


def test_route_06_a_topic_without_order_moves_its_keys_at_once(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    send(api, topic, KEYS, 0)
    api.put_topic(topic, partitions=4)
    assert not moved_keys(api, topic).moves
    send(api, topic, KEYS, 1)
    assert sum(api.stored(topic).values()) == 2 * len(KEYS)


@pytest.mark.promise("LOG-6")
def test_route_06_a_pull_of_a_group_waits_for_the_old_partition(api: Api, topic: str, group: None) -> None:
    strict(api, topic, 2)
    old, new = f"{topic}@broker-a", f"{topic}#1@broker-a"
    send(api, topic, KEYS, 0)
    strict(api, topic, 4)
    send(api, topic, KEYS, 1)
    assert bodies(api.fetch(topic, new).json), "a reader of no group reads what is there"
    held = pull(api, topic, new, 0)
    assert (held["status"], held["messages"], held["next_offset"]) == ("no_new_message", [], 0)
    sealed = {move.source: move.end_offset for move in moved_keys(api, topic).moves}
    assert sealed[old] is not None
    commit(api, topic, {old: sealed[old] - 1})
    assert pull(api, topic, new, 0)["messages"] == []
    commit(api, topic, {old: sealed[old]})
    found = pull(api, topic, new, 0)
    assert bodies(found) == [f"{key}:1" for key in KEYS if places(api, topic)[key] == new]
    assert pull(api, topic, f"{topic}#2@broker-b", 0)["messages"] == [], "the other one still waits"


def test_route_06_what_no_moved_key_has_is_given_up_to_the_first_that_has(api: Api, topic: str, group: None) -> None:
    strict(api, topic, 2)
    new = f"{topic}#1@broker-a"
    send(api, topic, KEYS, 0)
    strict(api, topic, 4)
    moved = next(key for key in KEYS if places(api, topic)[key] == new)
    mixed = [{"body": "free"}, {"body": "free, too"}, {"key": moved, "body": "waits"}, {"body": "behind"}]
    reply = api.send(topic, *({**message, "partition": new} for message in mixed))
    assert reply.status == 200
    found = pull(api, topic, new, 0)
    assert (bodies(found), found["status"], found["next_offset"]) == (["free", "free, too"], "found", 2)
    assert pull(api, topic, new, 2)["status"] == "no_new_message"


def test_route_06_a_pull_that_waits_goes_on_when_the_old_partition_is_done(api: Api, topic: str, group: None) -> None:
    strict(api, topic, 2)
    old, new = f"{topic}@broker-a", f"{topic}#1@broker-a"
    send(api, topic, KEYS, 0)
    strict(api, topic, 4)
    send(api, topic, KEYS, 1)
    end = api.stored(topic)[old]
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(pull(api, topic, new, 0, wait_ms=20_000)))
    waiting.start()
    commit(api, topic, {old: end})
    waiting.join(15)
    assert found and bodies(found[0]) == [f"{key}:1" for key in KEYS if places(api, topic)[key] == new]


def test_route_06_a_group_that_begins_at_the_end_waits_for_nothing(api: Api, topic: str) -> None:
    strict(api, topic, 2)
    send(api, topic, KEYS, 0)
    strict(api, topic, 4)
    send(api, topic, KEYS, 1)
    assert api.call("PUT", "/v1/groups/late", {"consume_from": "last"}).status == 201
    assert pull(api, topic, f"{topic}#1@broker-a", 0, group="late")["status"] == "found"


@pytest.mark.promise("LOG-6")
@pytest.mark.parametrize("order", [False, True, "key"])
def test_route_06_pops_get_each_key_in_order(api: Api, topic: str, order: bool | str) -> None:
    name = f"workers-{str(order).lower()}"
    assert api.call("PUT", f"/v1/groups/{name}", {"order": order}).status in (200, 201)
    consumer = Consumer(api, name, topic)
    strict(api, topic, 2)
    for number in range(2):
        send(api, topic, KEYS, number)
    strict(api, topic, 4)
    send(api, topic, KEYS, 2)
    strict(api, topic, 7)
    send(api, topic, KEYS, 3)
    got: dict[str, list[int]] = {}
    while len(got) < len(KEYS) or any(len(numbers) < 4 for numbers in got.values()):
        popped = consumer.pop(17, order=order, wait_ms=5_000)
        assert popped.messages, f"nothing more comes after {got}"
        for message in popped.messages:
            key, _, number = message["body"].partition(":")
            got.setdefault(key, []).append(int(number))
        consumer.ack(popped.handles)
    assert all(numbers == [0, 1, 2, 3] for numbers in got.values()), got


def test_route_06_a_pop_waits_for_what_is_in_flight(api: Api, topic: str) -> None:
    """Popped is not done: the old partition counts when its messages are acknowledged."""
    consumer = Consumer(api, "careful", topic)
    strict(api, topic, 1)
    send(api, topic, KEYS, 0)
    strict(api, topic, 2)
    send(api, topic, KEYS, 1)
    moved = {f"{key}:1" for key, name in places(api, topic).items() if name != f"{topic}@broker-a"}
    assert moved
    first: list[str] = []
    while (popped := consumer.pop(32)).messages:
        assert not moved & set(popped.bodies), "the old partition's messages are in flight"
        first += popped.handles
    assert len(first) == 2 * len(KEYS) - len(moved)
    consumer.ack(first)
    while moved:
        popped = consumer.pop(32, wait_ms=5_000)
        assert popped.messages and set(popped.bodies) <= moved
        moved -= set(popped.bodies)
        consumer.ack(popped.handles)


# What a kill leaves ---------------------------------------------------------------------------------------------------


def expand_elsewhere(api: Api, topic: str, count: int) -> tuple[Warehouse, Topic]:
    """The events of an expansion by a process that was killed behind them, and that process's way to the tables."""
    warehouse = Warehouse.open(api.service.warehouse.uri)
    meta = MetaLog(warehouse)
    before = meta.state.topic(topic)
    route = expand(before.route, topic, count, ["broker-a", "broker-b"])
    after = replace(before, route=route)
    moved = KeysMoved(topic_id=before.id, moves=moves_between(before.route, route))
    meta.submit_any(lambda _: [moved, TopicPut(topic=after)])
    return warehouse, after


def test_route_06_an_expansion_that_was_killed_behind_its_events_is_sealed_by_others(api: Api, topic: str) -> None:
    strict(api, topic, 2)
    send(api, topic, KEYS, 0)
    _, after = expand_elsewhere(api, topic, 4)
    until(lambda: of(api, topic).route.epoch == after.route.epoch and not moved_keys(api, topic).waiting)
    assert {move.end_offset for move in moved_keys(api, topic).moves} == set(api.stored(topic).values()) - {0}


@contextlib.contextmanager
def deaf(api: Api) -> Iterator[None]:
    """The service hears nothing new of the metadata inside."""
    store, gate = api.service.warehouse.store, threading.Event()
    assert isinstance(store, FaultyStore)

    def wait(key: str) -> None:
        if META_PARTITION.folder in key:
            assert gate.wait(60)

    store.before["exists"] = wait
    try:
        yield
    finally:
        del store.before["exists"]
        gate.set()


def send_unaware(
    api: Api, topic: str, count: int, *messages: dict[str, object], part: bool = False, **request: object
) -> Reply:
    """The answer of a service that hears of an expansion to `count` only by the fence that it runs into.

    The process that expands and puts the fence up is killed behind it; with `part`, it has stored a part of the
    request before.
    """
    source = f"{topic}@broker-a"
    hosted = api.service.topics.find(topic)
    assert hosted is not None
    found: list[Reply] = []
    with deaf(api):
        warehouse, after = expand_elsewhere(api, topic, count)
        log = warehouse.open_partition(PartitionRef(Space.TOPICS, topic, source, after.generation))
        log.fence(ROUTE_FENCE, after.route.epoch)
        if part:
            _store_what_stays(log, after, source)
        sending = threading.Thread(target=lambda: found.append(api.send(topic, *messages, **request)))
        sending.start()
        until(lambda: ROUTE_FENCE in hosted.partition(source).open().fences)
    sending.join(30)
    assert found and found[0].status == 200, found
    return found[0]


def _store_what_stays(log: PartitionLog, after: Topic, source: str) -> None:
    """The part of request 0 of producer `p` that belongs to `source` still, as another process stores it."""
    stay = [at for at, key in enumerate(KEYS) if after.route.partitions[after.route.partition_of(key)] == source]
    rows = pa.record_batch({"key": [KEYS[at] for at in stay], "body": [f"{KEYS[at]}:1".encode() for at in stay]})
    log.append([Batch(rows, ProducerStamp("p", 0, tuple(stay), len(KEYS)))])


def test_route_06_a_producer_that_meets_a_fence_without_its_seal_is_not_lost(api: Api, topic: str) -> None:
    """The process that put the fence up was killed before it could say where the old partition ends."""
    strict(api, topic, 2)
    send(api, topic, KEYS, 0)
    send_unaware(api, topic, 4, *({"key": key, "body": f"{key}:1"} for key in KEYS))
    until(lambda: not moved_keys(api, topic).waiting)
    send(api, topic, KEYS, 2)
    found = api.bodies(topic)
    for key in KEYS:
        name = places(api, topic)[key]
        assert f"{key}:2" in found[name], f"{key} belongs to {name}"
        mine = [body for bodies in found.values() for body in bodies if body.startswith(f"{key}:")]
        assert sorted(mine) == [f"{key}:0", f"{key}:1", f"{key}:2"]
        if name.endswith("#1@broker-a"):
            assert f"{key}:1" in found[name], "it was refused by the old partition"


@pytest.mark.parametrize("named", [False, True])
def test_send_05_a_request_whose_parts_moved_meanwhile_is_stored_once(api: Api, topic: str, named: bool) -> None:
    """The service learns of the expansion by the fence; a repeated request finds each part where it is."""
    strict(api, topic, 2)
    send(api, topic, KEYS, 0)
    source = {"partition": f"{topic}@broker-a"} if named else {}
    messages = [{"key": key, "body": f"{key}:1", **source} for key in KEYS]
    first = send_unaware(api, topic, 3, *messages, producer={"id": "p", "seq": 0}).json
    assert sorted(at for one in first["ranges"] for at in one.get("indexes", range(64))) == list(range(64))
    again = api.send(topic, *messages, producer={"id": "p", "seq": 0})
    assert again.json["duplicate"]
    assert sum(api.stored(topic).values()) == 2 * len(KEYS)
    if named:
        assert {one["partition"] for one in first["ranges"]} == {f"{topic}@broker-a"}, "who names a partition gets it"
    else:
        assert f"{topic}#1@broker-a" in {one["partition"] for one in first["ranges"]}, "keys have moved"


def test_send_05_a_request_of_which_another_process_stored_a_part_by_the_new_route_is_finished(
    api: Api, topic: str
) -> None:
    """That process was killed in between; this one has not heard of the expansion, so it puts the parts together."""
    strict(api, topic, 2)
    send(api, topic, KEYS, 0)
    messages = [{"key": key, "body": f"{key}:1"} for key in KEYS]
    found = send_unaware(api, topic, 4, *messages, part=True, producer={"id": "p", "seq": 0}).json
    assert sorted(at for one in found["ranges"] for at in one["indexes"]) == list(range(len(KEYS)))
    stored = [body for texts in api.bodies(topic).values() for body in texts]
    assert sorted(stored) == sorted(f"{key}:{number}" for key in KEYS for number in (0, 1))
    other = api.send(topic, {"key": "k0", "body": "another"}, producer={"id": "p", "seq": 0})
    assert (other.status, other.json["code"]) == (409, "producer_sequence_reused")


def test_route_06_a_key_hashes_as_everywhere() -> None:
    """The gate and the route must agree on what a key's logical partition is."""
    rows = pa.table({"key": pa.chunked_array([[None, "a"], ["b", None, "c"]], pa.string())})
    for at, key in ((1, "a"), (2, "b"), (4, "c")):
        blocked = np.zeros(LOGICAL_PARTITIONS, dtype=np.bool_)
        blocked[logical_partition(key)] = True
        assert first_held_back(blocked, rows) == at


# Several processes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, Api]]:
    """One service for each broker, on one warehouse."""
    warehouse = tmp_path_factory.mktemp("shared")
    with (
        running(config_for(warehouse, brokers=("broker-a",))) as one,
        running(config_for(warehouse, brokers=("broker-b",))) as two,
    ):
        until(lambda: all(len(api.service.meta.now.brokers.available) == 2 for api in (one, two)))
        yield one, two


@pytest.mark.parametrize("pops", [False, True], ids=["pull", "pop"])
def test_route_06_a_group_waits_for_a_partition_of_another_process(
    pair: tuple[Api, Api], topic: str, pops: bool
) -> None:
    one, two = pair
    topic = f"{topic}.{pops}"
    strict(one, topic, 1)
    assert one.call("PUT", f"/v1/groups/{GROUP}", {}).status in (200, 201)
    (old,) = one.stored(topic)
    strict(two, topic, 2)
    (new,) = two.stored(topic).keys() - {old}
    assert {name.partition("@")[2] for name in (old, new)} == {"broker-a", "broker-b"}
    send(one, topic, KEYS, 0)
    strict(two, topic, 5)
    send(two, topic, KEYS, 1)
    sealed = {move.source: move.end_offset for move in moved_keys(two, topic).moves}
    elsewhere = [name for name in of(two, topic).route.partitions[2:] if _crosses(two, topic, name)]
    assert elsewhere, "an expansion gave keys to another broker"
    owners = {name: one if name.endswith("@broker-a") else two for name in elsewhere}
    until(lambda: of(one, topic).route == of(two, topic).route)
    for name, api in owners.items():
        assert _taken(api, topic, name, pops=pops) == [], "its keys were elsewhere, and the group is not done there"
    commit(one, topic, {name: end for name, end in sealed.items() if end is not None})
    for name, api in owners.items():
        expected = [f"{key}:1" for key in KEYS if places(two, topic)[key] == name]
        assert expected
        got: list[str] = []
        while len(got) < len(expected):
            found = _taken(api, topic, name, pops=pops)
            got = got + found if pops else found
        assert got == expected


def _crosses(api: Api, topic: str, partition: str) -> bool:
    """Whether keys came to this partition from another broker's."""
    moves = moved_keys(api, topic).moves
    return any(m.target == partition and m.source.partition("@")[2] != partition.partition("@")[2] for m in moves)


def _taken(api: Api, topic: str, partition: str, *, pops: bool) -> list[str]:
    if pops:
        return Consumer(api, GROUP, topic).pop(100, partition=partition, wait_ms=1_000).bodies
    return bodies(pull(api, topic, partition, 0, wait_ms=1_000))
