"""Producing: formats, where messages go, what the answer says."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from deltamq.mq.partitioners import logical_partition
from tests.api.running import ARROW, JSON, NDJSON, Api, arrow_stream

pytestmark = pytest.mark.static_too


def test_an_answer_says_where_each_message_is(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    first = api.send(topic, "a", "b")
    second = api.send(topic, "c")
    partition = f"{topic}@broker-a"
    assert first.status == 200
    assert first.json == {
        "ranges": [{"partition": partition, "base_offset": 0, "count": 2}],
        "duplicate": False,
        "durable": True,
    }
    assert second.json["ranges"] == [{"partition": partition, "base_offset": 2, "count": 1}]
    assert api.bodies(topic) == {partition: ["a", "b", "c"]}


def test_model_02_every_field_of_a_message_comes_back(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    message = {
        "key": "k",
        "tag": "t",
        "headers": {"a": "1", "b": ""},
        "body": "bödy",
        "born_time": "2013-01-01T05:15:00.25Z",
        "message_id": "mine",
    }
    assert api.send(topic, message).status == 200
    (found,) = api.fetch(topic, f"{topic}@broker-a").json["messages"]
    append_time = datetime.fromisoformat(found.pop("append_time"))
    assert abs((datetime.now(UTC) - append_time).total_seconds()) < 60
    assert found == {**message, "offset": 0, "born_time": "2013-01-01T05:15:00.250000Z"}


def test_a_body_of_any_bytes_goes_in_and_out_as_base64(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    assert api.send(topic, {"body_base64": "AP+A"}, {"body_base64": "aGk="}, "", {"body": "\x00"}).status == 200
    messages = api.fetch(topic, f"{topic}@broker-a").json["messages"]
    assert [(m.get("body"), m.get("body_base64")) for m in messages] == [
        (None, "AP+A"),
        ("hi", None),
        ("", None),
        ("\x00", None),
    ]


def test_ndjson_takes_one_message_a_line(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    lines = '{"body": "a"}\n\n{"body": "b", "key": "k"}\r\n  \n{"body": "c"}'
    assert api.produce(topic, lines, NDJSON).json["ranges"][0]["count"] == 3
    assert api.bodies(topic) == {f"{topic}@broker-a": ["a", "b", "c"]}


def test_ndjson_of_many_lines_keeps_their_order(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    bodies = [f"{i} {'x' * 60}" for i in range(20_000)]
    reply = api.produce(topic, "\n".join(json.dumps({"body": b}) for b in bodies), NDJSON)
    assert reply.status == 200
    assert api.bodies(topic) == {f"{topic}@broker-a": bodies}


def test_arrow_takes_record_batches_with_any_of_the_columns(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    body = arrow_stream(
        body=pa.array([b"a", b"\xff"], pa.large_binary()),
        key=pa.array(["k", None], pa.large_string()),
        tag=pa.nulls(2),
        headers=pa.array([[("h", "1")], None], pa.map_(pa.string(), pa.string())),
        born_time=pa.array([1, None], pa.timestamp("ms", "Europe/Berlin")),
        deliver_time=pa.nulls(2, pa.timestamp("us", "UTC")),
    )
    assert api.produce(topic, body, ARROW).json["ranges"][0]["count"] == 2
    first, second = api.fetch(topic, f"{topic}@broker-a").json["messages"]
    assert (first["body"], first["key"], first["headers"]) == ("a", "k", {"h": "1"})
    assert first["born_time"] == "1970-01-01T00:00:00.001000Z"
    assert second["body_base64"] == "/w==" and second["born_time"] == second["append_time"]


def test_arrow_streams_of_several_batches_are_one_request(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    batches = [pa.RecordBatch.from_pydict({"body": [f"{i}".encode()], "key": [None]}) for i in range(3)]
    batches[1] = pa.RecordBatch.from_pydict({"body": [b"1"], "key": ["k"]})
    schema = pa.schema([("body", pa.binary()), ("key", pa.string())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema))
    assert api.produce(topic, sink.getvalue().to_pybytes(), ARROW).json["ranges"][0]["count"] == 3
    assert api.bodies(topic) == {f"{topic}@broker-a": ["0", "1", "2"]}


def test_message_ids_are_returned_in_request_order_when_asked_for(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    messages = [{"body": str(i), "key": f"k{i}", "message_id": f"id{i}"} for i in range(50)]
    reply = api.send(topic, *messages, query="?ids=true")
    assert reply.json["message_ids"] == [f"id{i}" for i in range(50)]
    assert "message_ids" not in api.send(topic, "x").json


@pytest.mark.promise("FLUSH-2")
@pytest.mark.parametrize(("query", "durable"), [("", True), ("?flush=sync", True), ("?flush=async", False)])
def test_an_answer_says_whether_its_messages_are_durable(api: Api, topic: str, query: str, durable: bool) -> None:
    assert api.send(topic, "a", query=query).json["durable"] is durable


def test_a_topic_sets_what_an_answer_waits_for(api: Api, topic: str) -> None:
    api.put_topic(topic, flush="async")
    assert api.send(topic, "a").json["durable"] is False
    assert api.send(topic, "a", query="?flush=sync").json["durable"] is True


# Routes -------------------------------------------------------------------------------------------------------


@pytest.mark.plain_only("no message creates a static topic")
def test_route_02_an_unknown_topic_gets_two_brokers_with_partitions_named_like_it(api: Api, topic: str) -> None:
    assert api.send(topic, "a").status == 200
    assert list(api.partitions(topic)) == [f"{topic}@broker-a", f"{topic}@broker-b"]


@pytest.mark.parametrize("form", ["json", "ndjson", "arrow"])
@pytest.mark.parametrize("count", [1, 5, 400])
def test_route_04_and_05_a_key_goes_where_its_hash_says(api: Api, topic: str, form: str, count: int) -> None:
    topic = f"{topic}.{form}.{count}"
    api.put_topic(topic, partitions=4)
    owners = {name: range(*found["logical_partitions"][0]) for name, found in api.partitions(topic).items()}
    keys = [f"N{i * 7}é" for i in range(count)]
    bodies = [f"{i}" for i in range(count)]
    messages = [{"key": k, "body": b} for k, b in zip(keys, bodies, strict=True)]
    if form == "json":
        reply = api.send(topic, *messages)
    elif form == "ndjson":
        reply = api.produce(topic, "\n".join(map(json.dumps, messages)), NDJSON)
    else:
        reply = api.produce(topic, arrow_stream(key=keys, body=[b.encode() for b in bodies]), ARROW)
    found = api.bodies(topic)
    for name, owned in owners.items():
        assert found[name] == [b for k, b in zip(keys, bodies, strict=True) if logical_partition(k) in owned]
    for placed in reply.json["ranges"]:
        stored = found[placed["partition"]][placed["base_offset"] :]
        assert stored == [bodies[i] for i in placed.get("indexes", range(count))]


def test_route_05_messages_without_a_key_reach_every_partition(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    used = set()
    for _ in range(200):
        used.add(api.send(topic, "a").json["ranges"][0]["partition"])
        if len(used) == 2:
            return
    pytest.fail(f"200 requests all went to {used}")


def test_route_07_a_named_partition_wins_over_the_key(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=4)
    named = f"{topic}#2@broker-b"
    messages = [{"body": str(i), "key": f"k{i}", "partition": named} for i in range(40)]
    assert api.send(topic, *messages).json["ranges"] == [{"partition": named, "base_offset": 0, "count": 40}]
    query = "?partition=" + named.replace("#", "%23").replace("@", "%40")
    reply = api.produce(topic, arrow_stream(body=[b"a", b"b"], key=["x", "y"]), ARROW, query)
    assert reply.json["ranges"] == [{"partition": named, "base_offset": 40, "count": 2}]


def test_route_07_some_messages_may_name_their_partition(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    a, b = f"{topic}@broker-a", f"{topic}@broker-b"
    body = arrow_stream(body=[b"0", b"1", b"2", b"3"], partition=[a, b, None, a], key=[None, None, "x", "x"])
    assert api.produce(topic, body, ARROW).status == 200
    found = api.bodies(topic)
    by_key = a if logical_partition("x") < 512 else b
    assert found[b] == ["1", *(["2"] if by_key == b else [])]
    assert found[a] == ["0", *(["2"] if by_key == a else []), "3"]


# expected_offset ----------------------------------------------------------------------------------------------


@pytest.mark.promise("LOG-7")
def test_expected_offset_appends_only_at_the_end_offset(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    message = {"body": "a", "partition": f"{topic}@broker-a"}
    assert api.send(topic, message, expected_offset=0).status == 200
    refused = api.send(topic, message, expected_offset=0)
    assert (refused.status, refused.json["code"], refused.json["field"]) == (412, "offset_mismatch", "expected_offset")
    assert refused.json["end_offset"] == 1
    assert api.send(topic, message, expected_offset=1).status == 200
    assert api.stored(topic) == {f"{topic}@broker-a": 2}


def test_expected_offset_may_be_in_the_query(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=2)
    query = f"?partition={topic}%40broker-b&expected_offset="
    body = arrow_stream(body=[b"a"])
    assert api.produce(topic, body, ARROW, query + "0").status == 200
    assert api.produce(topic, body, ARROW, query + "0").status == 412
    assert api.stored(topic) == {f"{topic}@broker-a": 0, f"{topic}@broker-b": 1}


# A topic that is made for its first request ---------------------------------------------------------------------


@pytest.mark.plain_only("no message creates a static topic")
@pytest.mark.parametrize(
    ("body", "kind", "query", "told"),
    [
        ({"messages": [{"body": "a"}, {"body": "b", "partition": "nope@broker-a"}]}, JSON, "", "messages[1].partition"),
        ({"messages": [{"body": "a", "partition": "nope@broker-a"}]}, JSON, "", "messages[0].partition"),
        (arrow_stream(body=[b"a"], partition=["nope@broker-a"]), ARROW, "", "messages[0].partition"),
        (arrow_stream(body=[b"a"]), ARROW, "?partition=nope%40broker-a", "partition"),
        (arrow_stream(body=[b"a"]), ARROW, "?partition={topic}%40broker-a&expected_offset=1", "expected_offset"),
    ],
)
def test_route_02_a_request_that_is_refused_makes_no_topic(
    api: Api, topic: str, body: Any, kind: str, query: str, told: str
) -> None:
    refused = api.call("POST", f"/v1/topics/{topic}/messages{query.replace('{topic}', topic)}", body, kind)
    expected = (412, "offset_mismatch") if told == "expected_offset" else (404, "partition_not_found")
    assert (refused.status, refused.json["code"]) == expected and refused.json["field"] == told
    assert api.call("GET", f"/v1/topics/{topic}").status == 404
    assert api.send(topic, {"body": "a", "partition": f"{topic}@broker-a"}, expected_offset=0).status == 200
