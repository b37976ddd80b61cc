"""Static topics over REST: create, grow, remap, check, repair, and sends to their logical queues (SPEC STATIC)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from deltamq.api.ports import Ports
from deltamq.mq.errors import StorageFull
from deltamq.mq.meta.static_topics import decide_remap
from deltamq.mq.partitioners import logical_partition
from deltamq.mq.static.mappings import MappingPut, MappingRemoved
from deltamq.mq.static.segments import UNDECIDED
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import META_PARTITION
from tests.api.running import ARROW, NDJSON, Api, Reply, arrow_stream, config_for, running, until
from tests.api.static_calls import StaticTopic, name_of
from tests.faulty_store import faulty_disk

A, B = "broker-a", "broker-b"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service of both brokers whose disk may be slow."""
    folder = tmp_path_factory.mktemp("warehouse")
    with running(config_for(folder), Ports(store=faulty_disk(folder))) as found:
        yield found


@pytest.fixture
def orders(api: Api, topic: str) -> StaticTopic:
    """A static topic of four queues: 0 and 2 at broker-a, 1 and 3 at broker-b."""
    found = StaticTopic(api, topic)
    assert found.put(4).status == 201
    return found


def refused(reply: Reply) -> tuple[int, str, str | None]:
    return reply.status, reply.json["code"], reply.json.get("field")


def leaders(orders: StaticTopic) -> list[str]:
    return [queue["segments"][-1]["broker"] for queue in orders.queues]


def key_of(queue: int, total: int = 4) -> str:
    """A key that belongs to the queue."""
    share = 1024 // total
    return next(key for key in map("k{}".format, range(1000)) if logical_partition(key) // share == queue)


# Create, grow, refuse -------------------------------------------------------------------------------------------------


def test_static_07_create_spreads_the_queues_and_shows_them_beside_their_partitions(orders: StaticTopic) -> None:
    view = orders.view
    assert (view["static"], view["total_queues"]) == (True, 4)
    assert [p["partition"] for p in view["partitions"]] == [
        f"{orders.name}@{A}",
        f"{orders.name}#1@{B}",
        f"{orders.name}#2@{A}",
        f"{orders.name}#3@{B}",
    ]
    first = view["logical_queues"][0]
    assert first["segments"] == [
        {
            "gen": 0,
            "partition": f"{orders.name}@{A}",
            "broker": A,
            "logic_offset": 0,
            "start_offset": 0,
            "end_offset": UNDECIDED,
            "state": "leader",
        }
    ]
    del first["segments"], first["epoch"]
    assert first == {
        "queue": 0,
        "partition": name_of(0),
        "state": "serving",
        "logical_partitions": [[0, 256]],
        "cluster": None,
        "stays": None,
        "min_offset": 0,
        "max_offset": 0,
        "messages": 0,
        "holes": 0,
    }


def test_static_07_an_update_adds_queues_and_removes_none(orders: StaticTopic) -> None:
    assert orders.put(4).status == 200
    assert orders.put(6, brokers=[B]).status == 200
    assert leaders(orders) == [A, B, A, B, B, B]
    assert refused(orders.put(5)) == (409, "queues_cannot_shrink", "total_queues")
    assert len(orders.queues) == 6


def test_static_07_plain_and_static_topics_do_not_become_each_other(api: Api, topic: str, orders: StaticTopic) -> None:
    assert refused(orders.ask("PUT", "", {"partitions": 8})) == (409, "topic_static", "static")
    assert refused(orders.ask("PUT", "", {})) == (409, "topic_static", "static")
    plain = StaticTopic(api, f"{topic}.plain")
    api.put_topic(plain.name)
    assert "logical_queues" in plain.view and plain.view["logical_queues"] is None
    assert refused(plain.put(4)) == (409, "topic_not_static", "static")
    for path in ("/remap", "/check", "/repair"):
        body = {"brokers": [A]} if path == "/remap" else {}
        assert refused(plain.ask("POST", path, body)) == (409, "topic_not_static", "static")


def test_static_23_settings_change_only_together_with_the_number_of_queues(orders: StaticTopic) -> None:
    assert orders.ask("PUT", "", {"retention_ms": 3_600_000}).status == 409
    assert orders.ask("PUT", "", {"static": True, "retention_ms": 3_600_000}).status == 422
    assert orders.put(4, retention_ms=3_600_000).json["retention_ms"] == 3_600_000


def test_static_23_brokers_that_are_not_served_are_refused_before_anything_changes(
    api: Api, topic: str, orders: StaticTopic
) -> None:
    before = orders.decided
    assert refused(orders.remap("broker-z")) == (422, "unknown_broker", "brokers")
    assert refused(orders.remap(A, "broker-z", mode="available")) == (422, "unknown_broker", "brokers")
    assert refused(orders.put(8, brokers=["broker-z"])) == (422, "unknown_broker", "brokers")
    assert refused(StaticTopic(api, f"{topic}.new").put(8, brokers=["broker-z"]))[0] == 422
    assert refused(orders.remap(A, queues=[4])) == (422, "unknown_queue", "queues")
    assert refused(StaticTopic(api, f"{topic}.unknown").remap(A))[:2] == (404, "topic_not_found")
    assert orders.decided == before
    assert f"{topic}.new" not in api.call("GET", "/v1/topics").json["topics"]


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 400, "missing_field", "brokers"),
        ({"brokers": []}, 422, "invalid_value", "brokers"),
        ({"brokers": [1]}, 400, "invalid_type", "brokers"),
        ({"brokers": [A], "mode": "fast"}, 422, "invalid_value", "mode"),
        ({"brokers": [A], "queues": []}, 422, "invalid_value", "queues"),
        ({"brokers": [A], "queues": ["0"]}, 400, "invalid_type", "queues"),
        ({"brokers": [A], "plan": "yes"}, 400, "invalid_type", "plan"),
        ({"brokers": [A], "quick": True}, 400, "unknown_field", "quick"),
    ],
)
def test_a_bad_remapping_is_refused_by_name(
    orders: StaticTopic, body: Json, status: int, code: str, field: str
) -> None:
    assert refused(orders.ask("POST", "/remap", body)) == (status, code, field)


