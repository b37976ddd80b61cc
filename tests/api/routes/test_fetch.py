"""Fetching: statuses, limits, tag filters, long polls, Arrow."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from deltamq.api.wire.message_json import stored_messages
from deltamq.mq.limits import WAIT_MS_MAX
from deltamq.tables.delta.stamped import RowsPart
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.schema import MESSAGE_SCHEMA
from tests.api.running import ARROW, JSON, PROBLEM, Api, arrow_stream, config_for, running, until

pytestmark = pytest.mark.static_too


@pytest.fixture
def ten(api: Api, topic: str) -> tuple[str, str]:
    """A topic of one partition with ten messages, bodies 0 to 9, tags a, b, none in turn; (topic, partition)."""
    api.put_topic(topic, partitions=1)
    tags = ["a", "b", None]
    messages = [{"body": str(i), "tag": tags[i % 3]} for i in range(10)]
    assert api.send(topic, *messages).status == 200
    return topic, f"{topic}@broker-a"


@pytest.mark.parametrize(
    ("query", "status", "bodies", "next_offset"),
    [
        ("", "found", "0123456789", 10),
        ("?offset=7", "found", "789", 10),
        ("?offset=2&max_messages=3", "found", "234", 5),
        ("?max_bytes=1", "found", "0", 1),
        ("?offset=10", "no_new_message", "", 10),
        ("?offset=11", "offset_too_large", "", 10),
        ("?offset=9223372036854775807", "offset_too_large", "", 10),
    ],
)
def test_a_fetch_says_what_is_there_and_where_to_go_on(
    api: Api, ten: tuple[str, str], query: str, status: str, bodies: str, next_offset: int
) -> None:
    answer = api.fetch(*ten, query).json
    assert {k: v for k, v in answer.items() if k != "messages"} == {
        "status": status,
        "next_offset": next_offset,
        "min_offset": 0,
        "max_offset": 10,
    }
    assert "".join(m["body"] for m in answer["messages"]) == bodies


@pytest.mark.parametrize(
    ("tags", "limits", "bodies", "next_offset"),
    [
        ("*", "", "0123456789", 10),
        ("a", "", "0369", 10),
        ("a||b", "", "0134679", 10),
        (" a || b ", "", "0134679", 10),
        ("c", "", "", 10),
        ("b", "&max_messages=2", "14", 7),
        ("b", "&max_messages=1&offset=2", "4", 7),
        ("a", "&max_bytes=1", "0", 3),
    ],
)
def test_cons_03_filtered_messages_count_as_consumed(
    api: Api, ten: tuple[str, str], tags: str, limits: str, bodies: str, next_offset: int
) -> None:
    answer = api.fetch(*ten, f"?tags={tags.replace(' ', '%20')}{limits}").json
    assert "".join(m["body"] for m in answer["messages"]) == bodies
    assert answer["next_offset"] == next_offset
    assert answer["status"] == ("found" if bodies else "no_new_message")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (ARROW, ARROW),
        ("Application/VND.Apache.Arrow.Stream", ARROW),
        (f"{JSON};q=0.1 , {ARROW} ; q=0.5", ARROW),
        (f"{JSON}, {ARROW}, text/event-stream, {PROBLEM}", JSON),
        (f"{PROBLEM}, {ARROW}, {JSON}", ARROW),
        (f"{ARROW};q=0.9, {JSON}", JSON),
        (f"{ARROW};q=0, {JSON}", JSON),
        (f"{ARROW}; Q=0.000", JSON),
        (f"{ARROW}+more", JSON),
        ("text/event-stream;q=0", JSON),
        ("TEXT/Event-Stream; charset=utf-8", "text/event-stream; charset=utf-8"),
        ("*/*", JSON),
        ("", JSON),
    ],
)
def test_accept_is_read_as_http_says(api: Api, ten: tuple[str, str], accept: str, kind: str) -> None:
    topic, partition = ten
    path = api.messages_path(topic, partition)
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["content-type"]) == (200, kind)
    if "stream;" not in kind:
        popped = api.call("POST", f"/v1/groups/{topic}.g/topics/{topic}/pop", {}, Accept=accept)
        assert popped.headers["content-type"] == kind


def test_arrow_answers_hold_the_message_row_and_the_place_in_headers(api: Api, ten: tuple[str, str]) -> None:
    reply = api.fetch(*ten, "?offset=2&max_messages=3", ARROW)
    assert reply.headers["content-type"] == ARROW
    assert reply.table.schema == MESSAGE_SCHEMA
    assert reply.table.column("body").to_pylist() == [b"2", b"3", b"4"]
    place = {k: v for k, v in reply.headers.items() if k.startswith("mq-")}
    assert place == {"mq-status": "found", "mq-next-offset": "5", "mq-min-offset": "0", "mq-max-offset": "10"}
    empty = api.fetch(*ten, "?offset=10", ARROW)
    assert empty.headers["mq-status"] == "no_new_message" and empty.table.num_rows == 0


def test_many_small_commits_come_back_as_one_batch(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    for i in range(20):
        api.send(topic, str(i))
    reply = api.fetch(topic, f"{topic}@broker-a", accept=ARROW)
    assert reply.table.column("body").to_pylist() == [str(i).encode() for i in range(20)]
    assert reply.table.column("body").num_chunks == 1


def test_large_answers_are_the_same_as_small_ones(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    bodies = [f"{i:07d}".encode() * 100 for i in range(6_000)]
    assert api.produce(topic, arrow_stream(body=bodies), ARROW).status == 200
    reply = api.fetch(topic, f"{topic}@broker-a", "?max_messages=100000&max_bytes=67108864", ARROW)
    assert reply.table.column("body").to_pylist() == bodies
    assert reply.table.column("offset").to_pylist() == list(range(6_000))
    listed = api.fetch(topic, f"{topic}@broker-a", "?max_messages=5000&max_bytes=67108864").json["messages"]
    assert [m["body"].encode() for m in listed] == bodies[:5000]


def test_one_message_comes_whatever_max_bytes_says(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "x" * 1_000_000, "y")
    answer = api.fetch(topic, f"{topic}@broker-a", "?max_bytes=1000").json
    assert [len(m["body"]) for m in answer["messages"]] == [1_000_000] and answer["next_offset"] == 1


# Long polls ---------------------------------------------------------------------------------------------------


def test_a_long_poll_is_woken_by_the_commit(api: Api, ten: tuple[str, str]) -> None:
    with ThreadPoolExecutor(4) as threads:
        began = time.perf_counter()
        polls = [threads.submit(api.fetch, *ten, f"?offset=10&wait_ms={WAIT_MS_MAX}") for _ in range(4)]
        _wait_for_waiters(api, ten)
        api.send(ten[0], "new")
        answers = [poll.result().json for poll in polls]
        assert time.perf_counter() - began < WAIT_MS_MAX / 1_000, "not at the end of their waits"
    assert [[m["body"] for m in a["messages"]] for a in answers] == [["new"]] * 4


def test_a_long_poll_without_news_ends_in_time(api: Api, ten: tuple[str, str]) -> None:
    began = time.perf_counter()
    answer = api.fetch(*ten, "?offset=10&wait_ms=300").json
    assert answer["status"] == "no_new_message" and time.perf_counter() - began > 0.25


def test_a_long_poll_with_a_filter_passes_over_other_messages(api: Api, ten: tuple[str, str]) -> None:
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(api.fetch, *ten, "?offset=10&wait_ms=15000&tags=wanted")
        _wait_for_waiters(api, ten)
        api.send(ten[0], {"body": "other", "tag": "x"})
        api.send(ten[0], {"body": "mine", "tag": "wanted"})
        answer = poll.result().json
    assert [m["body"] for m in answer["messages"]] == ["mine"] and answer["next_offset"] == 12


def _wait_for_waiters(api: Api, ten: tuple[str, str]) -> None:
    hosted = api.service.topics.find(ten[0])
    assert hosted is not None
    partition = hosted.partition(ten[1])
    deadline = time.monotonic() + 10
    while not partition.has_waiters:
        assert time.monotonic() < deadline, "nobody waits"
        threading.Event().wait(0.005)


def test_commits_of_other_processes_are_seen_and_wake_readers(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        api.put_topic("orders", partitions=1)
        other = Warehouse.open(str(tmp_path))
        log = other.open_partition(PartitionRef(Space.TOPICS, "orders", "orders@broker-a"))
        with ThreadPoolExecutor(1) as threads:
            poll = threads.submit(api.fetch, "orders", "orders@broker-a", "?wait_ms=15000")
            _wait_for_waiters(api, ("orders", "orders@broker-a"))
            log.append_rows(pa.RecordBatch.from_pydict({"body": [b"theirs"]}), [RowsPart(1)])
            assert [m["body"] for m in poll.result().json["messages"]] == ["theirs"]
        log.append_rows(pa.RecordBatch.from_pydict({"body": [b"more"]}), [RowsPart(1)])
        # Without a wait of its own a fetch looks only when the last look is old.
        until(lambda: api.fetch("orders", "orders@broker-a", "?offset=1").json["messages"])
        assert api.fetch("orders", "orders@broker-a", "?offset=1").json["messages"][0]["body"] == "more"
        other.close()


def _reaches(api: Api, query: str, end: int) -> bool:
    return bool(api.fetch("orders", "orders@broker-a", query).json["max_offset"] == end)


def test_who_reads_from_the_start_sees_what_others_append_meanwhile(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        api.put_topic("orders", partitions=1)
        api.send("orders", "0", "1")
        other = Warehouse.open(str(tmp_path))
        log = other.open_partition(PartitionRef(Space.TOPICS, "orders", "orders@broker-a"))
        for count in (3, 4):
            log.append_rows(pa.RecordBatch.from_pydict({"body": [b"theirs"]}), [RowsPart(1)])
            # Far from the end, too, where a read finds what it asked for without looking.
            query = "" if count == 3 else "?max_messages=1"
            until(partial(_reaches, api, query, count))
        assert len(api.fetch("orders", "orders@broker-a").json["messages"]) == 4
        other.close()


def test_a_stopping_service_answers_its_long_polls(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        with running(config_for(tmp_path)) as api:
            api.put_topic("orders", partitions=1)
            began = time.perf_counter()
            poll = threads.submit(api.fetch, "orders", "orders@broker-a", f"?wait_ms={WAIT_MS_MAX}")
            _wait_for_waiters(api, ("orders", "orders@broker-a"))
        assert poll.result().json["status"] == "no_new_message"
        assert time.perf_counter() - began < WAIT_MS_MAX / 1_000, "not at the end of its wait"


# Leaves -------------------------------------------------------------------------------------------------------


def test_rows_of_every_kind_become_json_messages() -> None:
    row = {
        "offset": 3,
        "message_id": "i",
        "key": None,
        "tag": None,
        "headers": [("a", None)],
        "body": b"\x80",
        "born_time": 0,
        "append_time": 1,
        "deliver_time": 2,
        "reconsume_times": 2,
        "origin": {"topic": "t", "partition": "t@a", "offset": 9},
        "producer_id": "p",
        "producer_seq": 4,
    }
    (message,) = stored_messages(pa.Table.from_pylist([row], MESSAGE_SCHEMA))
    assert (message.body, message.body_base64, message.headers) == (None, "gA==", {"a": None})
    assert message.origin is not None and message.origin.partition == "t@a"
    assert (message.born_time, message.deliver_time) == ("1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000002Z")
    assert (message.reconsume_times, message.producer_id, message.producer_seq) == (2, "p", 4)
