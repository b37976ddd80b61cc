"""Messages wait for others that share their commit, as long as their topic and request allow (SPEC SEND-14)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer

from deltamq import Admin, Producer
from deltamq.mq.client.cli import root as cli
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.shells.shell import Answer
from tests.api.kafka.door import kafka_running
from tests.api.running import ARROW, NDJSON, Api, Reply, arrow_stream, config_for, running, until

#: Longer than any test takes.
LONG_MS = 60_000
AT_ONCE = "?commit_window_ms=0"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(config_for(tmp_path / "warehouse")) as api:
        yield api


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def _partition(api: Api) -> dict[str, Any]:
    (partition,) = api.partitions("orders").values()
    found: dict[str, Any] = partition
    return found


def _wait(api: Api, count: int) -> None:
    """Return when so many requests wait for their commit."""
    queue = api.hosted("orders", _partition(api)["partition"]).queue
    until(lambda: len(queue._waiting) == count)


def _offsets(*replies: Future[Reply] | Reply) -> list[int]:
    """Return the offset of each request's first message, once all are answered."""
    answers = [reply.result() if isinstance(reply, Future) else reply for reply in replies]
    assert [answer.status for answer in answers] == [200] * len(answers), answers
    return [answer.json["ranges"][0]["base_offset"] for answer in answers]


@pytest.mark.parametrize("strategy", ["best_tried", "strict"])
def test_send_14_messages_of_several_producers_share_one_commit(
    api: Api, pool: ThreadPoolExecutor, strategy: str
) -> None:
    api.put_topic("orders", partitions=1, commit_window_ms=LONG_MS, order_strategy=strategy)
    before = _partition(api)["version"]
    first = pool.submit(api.send, "orders", "a")
    _wait(api, 1)
    second = pool.submit(api.produce, "orders", '{"body": "b"}', NDJSON)
    _wait(api, 2)
    third = pool.submit(api.produce, "orders", arrow_stream(body=[b"c"]), ARROW, "?commit_window_ms=300")
    assert _offsets(first, second, third) == [0, 1, 2]
    assert _partition(api)["version"] == before + 1
    assert api.bodies_of("orders", _partition(api)["partition"]) == ["a", "b", "c"]


def test_send_14_a_request_that_does_not_wait_takes_along_what_does(api: Api, pool: ThreadPoolExecutor) -> None:
    api.put_topic("orders", partitions=1, commit_window_ms=LONG_MS)
    before = _partition(api)["version"]
    waiting = pool.submit(api.send, "orders", "a", query=f"?commit_window_ms={LONG_MS}")
    _wait(api, 1)
    assert _partition(api)["max_offset"] == 0 and not waiting.done()
    assert _offsets(api.send("orders", "b", query=AT_ONCE), waiting) == [1, 0]
    assert _partition(api)["version"] == before + 1


def test_send_14_what_waits_keeps_its_window_when_the_setting_changes(api: Api, pool: ThreadPoolExecutor) -> None:
    api.put_topic("orders", partitions=1, commit_window_ms=LONG_MS)
    before = _partition(api)["version"]
    waiting = pool.submit(api.send, "orders", "a")
    _wait(api, 1)
    assert api.put_topic("orders", commit_window_ms=0)["commit_window_ms"] == 0
    _wait(api, 1)
    longer = f"?commit_window_ms={LONG_MS}"  # than the topic's does not count
    assert _offsets(api.send("orders", "b", query=longer), waiting) == [1, 0]
    assert _partition(api)["version"] == before + 1


