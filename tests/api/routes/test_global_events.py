"""Event streams and fetches that wait on global topics, through either cluster (SPEC STATIC-13, 19)."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.api.routes.test_sse import EVENTS, _events
from tests.api.running import Api, Reply, until
from tests.api.two_clusters import NAMES, GlobalTopic, TwoClusters, name_of

Events = Iterator[dict[str, str]]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    with TwoClusters.running(tmp_path_factory.mktemp("clusters")) as running:
        yield running


def made(clusters: TwoClusters, name: str) -> GlobalTopic:
    topic = GlobalTopic(clusters.east, name)
    assert topic.create(2).status == 201
    return topic


@contextmanager
def stream(api: Api, topic: str, queue: int, query: str = "", **headers: str) -> Iterator[Events]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    sent = {"Accept": EVENTS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    with closing(connection):
        connection.request("GET", api.messages_path(topic, name_of(queue)) + query, headers=sent)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        yield _events(answer)


def message(event: dict[str, str], queue: int) -> tuple[int, str]:
    found = json.loads(event["data"])
    assert event["id"] == f"{name_of(queue)}:{found['offset']}"
    return found["offset"], found["body"]


@pytest.mark.parametrize("asked", NAMES)
@pytest.mark.parametrize("mode", ["strict", "available"])
def test_static_19_an_event_stream_follows_its_queue_from_cluster_to_cluster(
    clusters: TwoClusters, asked: str, mode: str
) -> None:
    topic = made(clusters, f"stream-{asked}-{mode}")
    sent = [(at, "a") for at in topic.send_to(0, "a", "a")]
    with stream(clusters.api[asked], topic.name, 0) as events:
        for target in ("west", "east", "west"):
            assert [message(next(events), 0) for _ in range(2)] == sent[-2:]
            assert topic.remap(target, mode=mode).status == 200
            sent += [(at, target) for at in topic.send_to(0, target, target)]
        assert [message(next(events), 0) for _ in range(2)] == sent[-2:]
    last = f"{name_of(0)}:{sent[2][0]}"
    with stream(clusters.api[asked], topic.name, 0, Last_Event_ID=last) as events:
        assert [message(next(events), 0) for _ in sent[3:]] == sent[3:], "it goes on after the last event"


@pytest.mark.parametrize("asked", NAMES)
def test_static_19_an_event_stream_filters_in_the_cluster_of_the_messages(clusters: TwoClusters, asked: str) -> None:
    topic = made(clusters, f"filtered-{asked}")
    for queue in (0, 1):
        messages: list[dict[str, object] | str] = [
            {"body": f"{at}", "partition": name_of(queue), "tag": "even" if at % 2 == 0 else "odd"} for at in range(6)
        ]
        assert topic.api.send(topic.name, *messages).status == 200
        with stream(clusters.api[asked], topic.name, queue, "?tags=even&offset=1") as events:
            assert [message(next(events), queue) for _ in range(2)] == [(2, "2"), (4, "4")]


def test_static_19_an_event_stream_says_that_a_cluster_is_away(tmp_path: Path) -> None:
    with TwoClusters.running(tmp_path) as clusters:
        topic = made(clusters, "orders")
        topic.send_to(1, "a")
        with stream(clusters.east, "orders", 1) as events:
            assert message(next(events), 1) == (0, "a")
            clusters.stop("west")
            refused = next(events)
            assert refused["event"] == "refused" and json.loads(refused["data"])["code"] in (
                "queue_unserved",
                "broker_unavailable",
            )
        reply = clusters.east.call("GET", clusters.east.messages_path("orders", name_of(1)), Accept=EVENTS)
        assert (reply.status, reply.json["code"], reply.json["cluster"]) == (503, "queue_unserved", "west")


def test_static_19_a_stopping_service_ends_its_streams_of_other_clusters(tmp_path: Path) -> None:
    with TwoClusters.running(tmp_path) as clusters:
        topic = made(clusters, "orders")
        topic.send_to(1, "a")
        with stream(clusters.east, "orders", 1) as events:
            assert message(next(events), 1) == (0, "a")
            until(lambda: any(one.has_waiters for one in list(clusters.west.service.partitions.awaited)))
            clusters.stop("east")
            assert list(events) == [], "it is not refused: the client asks again elsewhere"


@pytest.mark.parametrize("queue", [0, 1])
@pytest.mark.parametrize("asked", NAMES)
def test_static_19_a_fetch_waits_for_a_message_through_either_cluster(
    clusters: TwoClusters, asked: str, queue: int
) -> None:
    topic = made(clusters, f"waiting-{asked}-{queue}")
    found: list[Reply] = []
    one = topic.at(clusters.api[asked])
    thread = threading.Thread(target=lambda: found.append(one.fetch(queue, 0, "&wait_ms=20000")))
    thread.start()
    topic.send_to(queue, "late")
    thread.join(15)
    assert [(m["offset"], m["body"]) for m in found[0].json["messages"]] == [(0, "late")]
