"""Server-sent events: an open fetch, resumed by `Last-Event-ID`, ended by the service's stop."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

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
