"""Server-sent events: an open fetch, resumed by `Last-Event-ID`, ended by the service's stop."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from deltamq.api.reading.event_stream import SharedReads
from deltamq.api.wire.request import Client, ClientDisconnected
from deltamq.mq.errors import DeltaMQError, Unknown
from deltamq.mq.static.queue_names import queue_name
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


class _Reading:
    """Streams that read together without a service: their clients, and the reads that were made."""

    def __init__(self) -> None:
        self.shared = SharedReads()
        self.reads = 0
        self.answers: asyncio.Queue[str | DeltaMQError] = asyncio.Queue()

    def client(self) -> Client:
        async def receive() -> dict[str, str]:
            await asyncio.Event().wait()
            raise AssertionError("the client says nothing")

        return Client({}, receive)

    def begin(self, client: Client, key: str = "at 5") -> asyncio.Task[str]:
        async def lead() -> str:
            self.reads += 1
            answer = asyncio.ensure_future(self.answers.get())
            try:
                await asyncio.wait({answer, client.gone}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    raise ClientDisconnected
                if isinstance(answer.result(), DeltaMQError):
                    raise answer.result()
                return answer.result()
            finally:
                answer.cancel()

        return asyncio.ensure_future(self.shared.read(key, client, lead))


def _together(play: Callable[[_Reading], Coroutine[None, None, None]]) -> None:
    async def played() -> None:
        reading = _Reading()
        await asyncio.wait_for(play(reading), 30)
        assert not reading.shared._flights, "nothing is kept of a read that is over"

    asyncio.run(played())


@pytest.mark.plain_only(why="it asks no service")
def test_look_20_one_reads_for_all_that_are_at_the_same_offset() -> None:
    async def play(reading: _Reading) -> None:
        streams = [reading.begin(reading.client()) for _ in range(100)]
        other = reading.begin(reading.client(), "at 9")
        await asyncio.sleep(0)
        assert reading.reads == 2
        reading.answers.put_nowait("piece")
        pieces = await asyncio.gather(*streams)
        assert pieces == ["piece"] * 100 and not other.done()
        reading.answers.put_nowait("another")
        assert await other == "another"
        reading.answers.put_nowait("later")
        assert await reading.begin(reading.client()) == "later" and reading.reads == 3

    _together(play)


@pytest.mark.plain_only(why="it asks no service")
def test_look_20_a_stream_that_goes_takes_nothing_from_the_others() -> None:
    async def play(reading: _Reading) -> None:
        clients = [reading.client() for _ in range(4)]
        leader, follower, *rest = (reading.begin(client) for client in clients)
        await asyncio.sleep(0)
        for client, stream in ((clients[1], follower), (clients[0], leader)):
            client.leave()
            with pytest.raises(ClientDisconnected):
                await stream
        await asyncio.sleep(0)
        assert reading.reads == 2, "one of the others reads in the place of the one that went"
        rest[0].cancel()
        await asyncio.wait(rest[:1])
        reading.answers.put_nowait("piece")
        assert await rest[1] == "piece"

    _together(play)


@pytest.mark.plain_only(why="it asks no service")
def test_look_20_what_cannot_be_read_ends_every_stream_at_once() -> None:
    async def play(reading: _Reading) -> None:
        streams = [reading.begin(reading.client()) for _ in range(100)]
        await asyncio.sleep(0)
        reading.answers.put_nowait(Unknown("the topic was deleted", code="topic_not_found"))
        ends = await asyncio.gather(*streams, return_exceptions=True)
        assert {getattr(end, "code", None) for end in ends} == {"topic_not_found"} and reading.reads == 1

    _together(play)