# Sends ----------------------------------------------------------------------------------------------------------------


def test_static_02_keys_names_and_neither_go_to_logical_queues(orders: StaticTopic) -> None:
    ranges = orders.send(*({"key": key_of(queue), "body": f"key {queue}"} for queue in range(4)))["ranges"]
    assert [(one["partition"], one["base_offset"], one["indexes"]) for one in ranges] == [
        (name_of(queue), 0, [queue]) for queue in range(4)
    ]
    assert orders.send_to(2, "named", "named, too") == [1, 2]
    (drawn,) = orders.send("neither")["ranges"]
    assert drawn["partition"] in {name_of(queue) for queue in range(4)}
    assert orders.stored()[2][:3] == [(0, "key 2"), (1, "named"), (2, "named, too")]


def test_static_22_physical_partitions_are_refused_and_unknown_queues_are_not_found(
    api: Api, orders: StaticTopic
) -> None:
    for name, expected in (
        (f"{orders.name}@{A}", (422, "physical_partition")),
        (name_of(4), (404, "partition_not_found")),
        (f"01{name_of(0)[1:]}", (404, "partition_not_found")),
        (f"{orders.name}@{B}", (404, "partition_not_found")),
    ):
        assert refused(api.send(orders.name, {"body": "x", "partition": name}))[:2] == expected
        assert refused(api.send(orders.name, "x", query=f"?partition={name}"))[:2] == expected
        mixed = [{"body": "x", "partition": name_of(0)}, {"body": "y", "partition": name}]
        assert refused(api.send(orders.name, *mixed)) == (*expected, "messages[1].partition")
        table = arrow_stream(body=[b"x", b"y"], partition=[name_of(0), name])
        assert refused(api.produce(orders.name, table, ARROW))[:2] == expected
    assert orders.bodies() == []


