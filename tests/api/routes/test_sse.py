"""Server-sent events: an open fetch, resumed by `Last-Event-ID`, ended by the service's stop."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from deltamq.api.routes.fetch import EventIds, SentPieces
from deltamq.mq.static.logical_queue import queue_name
from deltamq.tables.log.fetch import Fetched, FetchStatus
from deltamq.tables.schema import MESSAGE_SCHEMA
from tests.api.running import Api, config_for, running, until

pytestmark = pytest.mark.static_too

EVENTS = "text/event-stream"


@contextmanager
def stream(api: Api, topic: str, query: str = "", **headers: str) -> Iterator[Iterator[dict[str, str]]]:
    """The events of partition broker-a, each as its fields; comments are passed over."""
    path = api.messages_path(topic, f"{topic}@broker-a") + query
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
    with closing(connection):
        connection.request(
            "GET", path, headers={"Accept": EVENTS, **{k.replace("_", "-"): v for k, v in headers.items()}}
        )
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["content-type"].startswith(EVENTS)
        yield _events(answer)


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    while line := answer.readline():
        text = line.decode().rstrip("\n")
        if not text and fields:
            yield fields
            fields = {}
        elif text and not text.startswith(":"):
            name, _, value = text.partition(": ")
            fields[name] = value


def test_events_carry_messages_as_they_are_committed(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a", "b")
    with stream(api, topic, "?offset=1") as events:
        first = next(events)
        place = api.service_name(topic, f"{topic}@broker-a")
        assert first["id"] == f"{place}:1" and json.loads(first["data"])["body"] == "b"
        api.send(topic, "line\nbreak")
        assert json.loads(next(events)["data"])["body"] == "line\nbreak"


def test_a_stream_is_resumed_after_the_last_event(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, *[{"body": str(i), "tag": "even" if i % 2 == 0 else "odd"} for i in range(6)])
    last = f"{api.service_name(topic, f'{topic}@broker-a')}:2"
    with stream(api, topic, "?tags=even", Last_Event_ID=last) as events:
        assert json.loads(next(events)["data"])["body"] == "4"


def test_a_last_event_of_another_partition_is_refused(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    path = f"/v1/topics/{topic}/partitions/{topic}%40broker-a/messages"
    for wrong in ("7", f"{topic}@broker-b:7", f"{topic}@broker-a:-1", f"{topic}@broker-a:"):
        reply = api.call("GET", path, Accept=EVENTS, Last_Event_ID=wrong)
        assert (reply.status, reply.json["field"]) == (422, "Last-Event-ID")


def test_a_stream_beyond_the_end_says_so_and_ends(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    with stream(api, topic, "?offset=5") as events:
        (event,) = events
    assert event["event"] == "offset_too_large" and json.loads(event["data"])["max_offset"] == 0


def test_a_stopping_service_ends_its_streams(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        api.put_topic("orders", partitions=1)
        api.send("orders", "a")
        opened = stream(api, "orders")
        events = opened.__enter__()
        assert json.loads(next(events)["data"])["body"] == "a"
    assert list(events) == []
    opened.__exit__(None, None, None)


@pytest.mark.parametrize("again", [False, True])
def test_a_stream_whose_topic_is_deleted_says_so_and_ends_at_once(
    api: Api, topic: str, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    """A topic of the same name that is made at once is another one."""
    api.put_topic(topic, partitions=1)
    api.send(topic, "a")
    partition = api.hosted(topic, f"{topic}@broker-a")
    with stream(api, topic) as events:
        assert json.loads(next(events)["data"])["body"] == "a"
        until(lambda: partition.has_waiters)
        assert api.call("DELETE", f"/v1/topics/{topic}").status == 204
        if again:
            api.put_topic(topic, partitions=1)
        (refused,) = events
    assert refused["event"] == "refused"
    assert json.loads(refused["data"])["code"] in (("topic_not_found", "topic_changed") if again else "topic_not_found")
    assert "refresh_failed" not in caplog.text and "Exception in ASGI" not in caplog.text


def test_a_fetch_that_waits_ends_when_its_topic_is_deleted(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    partition = api.hosted(topic, f"{topic}@broker-a")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.fetch, topic, f"{topic}@broker-a", "?wait_ms=20000")
        until(lambda: partition.has_waiters)
        assert api.call("DELETE", f"/v1/topics/{topic}").status == 204
        answer = waiting.result(60)
    assert (answer.status, answer.json["code"]) == (404, "topic_not_found")


def test_look_20_streams_that_follow_a_partition_together_get_every_message_once(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    wanted = [str(number) for number in range(300)]

    def followed(query: str, count: int) -> list[str]:
        with stream(api, topic, query) as events:
            return [json.loads(next(events)["data"])["body"] for _ in range(count)]

    with ThreadPoolExecutor(9) as threads:
        whole = [threads.submit(followed, "", 300) for _ in range(6)]
        odd = [threads.submit(followed, "?tags=odd", 150) for _ in range(2)]
        for start in range(0, 300, 10):
            batch = [{"body": body, "tag": "odd" if int(body) % 2 else "even"} for body in wanted[start : start + 10]]
            assert api.send(topic, *batch).status == 200
            if start == 150:
                late = threads.submit(followed, "?offset=100", 200)
        assert [follower.result(30) for follower in whole] == [wanted] * 6
        assert [follower.result(30) for follower in odd] == [wanted[1::2]] * 2
        assert late.result(30) == wanted[100:]


@pytest.mark.plain_only(why="it makes static topics itself")
def test_look_20_queues_of_the_same_name_share_nothing(api: Api, topic: str) -> None:
    for name in (topic, f"{topic}-other"):
        api.put_topic(name, static=True, total_queues=1)
        assert api.send(name, f"of {name}").status == 200
    for name in (topic, f"{topic}-other", topic):
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
        with closing(connection):
            connection.request("GET", api.messages_path(name, queue_name(0)), headers={"Accept": EVENTS})
            assert json.loads(next(_events(connection.getresponse()))["data"])["body"] == f"of {name}"


def _fetched(*offsets: int, next_offset: int) -> Fetched:
    row = {"message_id": "m", "body": b"x", "append_time": 0, "reconsume_times": 0, "deliver_time": 0, "born_time": 0}
    rows = [{**row, "offset": offset} for offset in offsets]
    table = pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)
    return Fetched(FetchStatus.FOUND, table, next_offset, 0, next_offset)


@pytest.mark.plain_only(why="it asks no service")
def test_look_20_a_piece_is_made_once_for_all_that_are_at_the_same_offset() -> None:
    pieces = SentPieces()
    one, other = EventIds("0@q", "0@q", ("id-1", "0@q")), EventIds("0@q", "0@q", ("id-2", "0@q"))
    first = pieces.text(one, _fetched(5, 6, next_offset=7))
    assert pieces.text(one, _fetched(5, 6, next_offset=7)) is first
    assert pieces.text(other, _fetched(5, 6, next_offset=7)) is not first
    assert pieces.text(one, _fetched(6, next_offset=7)).count(b"id: ") == 1
    holes = _fetched(5, 8, next_offset=9)
    assert pieces.text(one, holes).count(b"id: ") == 2 and pieces.text(one, holes) is not pieces.text(one, holes)
    for number in range(200):
        pieces.text(EventIds("0@q", "0@q", (str(number), "0@q")), _fetched(1, next_offset=2))
    assert len(pieces._pieces) <= 64
