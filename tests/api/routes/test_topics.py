"""Topics over REST."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import deltalake
import pytest

from deltamq.api.wire.fields import parse_time, rfc3339
from deltamq.mq.errors import Refused
from deltamq.mq.limits import RETENTION_MS_MAX, RETENTION_MS_MIN
from deltamq.tables.paths import Space
from tests.api.running import Api, config_for, running
from tests.rows import next_millisecond


def test_put_creates_then_changes_nothing_then_updates(api: Api, topic: str) -> None:
    path = f"/v1/topics/{topic}"
    created = api.call("PUT", path, {"partitions": 2, "order_strategy": "strict"})
    same = api.call("PUT", path, {"partitions": 2})
    grown = api.call("PUT", path, {"partitions": 3, "retention_ms": 60_000})
    assert (created.status, same.status, grown.status) == (201, 200, 200)
    assert created.json["order_strategy"] == "strict" and same.json == created.json
    assert grown.json["retention_ms"] == 60_000 and grown.json["routes_epoch"] > created.json["routes_epoch"]
    assert [p["partition"] for p in grown.json["partitions"]] == [
        f"{topic}@broker-a",
        f"{topic}@broker-b",
        f"{topic}#1@broker-a",
    ]
    owned = sorted(r for p in grown.json["partitions"] for r in p["logical_partitions"])
    assert owned[0][0] == 0 and owned[-1][1] == 1024
    shrunk = api.call("PUT", path, {"partitions": 1})
    assert (shrunk.status, shrunk.json["code"], shrunk.json["field"]) == (409, "partitions_cannot_shrink", "partitions")


def test_put_without_a_body_makes_the_default_route(api: Api, topic: str) -> None:
    assert api.call("PUT", f"/v1/topics/{topic}").status == 201
    assert len(api.partitions(topic)) == 2


def test_null_is_the_same_as_leaving_a_field_out(api: Api, topic: str) -> None:
    nulls = dict.fromkeys(
        [
            *("partitions", "order_strategy", "retention_ms", "message_type", "flush", "commit_window_ms", "static"),
            "brokers",
        ]
    )
    made = api.call("PUT", f"/v1/topics/{topic}", {"message_type": "orders v2 / 订单", "retention_ms": 60_000.0})
    assert (made.json["message_type"], made.json["retention_ms"]) == ("orders v2 / 订单", 60_000)
    assert api.call("PUT", f"/v1/topics/{topic}", nulls | {"static": False}).json == made.json


@pytest.mark.parametrize("retention_ms", [RETENTION_MS_MIN, RETENTION_MS_MAX])
def test_retry_6_the_bounds_of_retention_are_inside(api: Api, topic: str, retention_ms: int) -> None:
    assert api.put_topic(topic, retention_ms=retention_ms)["retention_ms"] == retention_ms


def test_a_name_that_differs_only_by_case_is_a_conflict(api: Api, topic: str) -> None:
    api.put_topic(topic)
    refused = api.call("PUT", f"/v1/topics/{topic.upper()}")
    assert (refused.status, refused.json["code"]) == (409, "topic_name_case")
    assert api.send(topic.upper(), "a").json["code"] == "topic_name_case"


@pytest.mark.parametrize("name", ["a.b", "%2F", "a|b", "-", "_x", "%", "x" * 249, "..."])
def test_model_05_any_legal_name_can_be_used(api: Api, name: str) -> None:
    api.put_topic(name, partitions=3)
    assert api.send(name, {"body": "a", "partition": f"{name}#1@broker-a"}).status == 200
    assert api.bodies(name)[f"{name}#1@broker-a"] == ["a"]
    assert name in api.call("GET", "/v1/topics").json["topics"]
    assert api.call("DELETE", f"/v1/topics/{quote(name, safe='')}").status == 204


def test_show_tells_what_each_partition_holds_and_where(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a", "b")
    found = api.partitions(topic)[f"{topic}@broker-a"]
    assert (found["min_offset"], found["max_offset"], found["messages"], found["files"]) == (0, 2, 2, 1)
    assert found["broker"] == "broker-a" and found["bytes"] > 0
    age = datetime.now(UTC) - datetime.fromisoformat(found["last_append_time"])
    assert timedelta(0) <= age < timedelta(minutes=1)
    table = deltalake.DeltaTable(found["location"])
    assert table.version() == found["version"] == 1
    assert table.to_pyarrow_table(columns=["body"]).column("body").to_pylist() == [b"a", b"b"]


def test_offsets_by_time_are_the_first_at_or_after_it(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    a, b = f"{topic}@broker-a", f"{topic}@broker-b"
    api.send(topic, {"body": "old", "partition": a})
    first = api.partitions(topic)[a]["last_append_time"]
    next_millisecond()
    api.send(topic, {"body": "new", "partition": a})
    second = api.partitions(topic)[a]["last_append_time"]
    assert first < second

    def at(time: str) -> dict[str, int]:
        reply = api.call("GET", f"/v1/topics/{topic}/offsets?time={quote(time)}")
        assert reply.status == 200, reply
        return {o["partition"]: o["offset"] for o in reply.json["offsets"]}

    assert at("1970-01-01T00:00:00Z") == {a: 0, b: 0}
    assert at(first) == {a: 0, b: 0}
    assert at(second) == {a: 1, b: 0}
    assert at("2099-01-01T00:00:00+02:00") == {a: 2, b: 0}


def test_delete_removes_topic_and_data_and_a_new_one_starts_at_zero(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    api.send(topic, "a", producer={"id": "p", "seq": 4})
    location = Path(api.partitions(topic)[f"{topic}@broker-a"]["location"])
    assert api.call("DELETE", f"/v1/topics/{topic}").status == 204
    assert not location.exists()
    assert api.fetch(topic, f"{topic}@broker-a").json["code"] == "topic_not_found"
    assert api.call("DELETE", f"/v1/topics/{topic}").status == 404
    again = api.send(topic, "b", producer={"id": "p", "seq": 0})
    assert again.json["ranges"][0]["base_offset"] == 0 and again.json["duplicate"] is False
    assert [b for bodies in api.bodies(topic).values() for b in bodies] == ["b"]


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        before = api.put_topic("orders", partitions=4)
        api.send("orders", *[{"body": str(i), "key": str(i)} for i in range(20)])
        bodies = api.bodies("orders")
    with running(config) as api:
        after = api.call("GET", "/v1/topics/orders").json
        assert [p["partition"] for p in after["partitions"]] == [p["partition"] for p in before["partitions"]]
        assert after["id"] == before["id"] and api.bodies("orders") == bodies


def test_topics_of_another_process_are_found(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as one, running(config_for(tmp_path)) as other:
        one.put_topic("orders", partitions=2)
        assert other.send("orders", {"body": "a", "partition": "orders@broker-a"}).status == 200
        assert one.send("orders", {"body": "b", "partition": "orders@broker-a"}).json["ranges"][0]["base_offset"] == 1
        assert other.call("GET", "/v1/topics").json["topics"] == ["orders"]


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T01:00:00.5+01:00", 500_000),
        ("1970-01-01T01:00:00 01:00", 0),
        ("1970-01-01t00:00:00.123456z", 123_456),
        ("1969-12-31T23:59:59Z", -1_000_000),
    ],
)
def test_times_are_rfc_3339(text: str, time_us: int) -> None:
    assert parse_time(text) == time_us


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2024-01-01T00:00:00", "2024-02-30T00:00:00Z", "9999-12-31T24:00:00Z"),
        # they have a year in their zone, and none in UTC
        *("9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+12:00"),
    ],
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="RFC 3339"):
        parse_time(text)


def test_times_are_shown_in_microseconds() -> None:
    assert rfc3339(-1) == "1969-12-31T23:59:59.999999Z"


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00.000000Z", "0999-12-31T23:59:59.999999Z"])
def test_times_are_shown_with_years_of_four_digits(time: str) -> None:
    """strftime writes the year 1 as `1`."""
    assert rfc3339(parse_time(time)) == time


def test_a_topic_that_another_process_deleted_is_forgotten_with_the_next_change(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api, running(config) as other:
        api.put_topic("orders")
        api.send("orders", "a")
        assert other.call("DELETE", "/v1/topics/orders").status == 204
        api.put_topic("next")  # the log is read up to here, the deletion with it
        assert api.service.topics.find("orders") is None
        assert {p.topic for p in api.service.partitions if p.ref.space is Space.TOPICS} == {"next"}