def test_static_02_every_format_names_logical_queues(api: Api, orders: StaticTopic) -> None:
    lines = f'{{"body": "a", "partition": "{name_of(1)}"}}\n{{"body": "b", "partition": "{name_of(1)}"}}'
    table = arrow_stream(body=[b"c", b"d"], partition=pa.array([name_of(1), name_of(3)]))
    for body, kind, expected in (
        (lines, NDJSON, [{"partition": name_of(1), "base_offset": 0, "count": 2}]),
        (
            table,
            ARROW,
            [
                {"partition": name_of(1), "base_offset": 2, "count": 1, "indexes": [0]},
                {"partition": name_of(3), "base_offset": 0, "count": 1, "indexes": [1]},
            ],
        ),
    ):
        reply = api.produce(orders.name, body, kind)
        assert reply.json["ranges"] == expected


def test_static_02_the_expected_offset_is_logical(api: Api, orders: StaticTopic) -> None:
    orders.send_to(0, "a", "b")
    orders.remapped(B, queues=[0])
    assert orders.send_to(0, "c", expected_offset=2) == [2]
    orders.remapped(A, mode="available", queues=[0])

    def expecting(offset: int) -> Reply:
        return api.send(orders.name, {"body": "d", "partition": name_of(0)}, expected_offset=offset)

    for offset in (0, 1, 3, 9_999, 10_001):
        reply = expecting(offset)
        assert (reply.status, reply.json["code"], reply.json["end_offset"]) == (412, "offset_mismatch", 10_000)
        assert "10000" in reply.json["detail"]
    assert expecting(10_000).json["ranges"][0]["base_offset"] == 10_000
    assert orders.stored()[0] == [(0, "a"), (1, "b"), (2, "c"), (10_000, "d")]


# Remap ----------------------------------------------------------------------------------------------------------------


def test_static_08_a_strict_remapping_leaves_no_hole(orders: StaticTopic) -> None:
    orders.send_to(1, "0", "1")
    orders.send_to(3, "0")
    moved = orders.remapped(A)
    assert [(one["queue"], one["from"], one["to"], one["end_offset"], one["logic_offset"]) for one in moved] == [
        (1, B, A, 2, 2),
        (3, B, A, 1, 1),
    ]
    assert [one["old_partition"] for one in moved] == [f"{orders.name}#1@{B}", f"{orders.name}#3@{B}"]
    assert [one["new_partition"] for one in moved] == [f"{orders.name}#4@{A}", f"{orders.name}#5@{A}"]
    assert orders.send_to(1, "2", "3") == [2, 3]
    assert len(orders.remapped(B)) == 4
    assert orders.send_to(1, "4") == [4]
    assert orders.stored()[1] == [(at, str(at)) for at in range(5)]
    queue = orders.queues[1]
    assert (queue["min_offset"], queue["max_offset"], queue["messages"], queue["holes"]) == (0, 5, 5, 0)
    assert [(one["gen"], one["logic_offset"], one["end_offset"], one["state"]) for one in queue["segments"]] == [
        (0, 0, 2, "sealed"),
        (1, 2, 2, "sealed"),
        (2, 4, UNDECIDED, "leader"),
    ]
    assert len(orders.view["partitions"]) == 10, "every segment is shown"


def test_static_09_an_available_remapping_jumps_and_counts_the_hole(orders: StaticTopic) -> None:
    orders.send_to(0, "a", "b", "c")
    (moved,) = orders.remapped(B, mode="available", queues=[0])
    assert (moved["end_offset"], moved["logic_offset"]) == (3, 10_000)
    assert orders.send_to(0, "d") == [10_000]
    queue = orders.queues[0]
    assert (queue["min_offset"], queue["max_offset"], queue["messages"]) == (0, 10_001, 4)
    assert queue["holes"] == 10_000 - 3


