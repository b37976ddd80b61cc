"""Reading the logical queues of static topics: one partition to clients, whatever segments it has (SPEC STATIC)."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from deltamq.mq.meta.static_topics import decide_drop_segments
from tests.api.running import ARROW, Api, Reply, config_for, running, until
from tests.api.static_queues import Q0, Q1, StaticTopic, hold_seals, on_loop
from tests.rows import next_millisecond

A, B = "broker-a", "broker-b"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service that seals only when a test asks for it."""
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        hold_seals(found)
        yield found


@pytest.fixture
def one(api: Api, topic: str) -> StaticTopic:
    """A topic with one queue on broker-a."""
    return StaticTopic(api, topic).put(1, A)


def numbers(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


# One queue of several segments ----------------------------------------------------------------------------------------


def test_static_02_a_queue_reads_like_a_partition(api: Api, one: StaticTopic) -> None:
    one.send(0, *numbers("a", 3))
    found = one.fetch(1)
    assert [(m["offset"], m["body"]) for m in found["messages"]] == [(1, "a1"), (2, "a2")]
    assert (found["status"], found["next_offset"], found["min_offset"], found["max_offset"]) == ("found", 3, 0, 3)
    assert one.fetch(3)["status"] == "no_new_message"
    assert one.fetch(4) == {
        "status": "offset_too_large",
        "messages": [],
        "next_offset": 3,
        "min_offset": 0,
        "max_offset": 3,
    }


def test_static_13_reading_goes_on_over_strict_remappings_without_a_hole(one: StaticTopic) -> None:
    for number, broker in enumerate((B, A, B)):
        one.send(0, *numbers(f"{number}-", 3))
        one.remap(broker)
    one.send(0, "last")
    assert one.read_all() == list(
        enumerate([*numbers("0-", 3), *numbers("1-", 3), *numbers("2-", 3), "last"]),
    )
    assert one.read_all(at_once=2) == one.read_all()


def test_static_13_reading_goes_on_over_jumps_and_empty_segments(one: StaticTopic) -> None:
    one.send(0, *numbers("a", 3))
    one.remap(B, mode="available")
    one.remap(A, mode="available")
    one.send(0, *numbers("c", 2))
    one.remap(B)
    one.send(0, "d")
    assert one.read_all() == [(0, "a0"), (1, "a1"), (2, "a2"), (20_000, "c0"), (20_001, "c1"), (20_002, "d")]
    assert one.fetch(2)["next_offset"] == 10_000, "the end of a closed segment: the next one's first offset"


def test_static_13_one_answer_never_crosses_a_segment(one: StaticTopic) -> None:
    one.send(0, *numbers("a", 3))
    one.remap(B)
    one.send(0, *numbers("b", 3))
    first = one.fetch(0)
    assert ([m["body"] for m in first["messages"]], first["next_offset"]) == (["a0", "a1", "a2"], 3)
    assert (first["min_offset"], first["max_offset"]) == (0, 6), "the bounds are those of the whole queue"
    assert [m["body"] for m in one.fetch(3)["messages"]] == ["b0", "b1", "b2"]


def test_static_14_an_offset_in_a_hole_is_corrected_forward(one: StaticTopic) -> None:
    one.send(0, *numbers("a", 3))
    one.remap(B, mode="available")
    assert one.fetch(5_000)["status"] == "no_new_message"
    assert one.fetch(5_000)["next_offset"] == 10_000
    one.send(0, "b")
    for offset in (3, 5_000, 9_999, 10_000):
        assert [(m["offset"], m["body"]) for m in one.fetch(offset)["messages"]] == [(10_000, "b")]


def test_static_14_only_the_earliest_segment_answers_too_small_and_only_the_newest_too_large(
    one: StaticTopic,
) -> None:
    for broker in (B, A):
        one.send(0, *numbers(broker[-1], 4))
        one.remap(broker)
    one.send(0, "last")
    first, middle, _ = one.queue().segments
    one.log(first.partition).delete_below(2)
    one.log(middle.partition).delete_below(3)
    small = one.fetch(1)
    assert (small["status"], small["next_offset"], small["min_offset"]) == ("offset_too_small", 2, 2)
    assert small["max_offset"] == 9
    assert [m["offset"] for m in one.fetch(2)["messages"]] == [2, 3]
    assert [m["offset"] for m in one.fetch(4)["messages"]] == [7], "retention took the beginning: go forward"
    assert [m["offset"] for m in one.fetch(8)["messages"]] == [8]
    assert one.fetch(9)["status"] == "no_new_message"
    assert (one.fetch(10)["status"], one.fetch(10)["next_offset"]) == ("offset_too_large", 9)


def test_static_13_segments_that_expired_whole_never_stall_a_reader(one: StaticTopic) -> None:
    for broker in (B, A):
        one.send(0, *numbers(broker[-1], 4))
        one.remap(broker)
    one.send(0, "last")
    first, middle, _ = one.queue().segments
    one.log(middle.partition).delete_below(4)
    assert one.fetch(3)["next_offset"] == 4
    assert [m["body"] for m in one.fetch(4)["messages"]] == ["last"]
    one.log(first.partition).delete_below(4)
    small = one.fetch(0)
    assert (small["status"], small["next_offset"]) == ("offset_too_small", 4), "the earliest segment's end"
    assert [m["body"] for m in one.fetch(4)["messages"]] == ["last"]


# A remapping that is not finished -------------------------------------------------------------------------------------


def test_static_10_while_the_leader_is_undecided_reading_ends_at_the_old_one(one: StaticTopic) -> None:
    one.send(0, *numbers("a", 3))
    one.begin_remap(B, mode="available")
    one.send(0, "b")
    assert one.fetch(0)["max_offset"] == 3
    assert (one.fetch(3)["status"], one.fetch(3)["max_offset"]) == ("no_new_message", 3)
    assert one.fetch(4)["status"] == "offset_too_large"
    one.seal()
    assert [(m["offset"], m["body"]) for m in one.fetch(3)["messages"]] == [(10_000, "b")]


def test_static_08_until_a_strict_remapping_is_sealed_messages_are_read_in_the_old_segment(one: StaticTopic) -> None:
    one.send(0, "a0")
    one.begin_remap(B)
    one.send(0, "a1")
    assert [m["body"] for m in one.fetch(0)["messages"]] == ["a0", "a1"]
    one.seal()
    one.send(0, "b0")
    assert one.read_all() == [(0, "a0"), (1, "a1"), (2, "b0")]


# Waiting --------------------------------------------------------------------------------------------------------------


def waiting_fetch(one: StaticTopic, offset: int) -> tuple[threading.Thread, list[Reply]]:
    """Begin a long poll, and return when it waits."""
    answers: list[Reply] = []

    def ask() -> None:
        answers.append(one.api.fetch(one.name, Q0, f"?offset={offset}&wait_ms=20000"))

    thread = threading.Thread(target=ask)
    thread.start()
    partition = one.queue().newest_readable.partition
    found = one.api.service.topics.find(one.name)
    assert found is not None
    until(lambda: found.partition(partition)._waiters)
    return thread, answers


def test_static_13_a_waiting_reader_gets_the_next_message(one: StaticTopic) -> None:
    thread, answers = waiting_fetch(one, 0)
    one.send(0, "a")
    thread.join(10)
    assert [m["body"] for m in answers[0].json["messages"]] == ["a"]


@pytest.mark.parametrize(("mode", "first"), [("strict", 1), ("available", 10_000)])
def test_static_13_a_waiting_reader_follows_a_remapping(api: Api, topic: str, mode: str, first: int) -> None:
    one = StaticTopic(api, topic).put(1, A)
    one.send(0, "a")
    thread, answers = waiting_fetch(one, 1)
    one.remap(B, mode="strict" if mode == "strict" else "available")
    one.send(0, "b")
    thread.join(10)
    assert [(m["offset"], m["body"]) for m in answers[0].json["messages"]] == [(first, "b")]


def test_static_10_a_waiting_reader_gets_what_was_sent_before_the_offsets_were_decided(one: StaticTopic) -> None:
    one.send(0, "a")
    one.begin_remap(B, mode="available")
    one.send(0, "b")
    thread, answers = waiting_fetch(one, 1)
    one.seal()
    thread.join(10)
    assert [(m["offset"], m["body"]) for m in answers[0].json["messages"]] == [(10_000, "b")]


# Other forms of answers -----------------------------------------------------------------------------------------------


def test_static_02_arrow_answers_have_logical_offsets(one: StaticTopic) -> None:
    one.send(0, *numbers("a", 3))
    one.remap(B, mode="available")
    one.send(0, *numbers("b", 3))
    reply = one.api.fetch(one.name, Q0, "?offset=10001", ARROW)
    assert reply.table.column("offset").to_pylist() == [10_001, 10_002]
    assert reply.table.column("body").to_pylist() == [b"b1", b"b2"]
    told = {name: reply.headers[f"mq-{name}-offset"] for name in ("next", "min", "max")}
    assert told == {"next": "10003", "min": "0", "max": "10003"}


def events(one: StaticTopic, offset: int, count: int, **headers: str) -> list[str]:
    """Return the ids of the first events of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", one.api.port, timeout=20)
    path = f"/v1/topics/{one.name}/partitions/{quote(Q0)}/messages?offset={offset}"
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET", path, headers={"Accept": "text/event-stream", **sent})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    found: list[str] = []
    while len(found) < count:
        line = answer.readline().decode()
        assert line, "the stream ended"
        if line.startswith("id: "):
            found.append(line.removeprefix("id: ").strip())
    connection.close()
    return found


def test_static_02_event_streams_have_logical_ids_and_are_resumed_by_them(one: StaticTopic) -> None:
    one.send(0, *numbers("a", 2))
    one.remap(B, mode="available")
    one.send(0, *numbers("b", 2))
    assert events(one, 0, 4) == [f"{Q0}:{offset}" for offset in (0, 1, 10_000, 10_001)]
    assert events(one, 0, 3, Last_Event_ID=f"{Q0}:0") == [f"{Q0}:{offset}" for offset in (1, 10_000, 10_001)]


def test_static_13_a_tag_filter_passes_over_whole_segments(one: StaticTopic) -> None:
    one.send(0, *numbers("a", 3))
    one.remap(B)
    one.send(0, *numbers("b", 2))
    one.remap(A, mode="available")
    one.send(0, "c")
    found = one.fetch(0, query="&tags=none")
    assert (found["status"], found["messages"], found["next_offset"]) == ("no_new_message", [], 10_001)


# Names and times ------------------------------------------------------------------------------------------------------


def test_static_22_a_physical_queue_is_refused_by_name(api: Api, one: StaticTopic) -> None:
    one.remap(B)
    for segment in one.queue().segments:
        reply = api.fetch(one.name, segment.partition)
        assert (reply.status, reply.json["code"], reply.json["partition"]) == (422, "physical_partition", Q0)
    reply = api.fetch(one.name, Q1)
    assert (reply.status, reply.json["code"]) == (404, "partition_not_found")


def test_static_15_offsets_by_time_are_logical_and_look_at_all_segments(api: Api, topic: str) -> None:
    two = StaticTopic(api, topic).put(2, A)
    two.send(0, "a0")
    two.remap(B, mode="available", queues=[0])
    two.remap(A, mode="available", queues=[0])
    two.send(0, "c0")
    next_millisecond()
    two.send(0, "c1")
    times = [two.fetch(offset)["messages"][0]["append_time"] for offset in (0, 20_000, 20_001)]

    def by_time(time: str) -> dict[str, int]:
        reply = api.call("GET", f"/v1/topics/{topic}/offsets?time={quote(time)}")
        assert reply.status == 200, reply
        return {one["partition"]: one["offset"] for one in reply.json["offsets"]}

    assert [by_time(time) for time in times] == [{Q0: offset, Q1: 0} for offset in (0, 20_000, 20_001)]
    assert by_time("2999-01-01T00:00:00Z") == {Q0: 20_002, Q1: 0}
    assert by_time("2001-01-01T00:00:00Z") == {Q0: 0, Q1: 0}


def test_static_17_what_was_dropped_is_before_the_beginning(api: Api, one: StaticTopic) -> None:
    one.send(0, *numbers("a", 3))
    one.remap(B)
    one.send(0, *numbers("b", 2))
    first = one.queue().segments[0].partition
    one.log(first).delete_below(3)
    assert first in {partition.name for partition in api.service.partitions}
    on_loop(
        api,
        api.service.meta.submit_any(lambda meta: decide_drop_segments(meta, meta.topics.topic(one.name), {first})),
    )
    assert len(one.queue().segments) == 1
    assert first not in {partition.name for partition in api.service.partitions}, "its folder will be deleted"
    small = one.fetch(0)
    assert (small["status"], small["next_offset"], small["min_offset"]) == ("offset_too_small", 3, 3)
    assert [(m["offset"], m["body"]) for m in one.fetch(3)["messages"]] == [(3, "b0"), (4, "b1")]