def test_send_14_the_process_has_a_default_and_a_stop_ends_all_windows(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    config = config_for(tmp_path / "warehouse", commit_window_ms=LONG_MS)
    with running(config) as api:
        assert api.put_topic("orders", partitions=1)["commit_window_ms"] is None
        waiting = pool.submit(api.send, "orders", "a")
        _wait(api, 1)
        api.put_topic("urgent", partitions=1, commit_window_ms=0)
        assert api.send("urgent", "b").status == 200
    assert _offsets(waiting) == [0], "it is answered, not cut off"
    with running(config) as api:
        assert api.call("GET", "/v1/topics/urgent").json["commit_window_ms"] == 0
        assert api.send("urgent", "c").status == 200
        assert _offsets(api.send("orders", "d", query=AT_ONCE)) == [1]


def test_send_14_windows_take_no_more_than_half_of_the_room_for_requests(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with running(config_for(tmp_path / "warehouse", queue_requests_max=6, commit_window_ms=LONG_MS)) as api:
        api.put_topic("orders", partitions=1)
        waiting = []
        for count, body in ((1, "a"), (2, "b")):
            waiting.append(pool.submit(api.send, "orders", body))
            _wait(api, count)
        assert _offsets(api.send("orders", "c"), *waiting) == [2, 0, 1]


def test_send_14_a_deleted_topic_keeps_no_request_waiting(api: Api, pool: ThreadPoolExecutor) -> None:
    api.put_topic("orders", partitions=1, commit_window_ms=LONG_MS)
    waiting = pool.submit(api.send, "orders", "a")
    _wait(api, 1)
    assert api.call("DELETE", "/v1/topics/orders").status == 204
    reply = waiting.result()
    assert (reply.status, reply.json["code"]) == (404, "topic_not_found")


@pytest.mark.parametrize("static", [False, True])
def test_send_14_kafka_clients_wait_as_their_topic_says(tmp_path: Path, pool: ThreadPoolExecutor, static: bool) -> None:
    shape = {"static": True, "total_queues": 1} if static else {"partitions": 1}
    with kafka_running(tmp_path) as kafka:
        api = kafka.api
        api.put_topic("orders", commit_window_ms=LONG_MS, **shape)
        before = _partition(api)["version"]
        delivered = [pool.submit(_by_kafka, kafka.address, body) for body in (b"a", b"b")]
        _wait(api, 2)
        assert _offsets(api.send("orders", "c", query=AT_ONCE)) == [2]
        assert {one.result() for one in delivered} == {0, 1}
        assert _partition(api)["version"] == before + 1


def _by_kafka(address: str, body: bytes) -> int:
    """Send one message, and return its offset."""
    offsets: list[int] = []
    producer = KafkaProducer({"bootstrap.servers": address})
    producer.produce("orders", body, on_delivery=lambda error, message: offsets.append(message.offset()))
    assert producer.flush(60) == 0
    return offsets[0]


@pytest.mark.parametrize(("given", "status"), [(-1, 422), (60_001, 422), ("soon", 400), (0.5, 400)])
def test_send_14_a_window_that_cannot_be_is_refused(api: Api, given: object, status: int) -> None:
    api.put_topic("orders", partitions=1)
    by_topic = api.call("PUT", "/v1/topics/orders", {"commit_window_ms": given})
    by_request = api.send("orders", "a", query=f"?commit_window_ms={given}")
    for reply in (by_topic, by_request):
        assert (reply.status, reply.json["field"]) == (status, "commit_window_ms"), reply
    assert _partition(api)["max_offset"] == 0


def test_send_14_the_sdk_and_the_command_line(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{api.port}"
    create = ["topic", "create", "orders", "--partitions", "1", "--commit-window-ms", "300", "--url", url]
    assert cli._status(create) == 0
    capsys.readouterr()
    assert cli._status(["topic", "show", "orders", "--url", url]) == 0
    assert "commit window 300 ms" in capsys.readouterr().out
    timeouts_s: list[float] = []
    call = Hosts.call

    async def noted(hosts: Hosts, method: str, path: str, **how: Any) -> Answer:
        if method == "POST":
            timeouts_s.append(how["timeout_s"])
        return await call(hosts, method, path, **how)

    monkeypatch.setattr(Hosts, "call", noted)
    with Producer(url, request_timeout_s=7, timeout_s=300) as producer:
        assert producer.send("orders", b"a").offset == 0
    assert timeouts_s == [7.3], "an attempt takes as much longer as the topic lets it wait"
    with Admin(url) as admin:
        assert admin.create_topic("orders", commit_window_ms=0).commit_window_ms == 0
        assert admin.create_static_topic("refunds", 1, commit_window_ms=5).commit_window_ms == 5