def test_static_18_metrics_have_logical_queues_beside_partitions(api: Api, orders: StaticTopic) -> None:
    orders.send_to(0, "a", "b", "c")
    orders.remapped(B, mode="available", queues=[0])
    orders.send_to(0, "d")
    text = api.call("GET", f"/metrics?topic={orders.name}").body.decode()
    shown = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("deltamq_logical_queue_"))
    of_queue = f'{{queue="{name_of(0)}",topic="{orders.name}"}}'
    assert {name: float(shown[f"deltamq_logical_queue_{name}{of_queue}"]) for name in _QUEUE_METRICS} == {
        "min_offset": 0,
        "end_offset": 10_001,
        "messages": 4,
    }
    assert f'deltamq_partition_end_offset{{partition="{orders.queues[0]["segments"][0]["partition"]}"' in text


_QUEUE_METRICS = ("min_offset", "end_offset", "messages")


def test_static_23_one_queue_alone_may_move(orders: StaticTopic) -> None:
    assert [one["queue"] for one in orders.remapped(B, queues=[2])] == [2]
    assert leaders(orders) == [A, B, B, B]
    assert orders.remapped(B, queues=[2, 3]) == [], "they are there"


def test_static_11_a_repeated_remapping_moves_nothing(orders: StaticTopic) -> None:
    reply = orders.remap(B)
    assert len(reply.json["moved"]) == 2 and reply.json["seal_ms"] > 0
    again = orders.remap(B).json
    assert again == {"topic": orders.name, "plan": False, "mode": "strict", "moved": [], "seal_ms": 0}


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_23_a_plan_tells_what_would_move_and_changes_nothing(api: Api, orders: StaticTopic, mode: str) -> None:
    before, view = orders.decided, orders.view
    plan = orders.remap(B, mode=mode, plan=True).json
    assert plan["plan"] and plan["seal_ms"] is None
    assert orders.decided == before
    assert orders.view == view
    done = orders.remapped(B, mode=mode)
    for one in done:
        del one["end_offset"], one["logic_offset"]
    for one in plan["moved"]:
        assert one.pop("end_offset") is one.pop("logic_offset") is None
    assert plan["moved"] == done and [one["queue"] for one in done] == [0, 2]
    assert refused(orders.remap("broker-z", plan=True)) == (422, "unknown_broker", "brokers")


def test_static_24_a_remapping_of_many_queues_is_one_change(api: Api, topic: str) -> None:
    many = StaticTopic(api, topic)
    many.put(200, brokers=[A])
    before = api.service.meta.now.topics.routes_epoch
    commits = _meta_version(api)
    reply = many.remap(B)
    assert len(reply.json["moved"]) == 200
    assert all(one["end_offset"] == one["logic_offset"] == 0 for one in reply.json["moved"])
    assert api.service.meta.now.topics.routes_epoch == before + 1
    assert _meta_version(api) - commits <= 1 + 10, "one for the change, and one for up to 64 seals"
    assert Counter(leaders(many)) == {B: 200}


def _meta_version(api: Api) -> int:
    """The number of commits in the metadata log."""
    return Warehouse.open(api.service.warehouse.uri).open_partition(META_PARTITION).stats().version


def test_static_11_a_seal_that_fails_is_told_and_made_up_for(api: Api, orders: StaticTopic) -> None:
    orders.send_to(0, "a")
    orders.send_to(2, "a")
    (old,) = [segment.partition for segment in orders.chains()[0].segments]
    with orders.failing(old, StorageFull()):
        first, second = orders.remapped(B)
        assert (first["queue"], first["end_offset"], first["logic_offset"]) == (0, None, None)
        assert (second["queue"], second["end_offset"], second["logic_offset"]) == (2, 1, 1)
        assert refused(orders.remap(A))[:2] == (409, "remap_in_progress")
        assert refused(api.send(orders.name, {"body": "b", "partition": name_of(0)}))[:2] == (507, "storage_full")
        assert orders.send_to(2, "b") == [1]
    assert orders.remapped(B) == [], "the same command finishes it"
    assert orders.send_to(0, "b") == [1]
    assert len(orders.remapped(A)) == 4


