"""SQL filters of fetches, event streams and subscriptions (SPEC CONS-9)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlencode

import pytest

from tests.api.exclusive import Member, exclusive_group
from tests.api.routes.test_sse import stream
from tests.api.running import ARROW, Api, until

pytestmark = pytest.mark.static_too


@pytest.fixture
def ten(api: Api, topic: str) -> tuple[str, str]:
    """A topic of one partition with ten messages, bodies and the header `n` 0 to 9, tags a and b in turn."""
    api.put_topic(topic, partitions=1)
    messages = [
        {"body": str(i), "key": f"k{i}", "tag": "ab"[i % 2], "headers": {"n": str(i), "region": "eu"} if i else {}}
        for i in range(10)
    ]
    assert api.send(topic, *messages).status == 200
    return topic, f"{topic}@broker-a"


def asked(filter: str, **others: object) -> str:
    return "?" + urlencode({"filter": filter, **others})


@pytest.mark.parametrize(
    ("filter", "others", "bodies", "next_offset"),
    [
        ("n > 6", {}, "789", 10),
        ("n > '6'", {}, "789", 10),
        ("n IS NULL OR n IN (3, 5)", {}, "035", 10),
        ("NOT n < 8", {}, "89", 10),
        ("n > 2", {"tags": "a"}, "468", 10),
        ("tag = 'a' AND key LIKE 'k%' AND n BETWEEN 2 AND 4", {}, "24", 10),
        ("region = 'us'", {}, "", 10),
        ("TRUE", {"max_messages": 2}, "01", 2),
        ("n >= 4", {"max_messages": 2, "offset": 1}, "45", 6),
        ("n >= 4", {"max_bytes": 1}, "4", 5),
    ],
)
def test_cons_09_what_a_filter_leaves_out_counts_as_consumed(
    api: Api, ten: tuple[str, str], filter: str, others: dict[str, object], bodies: str, next_offset: int
) -> None:
    answer = api.fetch(*ten, asked(filter, **others)).json
    assert "".join(m["body"] for m in answer["messages"]) == bodies
    assert answer["next_offset"] == next_offset
    assert answer["status"] == ("found" if bodies else "no_new_message")


def test_cons_09_arrow_answers_are_filtered(api: Api, ten: tuple[str, str]) -> None:
    topic, partition = ten
    path = f"/v1/topics/{topic}/partitions/{quote(partition, safe='')}/messages{asked('n = 7')}"
    answer = api.call("GET", path, Accept=ARROW)
    assert answer.table.column("body").to_pylist() == [b"7"] and answer.headers["mq-next-offset"] == "10"


def test_cons_09_a_long_poll_passes_over_other_messages(api: Api, ten: tuple[str, str]) -> None:
    hosted = api.service.topics.find(ten[0])
    assert hosted is not None
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(api.fetch, *ten, asked("n > 100", offset=10, wait_ms=15_000))
        until(lambda: hosted.partition(ten[1]).has_waiters)
        api.send(ten[0], {"body": "other", "headers": {"n": "7"}})
        api.send(ten[0], {"body": "mine", "headers": {"n": "101"}})
        answer = poll.result().json
    assert [m["body"] for m in answer["messages"]] == ["mine"] and answer["next_offset"] == 12


def test_cons_09_an_event_stream_is_filtered(api: Api, ten: tuple[str, str]) -> None:
    with stream(api, ten[0], asked("n > 7", tags="b")) as events:
        assert json.loads(next(events)["data"])["body"] == "9"
        api.send(ten[0], {"body": "a", "tag": "b", "headers": {"n": "8.5"}})
        assert json.loads(next(events)["data"])["body"] == "a"


@pytest.mark.parametrize(
    ("filter", "position"), [("", 0), ("n >", 3), ("n = 'x", 4), ("(n = 1", 6), ("n LIKE", 6), ("x" * 5000, 4096)]
)
def test_cons_09_a_wrong_filter_of_a_fetch_is_refused_with_its_place(
    api: Api, ten: tuple[str, str], filter: str, position: int
) -> None:
    reply = api.fetch(*ten, asked(filter))
    assert (reply.status, reply.json["code"], reply.json["field"]) == (422, "invalid_filter", "filter")
    assert reply.json["position"] == position and reply.json["expected"] in reply.json["detail"]


def test_cons_09_a_subscription_keeps_its_filter(api: Api, ten: tuple[str, str]) -> None:
    topic, partition = ten
    exclusive_group(api, f"group.{topic}")
    member = Member(api, f"group.{topic}", topic, "c1")
    member.beat(topics={topic: {"order": True, "filter": "n > 6"}})
    (client,) = api.call("GET", f"/v1/groups/group.{topic}").json["clients"]
    assert client["topics"] == {topic: {"order": True, "tags": "*", "filter": "n > 6"}}
    member.take(partition)
    answer = member.fetch(partition, "&filter=n%20%3E%206").json
    assert [m["body"] for m in answer["messages"]] == list("789") and answer["next_offset"] == 10


def test_cons_09_a_wrong_filter_of_a_subscription_is_refused_with_its_place(api: Api, topic: str) -> None:
    exclusive_group(api, f"group.{topic}")
    reply = Member(api, f"group.{topic}", topic, "c1").send_beat(topics={topic: {"filter": "n = "}})
    assert (reply.status, reply.json["code"]) == (422, "invalid_filter")
    assert (reply.json["field"], reply.json["position"]) == (f"topics.{topic}.filter", 4)
