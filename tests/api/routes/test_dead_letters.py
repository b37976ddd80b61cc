"""RETRY-3, RETRY-8: dead letters can be looked at, sent back once, and deleted; each says what became of it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltamq.api.ports import Ports
from deltamq.mq.errors import Unknown
from deltamq.mq.limits import OFFSET_MAX
from deltamq.mq.names import PartitionName
from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from deltamq.tables.failpoints import arm
from deltamq.tables.log.batch import Batch
from deltamq.tables.paths import Space
from deltamq.tables.queue.refs import dead_ref, retry_ref
from deltamq.tables.schema import INTERNAL_SCHEMA
from tests.api.routes.test_groups import group_path, pop, put_group
from tests.api.running import Api, Reply, config_for, running, until
from tests.faulty_store import faulty_disk

pytestmark = pytest.mark.static_too

BROKERS = ("broker-a", "broker-b")


def bury(api: Api, group: str, *letters: dict[str, Any], broker: str = "broker-a", reason: str = "max_attempts") -> str:
    """Append dead letters, as the revive job does; returns their partition."""
    epoch = api.service.groups.state.group(group).epoch
    rows = [
        {"reconsume_times": 16, **letter, "headers": [*letter.get("headers", ()), (DEAD_REASON_HEADER, reason)]}
        for letter in letters
    ]
    ref = dead_ref(group, epoch, broker)
    batch = Batch(pa.RecordBatch.from_pylist(rows, schema=INTERNAL_SCHEMA))
    api.service.warehouse.create(ref).append([batch])
    return ref.name


def letter(topic: str, number: int, **more: object) -> dict[str, Any]:
    """A message that once was at an offset of the topic."""
    origin = {"topic": topic, "partition": f"{topic}@broker-a", "offset": number}
    return {"body": b"%d" % number, "message_id": f"m{number}", "origin": origin, **more}


def listed(api: Api, group: str, query: str = "") -> Any:
    reply = api.call("GET", f"{group_path(group)}/dead-letters{query}")
    assert reply.status == 200, reply.body
    return reply.json


def replay(api: Api, group: str, **ask: object) -> Any:
    reply = api.call("POST", f"{group_path(group)}/dead-letters/replay", ask)
    assert reply.status == 200, reply.body
    return reply.json


def sent_back(replayed: int = 0, duplicates: int = 0, *failed: tuple[str, int, str]) -> dict[str, Any]:
    """What the answer to a replay says."""
    named = [{"partition": partition, "offset": offset, "code": code} for partition, offset, code in failed]
    return {"replayed": replayed, "duplicates": duplicates, "failed": named, "failed_total": len(named)}


@pytest.fixture
def group(api: Api, topic: str) -> str:
    """A group beside a topic of two partitions."""
    api.put_topic(topic, partitions=2)
    put_group(api, f"{topic}.group")
    return f"{topic}.group"


# Look -----------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("DELAY-4")
def test_retry_03_a_dead_letter_says_where_it_was_and_why_it_is_dead(api: Api, topic: str, group: str) -> None:
    assert listed(api, group) == {
        "group": group,
        "total": 0,
        "messages": [],
        "next_offset": None,
        "cursor": None,
    }
    born = pa.scalar(0, pa.timestamp("us", "UTC")).as_py()
    place = bury(api, group, letter(topic, 7, key="k", tag="t", headers=[("h", "1")], born_time=born))
    answer = listed(api, group)
    (message,) = answer["messages"]
    assert message.pop("append_time")
    assert message == {
        "partition": place,
        "offset": 0,
        "topic": topic,
        "origin": {"topic": topic, "partition": f"{topic}@broker-a", "offset": 7},
        "reason": "max_attempts",
        "attempts": 16,
        "state": "new",
        "sent_back_time": None,
        "sent_back_by": None,
        "reconsume_times": 16,
        "message_id": "m7",
        "body": "7",
        "key": "k",
        "tag": "t",
        "headers": {"h": "1", DEAD_REASON_HEADER: "max_attempts"},
        "born_time": "1970-01-01T00:00:00.000000Z",
    }
    assert (answer["total"], answer["next_offset"]) == (1, None)


def test_retry_03_dead_letters_of_all_brokers_are_listed_page_by_page(api: Api, topic: str, group: str) -> None:
    places = [
        bury(api, group, *(letter(topic, at) for at in range(low, low + 5)), broker=broker)
        for low, broker in ((0, "broker-a"), (100, "broker-b"))
    ]
    found, offset = [], 0
    while offset is not None:
        page = listed(api, group, f"?limit=3&offset={offset}")
        assert page["total"] == 10 and 0 < len(page["messages"]) <= 3
        found += [(message["partition"], message["offset"]) for message in page["messages"]]
        offset = page["next_offset"]
    assert found == [(place, at) for place in places for at in range(5)]
    of_one = listed(api, group, f"?partition={places[1].replace('%', '%25')}&offset=2&limit=2")
    assert [message["body"] for message in of_one["messages"]] == ["102", "103"] and of_one["next_offset"] == 4
    assert listed(api, group, f"?partition={places[1].replace('%', '%25')}&offset=4")["next_offset"] is None
    beyond = listed(api, group, "?offset=10")
    assert (beyond["messages"], beyond["next_offset"]) == ([], None)


@pytest.mark.parametrize(
    ("query", "status", "code", "field"),
    [
        ("?limit=0", 422, "invalid_value", "limit"),
        ("?limit=1001", 422, "invalid_value", "limit"),
        ("?limit=all", 400, "invalid_request", "limit"),
        ("?offset=-1", 422, "invalid_value", "offset"),
        (f"?offset={OFFSET_MAX + 1}", 422, "invalid_value", "offset"),
        ("?state=dead", 422, "invalid_value", "state"),
        ("?from_time=yesterday", 400, "invalid_request", "from_time"),
        ("?cursor=7", 400, "invalid_request", "cursor"),
        ("?partition=orders@broker-a", 404, "partition_not_found", "partition"),
    ],
)
def test_a_bad_page_is_refused_by_name(api: Api, group: str, query: str, status: int, code: str, field: str) -> None:
    _assert_problem(api.call("GET", f"{group_path(group)}/dead-letters{query}"), status, code, field)


def _assert_problem(reply: Reply, status: int, code: str, field: str) -> None:
    assert (reply.status, reply.json["code"], reply.json["field"]) == (status, code, field), reply.json


# Send back ------------------------------------------------------------------------------------------------------------


def test_retry_03_dead_letters_go_back_to_their_origin_as_if_they_had_never_failed(
    api: Api, topic: str, group: str
) -> None:
    place = bury(api, group, letter(topic, 0, key="k", tag="t", headers=[("h", "1")]), letter(topic, 1))
    assert replay(api, group) == sent_back(2)
    stored = api.fetch(topic, f"{topic}@broker-a").json["messages"]
    assert [(m["message_id"], m["body"], m.get("headers")) for m in stored] == [
        ("m0", "0", {"h": "1"}),
        ("m1", "1", None),
    ]
    assert stored[0]["key"] == "k" and stored[0]["tag"] == "t"
    assert all("reconsume_times" not in m and "origin" not in m for m in stored)
    for other in (group, f"{group}.other"):
        messages = pop(api, other, topic)
        assert [(m["body"], m["delivery_attempt"]) for m in messages] == [("0", 1), ("1", 1)]
    assert listed(api, group)["total"] == 2, f"{place} keeps them until their time has passed"


def test_retry_03_dead_letters_go_to_the_retries_of_their_group_alone(api: Api, topic: str, group: str) -> None:
    bury(api, group, letter(topic, 0), letter(topic, 1), broker="broker-b")
    assert replay(api, group, to="retry") == sent_back(2)
    assert sum(api.stored(topic).values()) == 0
    assert pop(api, f"{group}.other", topic) == []
    messages = pop(api, group, topic)
    assert [(m["body"], m["delivery_attempt"], m["origin"]["offset"]) for m in messages] == [("0", 1, 0), ("1", 1, 1)]
    assert DEAD_REASON_HEADER not in (messages[0].get("headers") or {})
    epoch, generation = api.service.groups.state.group(group).epoch, api.service.topics.state.topic(topic).generation
    assert api.service.warehouse.exists(retry_ref(group, epoch, topic, generation, "broker-b"))


@pytest.mark.promise("DELAY-6")
@pytest.mark.parametrize("to", ["origin", "retry"])
def test_retry_03_a_replay_that_is_repeated_stores_nothing_twice_also_after_a_restart(tmp_path: Path, to: str) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=1)
        put_group(api, "billing")
        bury(api, "billing", *(letter("orders", at) for at in range(40)))
        assert replay(api, "billing", offsets={"%DLQ%billing@broker-a": [3, 1, 3, 39]}, to=to) == sent_back(3)
        assert replay(api, "billing", to=to) == sent_back(37, 3)
    with running(config) as api:
        assert replay(api, "billing", to=to) == sent_back(0, 40)
        assert replay(api, "billing", offsets={"%DLQ%billing@broker-a": list(range(40))}, to=to) == sent_back(0, 40)
        assert sorted(int(m["body"]) for m in pop(api, "billing", "orders", max_messages=100)) == list(range(40))


def test_retry_03_what_dies_again_can_be_sent_back_again(api: Api, topic: str, group: str) -> None:
    place = bury(api, group, letter(topic, 0))
    assert replay(api, group) == sent_back(1)
    bury(api, group, letter(topic, 0))
    assert replay(api, group, offsets={place: [0, 1]}) == sent_back(1, 1)
    assert len(pop(api, group, topic)) == 2


def test_retry_03_what_cannot_be_sent_back_is_named_and_holds_up_nothing(api: Api, topic: str, group: str) -> None:
    place = bury(api, group, letter("gone.topic", 0), letter(topic, 1), letter("gone.topic", 2))
    expected = [(place, 0, "topic_not_found"), (place, 2, "topic_not_found")]
    assert replay(api, group) == sent_back(1, 0, *expected)
    assert replay(api, group, to="retry") == sent_back(0, 1, *expected)
    other = place.replace("broker-a", "broker-b")
    some = replay(api, group, offsets={place: [1, 99], other: [5]})
    assert some["replayed"] == 0 and some["duplicates"] == 1
    assert {(f["partition"], f["offset"], f["code"]) for f in some["failed"]} == {
        (other, 5, "offset_out_of_range"),
        (place, 99, "offset_out_of_range"),
    }


def test_retry_03_a_topic_made_again_with_other_partitions_gets_them_by_key(api: Api, topic: str, group: str) -> None:
    api.call("DELETE", f"/v1/topics/{topic}")
    api.put_topic(topic, partitions=2)
    elsewhere = {"topic": topic, "partition": f"{topic}#9@broker-z", "offset": 0}
    bury(api, group, *(letter(topic, at, key=f"k{at}", origin=elsewhere) for at in range(20)), letter(topic, 20))
    assert replay(api, group) == sent_back(21)
    api.send(topic, *({"key": f"k{at}", "body": f"new-{at}"} for at in range(20)))
    home = {body: partition for partition, bodies in api.bodies(topic).items() for body in bodies}
    assert all(home[str(at)] == home[f"new-{at}"] for at in range(20))


def test_retry_03_a_large_replay_goes_in_steps(api: Api, topic: str, group: str) -> None:
    place = bury(api, group, *(letter(topic, at, body=b"x" * 400_000) for at in range(100)))
    assert replay(api, group, offsets={place: list(range(0, 100, 2))}) == sent_back(50)
    assert replay(api, group) == sent_back(50, 50)
    assert api.stored(topic)[f"{topic}@broker-a"] == 100


def test_an_outcome_that_nobody_knows_is_told_and_repeating_is_safe(tmp_path: Path) -> None:
    store = faulty_disk(tmp_path)

    def unanswered(key: str) -> None:
        if key.startswith(Space.TOPICS.value):
            raise Unknown("the disk has not answered")

    with running(config_for(tmp_path), Ports(store=store)) as api:
        api.put_topic("orders", partitions=1)
        put_group(api, "billing")
        bury(api, "billing", letter("orders", 0), letter("orders", 1))
        store.after["put_if_absent"] = store.before["read"] = unanswered
        reply = api.call("POST", f"{group_path('billing')}/dead-letters/replay", {})
        assert (reply.status, reply.json["code"]) == (503, "outcome_unknown")
        store.after.clear()
        store.before.clear()
        again = replay(api, "billing")
        # The first commit was written although nobody knew; it held one letter of the two, or both.
        assert again["duplicates"] >= 1 and again == sent_back(2 - again["duplicates"], again["duplicates"])
        assert api.stored("orders") == {"orders@broker-a": 2}


def test_pop_12_dead_letters_belong_to_one_life_of_their_group(api: Api, topic: str, group: str) -> None:
    bury(api, group, letter(topic, 0))
    api.call("DELETE", group_path(group))
    put_group(api, group)
    assert listed(api, group)["total"] == 0 and replay(api, group) == sent_back(0)


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"too": "origin"}, 400, "unknown_field", "too"),
        ({"to": "nowhere"}, 422, "invalid_value", "to"),
        ({"to": 1}, 400, "invalid_type", "to"),
        ({"offsets": [1]}, 400, "invalid_type", "offsets"),
        ({"offsets": {}}, 422, "invalid_value", "offsets"),
        ({"offsets": {"p@b": 1}}, 400, "invalid_type", "offsets.p@b"),
        ({"offsets": {"p@b": [True]}}, 400, "invalid_type", "offsets.p@b"),
        ({"offsets": {"p@b": [-1]}}, 422, "invalid_value", "offsets.p@b"),
        ({"offsets": {"p@b": [1]}}, 404, "partition_not_found", "offsets.p@b"),
    ],
)
def test_a_bad_replay_is_refused_by_name_and_sends_nothing(
    api: Api, topic: str, group: str, body: object, status: int, code: str, field: str
) -> None:
    bury(api, group, letter(topic, 0))
    _assert_problem(api.call("POST", f"{group_path(group)}/dead-letters/replay", body), status, code, field)
    assert sum(api.stored(topic).values()) == 0


# States ---------------------------------------------------------------------------------------------------------------


def states(api: Api, group: str, query: str = "") -> dict[int, str]:
    """The state of each dead letter that is listed, by offset."""
    return {one["offset"]: one["state"] for one in listed(api, group, query)["messages"]}


def counted(api: Api, group: str, query: str = "") -> Any:
    reply = api.call("GET", f"{group_path(group)}/dead-letters/counts{query}")
    assert reply.status == 200, reply.body
    return reply.json


def delete(api: Api, group: str, **ask: object) -> Any:
    reply = api.call("DELETE", f"{group_path(group)}/dead-letters", ask)
    assert reply.status == 200, reply.body
    return reply.json


def deleted(count: int = 0, duplicates: int = 0, *failed: tuple[str, int, str]) -> dict[str, Any]:
    """What the answer to a deletion says."""
    told = sent_back(0, duplicates, *failed)
    return {"deleted": count} | {name: value for name, value in told.items() if name != "replayed"}


def test_retry_08_a_dead_letter_is_new_sent_back_or_deleted_also_after_a_restart(tmp_path: Path) -> None:
    config, place = config_for(tmp_path), "%DLQ%billing@broker-a"
    with running(config) as api:
        api.put_topic("orders", partitions=1)
        put_group(api, "billing")
        bury(api, "billing", *(letter("orders", at) for at in range(6)))
        assert replay(api, "billing", offsets={place: [1, 2]}) == sent_back(2)
        assert delete(api, "billing", offsets={place: [2, 4, 9]}) == deleted(2, 0, (place, 9, "offset_out_of_range"))
    with running(config) as api:
        assert states(api, "billing") == {0: "new", 1: "sent_back", 3: "new", 5: "new"}
        assert states(api, "billing", "?state=sent_back") == {1: "sent_back"}
        assert states(api, "billing", "?state=deleted") == {2: "deleted", 4: "deleted"}
        pages = [listed(api, "billing", f"?limit=1&state={state}") for state in ("new", "sent_back", "deleted")]
        assert [page["total"] for page in pages] == [3, 1, 2]
        new, sent, gone = (page["messages"][0] for page in pages)
        assert new["sent_back_time"] is None and sent["sent_back_time"] == gone["sent_back_time"] > new["append_time"]
        assert counted(api, "billing") == {"group": "billing", "new": 3, "sent_back": 1, "deleted": 2, "counts": []}
        # What is deleted is never sent, and what was sent back only when it is named.
        assert replay(api, "billing", offsets={place: [4]}) == sent_back(0, 0, (place, 4, "dead_letter_deleted"))
        assert replay(api, "billing") == sent_back(3, 1)
        assert delete(api, "billing", all=True) == deleted(4) and listed(api, "billing")["total"] == 0
        assert delete(api, "billing", offsets={place: [0]}) == deleted(0, 1)
        assert sorted(m["body"] for m in api.fetch("orders", "orders@broker-a").json["messages"]) == list("01235")
        log = api.service.warehouse.open_partition(dead_ref("billing", 1, "broker-a"))
        assert (log.min_offset, log.end_offset) == (0, 6), "only retention removes them"


def test_retry_08_what_was_sent_back_is_not_sent_again_when_its_target_has_forgotten_it(
    api: Api, topic: str, group: str
) -> None:
    place = bury(api, group, letter(topic, 0))
    assert replay(api, group) == sent_back(1)
    api.call("DELETE", f"/v1/topics/{topic}")
    api.put_topic(topic, partitions=2)
    assert replay(api, group) == sent_back(0, 1) and sum(api.stored(topic).values()) == 0
    assert replay(api, group, offsets={place: [0]}) == sent_back(1)


def test_retry_08_dead_letters_are_found_counted_sent_back_and_deleted_by_what_they_are(
    api: Api, topic: str, group: str
) -> None:
    other = f"{topic}.other"
    api.put_topic(other, partitions=1)
    bury(api, group, letter(topic, 0), letter(other, 1), broker="broker-a")
    bury(api, group, letter(other, 2), broker="broker-b")
    buried_ms = time.time_ns() // 1_000_000
    until(lambda: time.time_ns() // 1_000_000 > buried_ms)
    parsed = bury(api, group, letter(other, 3), letter(topic, 4), broker="broker-b", reason="cannot be parsed")
    since = listed(api, group, "?reason=cannot%20be%20parsed")["messages"][0]["append_time"]
    assert [one["body"] for one in listed(api, group, f"?topic={other}")["messages"]] == ["1", "2", "3"]
    assert [one["body"] for one in listed(api, group, f"?from_time={since}")["messages"]] == ["3", "4"]
    both = f"?topic={other}&reason=cannot%20be%20parsed"
    assert listed(api, group, both)["total"] == 1 == counted(api, group, both)["new"]
    assert replay(api, group, topic=other, from_time=since) == sent_back(1)
    assert counted(api, group, "?by=reason")["counts"] == [
        {"reason": "max_attempts", "new": 3, "sent_back": 0, "deleted": 0},
        {"reason": "cannot be parsed", "new": 1, "sent_back": 1, "deleted": 0},
    ]
    assert delete(api, group, reason="max_attempts", topic=other) == deleted(2)
    assert counted(api, group, "?by=topic")["counts"] == [
        {"topic": topic, "new": 2, "sent_back": 0, "deleted": 0},
        {"topic": other, "new": 0, "sent_back": 1, "deleted": 2},
    ]
    assert replay(api, group, reason="cannot be parsed", offsets={parsed: [0, 1, 2]}) == sent_back(1, 1)
    assert delete(api, group, state="sent_back") == deleted(2)


def test_retry_08_a_cursor_holds_while_dead_letters_change_their_state(api: Api, topic: str, group: str) -> None:
    places = [bury(api, group, *map(partial(letter, topic), range(4)), broker=broker) for broker in BROKERS]
    first = listed(api, group, "?state=new&limit=3")
    assert (first["cursor"], first["next_offset"], first["total"]) == ("broker-a:3", 3, 8)
    delete(api, group, offsets={places[0]: [0, 1, 2]})
    second = listed(api, group, f"?state=new&limit=3&cursor={first['cursor']}")
    found = [(one["partition"], one["offset"]) for one in second["messages"]]
    assert found == [(places[0], 3), (places[1], 0), (places[1], 1)]
    last = listed(api, group, f"?state=new&limit=3&cursor={second['cursor']}")
    assert len(last["messages"]) == 2 and (last["cursor"], last["next_offset"]) == (None, None)


def test_retry_08_a_replay_that_was_cut_off_from_its_mark_is_marked_when_it_is_repeated(
    api: Api, topic: str, group: str
) -> None:
    bury(api, group, letter(topic, 0), letter(topic, 1))
    arm("replay.before_mark=raise")
    try:
        assert api.call("POST", f"{group_path(group)}/dead-letters/replay", {}).status == 500
    finally:
        arm("")
    assert sum(api.stored(topic).values()) == 2 and set(states(api, group).values()) == {"new"}
    assert replay(api, group) == sent_back(0, 2)
    assert sum(api.stored(topic).values()) == 2 and set(states(api, group).values()) == {"sent_back"}


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 400, "invalid_request", "all"),
        ({"all": True, "state": "new"}, 400, "invalid_request", "all"),
        ({"state": "dead"}, 422, "invalid_value", "state"),
        ({"from_time": "yesterday"}, 400, "invalid_request", "from_time"),
        ({"offsets": {"p@b": [1]}}, 404, "partition_not_found", "offsets.p@b"),
    ],
)
def test_retry_08_a_deletion_says_which(
    api: Api, topic: str, group: str, body: object, status: int, code: str, field: str
) -> None:
    bury(api, group, letter(topic, 0))
    _assert_problem(api.call("DELETE", f"{group_path(group)}/dead-letters", body), status, code, field)
    assert listed(api, group)["total"] == 1


# The whole way --------------------------------------------------------------------------------------------------------


def test_retry_03_a_message_that_a_client_condemned_is_listed_and_comes_back(api: Api, topic: str) -> None:
    group, home = f"{topic}.group", f"{topic}@broker-a"
    api.put_topic(topic, partitions=1)
    put_group(api, group, order=True)
    api.send(topic, {"body": "poison", "key": "k", "headers": {"h": "1"}}, "good")
    poison, good = pop(api, group, topic)
    condemned = {"handles": [poison["handle"]], "reason": "no such order"}
    assert api.call("POST", f"{group_path(group)}/dead", condemned).json == {"dead": 1, "failed": []}
    api.call("POST", f"{group_path(group)}/ack", {"handles": [good["handle"]]})
    (message,) = listed(api, group)["messages"]
    assert (message["body"], message["attempts"], message["reason"]) == ("poison", 1, "no such order")
    assert message["origin"] == {"topic": topic, "partition": home, "offset": 0}
    assert PartitionName.parse(message["partition"]) == (f"%DLQ%{group}", "broker-a")
    assert replay(api, group) == sent_back(1)
    (again,) = pop(api, group, topic)
    assert (again["body"], again["key"], again["headers"], again["delivery_attempt"]) == ("poison", "k", {"h": "1"}, 1)