def test_static_08_while_clients_send_nothing_is_lost_doubled_or_out_of_order(orders: StaticTopic) -> None:
    """A producer for each queue, each sending one message after another, through remappings in both modes."""
    stop, answers = threading.Event(), dict[int, list[int]]()

    def produce(queue: int) -> None:
        offsets = answers.setdefault(queue, [])
        while not stop.is_set():
            offsets += orders.send_to(
                queue, f"{queue}:{len(offsets)}", producer={"id": f"p{queue}", "seq": len(offsets)}
            )

    producers = [threading.Thread(target=produce, args=(queue,)) for queue in range(4)]
    for one in producers:
        one.start()
    for at, brokers in enumerate([(A,), (B,), (A, B), (B,), (A,)]):
        before = {queue: len(answers.get(queue, ())) for queue in range(4)}
        until(lambda before=before: all(len(answers.get(q, ())) > n + 3 for q, n in before.items()))  # type: ignore[misc]  # bound at once
        assert orders.remapped(*brokers, mode="available" if at % 2 else "strict")
    stop.set()
    for one in producers:
        one.join(30)
    for queue, rows in orders.stored().items():
        assert [body for _, body in rows] == [f"{queue}:{at}" for at in range(len(rows))]
        assert [offset for offset, _ in rows] == answers[queue], "what was answered is where it lies"
        assert answers[queue] == sorted(set(answers[queue]))


# While a queue is undecided -------------------------------------------------------------------------------------------


def test_static_10_until_the_old_leader_is_sealed_sends_succeed_without_offsets(api: Api, orders: StaticTopic) -> None:
    orders.send_to(0, "a")
    (old,) = [segment.partition for segment in orders.chains()[0].segments]
    named = {"body": "d", "partition": name_of(0)}
    answers: list[Reply] = []
    # A commit that hangs would hold the old leader's log, and with it every reader of the topic.
    with orders.failing(old, StorageFull()):
        orders.change(lambda meta: decide_remap(meta, orders.name, [B], "available", 2_000_000_000_000, [0]))
        assert orders.send_to(0, "b", "c") == [-1, -1]
        queue = orders.queues[0]
        assert [one["state"] for one in queue["segments"]] == ["sealing", "undecided"]
        assert (queue["min_offset"], queue["max_offset"], queue["messages"]) == (0, 1, 3)
        undecided = api.send(orders.name, named, expected_offset=1)
        assert refused(undecided) == (503, "logic_offset_undecided", "partition")
        sending = threading.Thread(
            target=lambda: answers.append(api.send(orders.name, named, producer={"id": "p", "seq": 0}))
        )
        sending.start()
        assert orders.send_to(1, "elsewhere", producer={"id": "q", "seq": 0}) == [0], "other queues go on"
        assert not answers, "a copy of it may be on its way to the old leader"
    sending.join(30)
    assert answers[0].json["ranges"] == [{"partition": name_of(0), "base_offset": 10_002, "count": 1}]
    assert orders.stored()[0] == [(0, "a"), (10_000, "b"), (10_001, "c"), (10_002, "d")]


def test_static_08_until_the_old_leader_is_sealed_a_strict_queue_stays_there(orders: StaticTopic) -> None:
    (old,) = [segment.partition for segment in orders.chains()[0].segments]
    found: list[list[int]] = []
    with orders.without_seals(old):
        orders.change(lambda meta: decide_remap(meta, orders.name, [B], "strict", 2_000_000_000_000, [0]))
        sending = threading.Thread(target=lambda: found.append(orders.send_to(0, "a")))
        sending.start()
        assert orders.send_to(2, "elsewhere") == [0], "other queues go on"
    sending.join(30)
    assert found == [[0]]
    until(lambda: not orders.meta.moved_keys(orders.id).waiting)
    assert orders.send_to(0, "b") == [1]
    assert orders.stored()[0] == [(0, "a"), (1, "b")]


# Idempotent producers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_21_a_retried_request_gets_its_original_logical_offsets(orders: StaticTopic, mode: str) -> None:
    messages = [{"key": f"k{at}", "body": str(at)} for at in range(40)]
    first = orders.send(*messages, producer={"id": "p", "seq": 0})
    for brokers in ((B,), (A,), (A, B)):
        orders.remapped(*brokers, mode=mode)
        orders.send(*messages, producer={"id": f"other {brokers}".replace(" ", "-").replace("'", ""), "seq": 0})
        again = orders.send(*messages, producer={"id": "p", "seq": 0})
        assert again["duplicate"] and _sorted(again) == _sorted(first)
    assert len(orders.bodies()) == 4 * len(messages)
    following = orders.send(*messages, producer={"id": "p", "seq": 1})
    assert not following["duplicate"]


def _sorted(answer: Json) -> list[Json]:
    found: list[Json] = sorted(answer["ranges"], key=lambda one: one["partition"])
    return found


def test_static_21_a_retried_request_gets_its_message_ids(api: Api, orders: StaticTopic) -> None:
    messages = [{"key": f"k{at}", "body": str(at)} for at in range(10)]
    request = {"producer": {"id": "p", "seq": 0}}
    first = api.send(orders.name, *messages, query="?ids=true", **request).json
    orders.remapped(B, mode="available")
    again = api.send(orders.name, *messages, query="?ids=true", **request).json
    assert again["message_ids"] == first["message_ids"] and again["duplicate"]


def test_static_21_a_named_request_is_recognised_in_a_sealed_segment(orders: StaticTopic) -> None:
    assert orders.send_to(0, "a", "b", producer={"id": "p", "seq": 0}) == [0, 1]
    orders.remapped(B)
    orders.remapped(A)
    assert orders.send_to(0, "a", "b", producer={"id": "p", "seq": 0}) == [0, 1]
    assert orders.stored()[0] == [(0, "a"), (1, "b")]
    reused = orders.api.send(orders.name, {"body": "x", "partition": name_of(0)}, producer={"id": "p", "seq": 0})
    assert refused(reused)[:2] == (409, "producer_sequence_reused")


# Check and repair -----------------------------------------------------------------------------------------------------


def test_static_05_a_sound_topic_has_no_faults(orders: StaticTopic) -> None:
    orders.remapped(A)
    checked = orders.ask("POST", "/check").json
    assert checked["complete"] and checked["faults"] == [] and checked["total_queues"] == 4
    assert [(one["broker"], one["hosted"], one["copies"], one["epoch"]) for one in checked["mappings"]] == [
        (A, 4, 0, checked["epoch"]),
        (B, 0, 2, checked["epoch"]),
    ]
    assert orders.ask("POST", "/repair").json == {"topic": orders.name, "plan": False, "faults": [], "repaired": []}


@pytest.fixture
def torn(orders: StaticTopic) -> StaticTopic:
    """Queues 1 and 3 moved to broker-a, whose mapping is lost; broker-b has copies of these two."""
    orders.send_to(1, "a", "b")
    orders.remapped(B)
    orders.remapped(A, queues=[1, 3])
    orders.change(lambda _: [MappingRemoved(topic_id=orders.id, holder=A)])
    return orders


def test_static_05_a_torn_topic_is_refused_by_name_and_stays_as_it_is(torn: StaticTopic) -> None:
    before = torn.decided
    checked = torn.ask("POST", "/check").json
    assert not checked["complete"]
    faults = {(one["kind"], one["broker"], one["queue"]) for one in checked["faults"]}
    assert faults == {("missing", A, None), ("unled", None, 1), ("unled", None, 3)}
    for reply in (torn.remap(B), torn.put(8)):
        assert refused(reply)[:2] == (409, "mapping_incomplete")
        assert f"broker {A} has no mapping" in reply.json["detail"] and reply.json["faults"]
    assert torn.decided == before


def test_static_22_a_queue_that_cannot_be_had_keeps_its_place(torn: StaticTopic) -> None:
    assert [queue["partition"] for queue in torn.queues] == [name_of(queue) for queue in range(4)]
    assert [queue["state"] for queue in torn.queues] == ["serving", "queue_unserved", "serving", "queue_unserved"]
    assert torn.queues[1] == {
        "queue": 1,
        "partition": name_of(1),
        "state": "queue_unserved",
        "logical_partitions": [[256, 512]],
        "cluster": None,
        "stays": None,
        **dict.fromkeys(("min_offset", "max_offset", "messages", "holes", "epoch")),
        "segments": [],
    }


def test_static_22_a_keyed_send_to_a_queue_that_cannot_be_had_fails_and_goes_nowhere_else(torn: StaticTopic) -> None:
    before = torn.bodies()
    for message in ({"key": key_of(1), "body": "x"}, {"body": "x", "partition": name_of(1)}):
        for request in ({}, {"producer": {"id": "p", "seq": 0}}):
            reply = torn.api.send(torn.name, message, **request)
            assert refused(reply)[:2] == (503, "queue_unserved") and name_of(1) in reply.json["detail"]
    both = [{"key": key_of(0), "body": "x"}, {"key": key_of(3), "body": "x"}]
    assert torn.api.send(torn.name, *both).status == 503
    assert torn.bodies() == before
    assert torn.send({"key": key_of(0), "body": "x"})["ranges"][0]["partition"] == name_of(0)


def test_static_22_messages_without_a_key_avoid_queues_that_cannot_be_had(torn: StaticTopic) -> None:
    places = [torn.send(str(at), producer={"id": "p", "seq": at})["ranges"] for at in range(24)]
    places += [torn.send(*map(str, range(5)), producer={"id": "q", "seq": at})["ranges"] for at in range(8)]
    assert {one["partition"] for ranges in places for one in ranges} == {name_of(0), name_of(2)}


def test_static_05_a_repair_makes_the_mappings_anew_from_the_copies(torn: StaticTopic) -> None:
    plan = torn.ask("POST", "/repair", {"plan": True}).json
    assert plan["plan"] and {one["kind"] for one in plan["faults"]} == {"missing", "unled"}
    assert not torn.ask("POST", "/check").json["complete"], "a plan changes nothing"
    done = torn.ask("POST", "/repair").json
    assert done == {**plan, "plan": False} and done["repaired"] == [A, B]
    assert torn.ask("POST", "/check").json["complete"]
    assert torn.send_to(1, "c") == [2]
    assert torn.stored()[1] == [(0, "a"), (1, "b"), (2, "c")]
    assert torn.send({"key": key_of(3), "body": "x"})["ranges"][0]["partition"] == name_of(3)


def test_static_05_what_no_copy_has_is_told_and_not_made_up(orders: StaticTopic) -> None:
    orders.change(lambda _: [MappingRemoved(topic_id=orders.id, holder=A)])
    reply = orders.ask("POST", "/repair")
    assert refused(reply)[:2] == (409, "mapping_lost") and reply.json["queues"] == [0, 2]
    orders.change(lambda _: [MappingRemoved(topic_id=orders.id, holder=B)])
    assert refused(orders.api.send(orders.name, "x"))[:2] == (503, "queue_unserved"), "no queue is left"


def test_static_06_a_mapping_that_was_copied_by_hand_is_reported_and_ignored(orders: StaticTopic) -> None:
    mapping = orders.meta.mappings(orders.id).by_broker[A]
    orders.change(lambda _: [MappingPut(topic_id=orders.id, holder="broker-c", mapping=mapping)])
    (fault,) = orders.ask("POST", "/check").json["faults"]
    assert (fault["kind"], fault["broker"]) == ("copied", "broker-c")
    assert orders.send_to(0, "a") == [0]
    assert orders.ask("POST", "/repair").json["repaired"] == [A, B, "broker-c"]
    assert orders.ask("POST", "/check").json["complete"]


def test_static_18_a_deleted_topic_takes_everything_with_it(orders: StaticTopic) -> None:
    orders.send_to(0, "a")
    orders.remapped(B)
    topic_id = orders.id
    assert orders.ask("DELETE").status == 204
    assert not orders.meta.mappings(topic_id).by_broker and not orders.meta.moved_keys(topic_id).moves
    assert orders.put(2).status == 201
    assert orders.send_to(0, "b") == [0]
