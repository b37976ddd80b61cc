"""Topics with a schema over REST: produce, fetch and pop of values; what does not fit; new versions (TYPE-1 to 9)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.api.queue_calls import Queue, queue_in
from tests.api.routes.test_sse import stream
from tests.api.running import ARROW, JSON, NDJSON, Api, Reply, config_for, running

ORDERS = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
            {
                "name": "place",
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "Place",
                        "fields": [{"name": "zip", "type": "string"}, {"name": "floor", "type": "int"}],
                    },
                ],
                "default": None,
            },
        ],
    }
)
JSON_ORDERS = json.dumps(
    {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "amount": {"type": "integer"},
            "place": {"type": "object", "properties": {"zip": {"type": "string"}}},
        },
        "required": ["id"],
        "additionalProperties": False,
    }
)
DDL = "id STRING NOT NULL, amount BIGINT, place STRUCT<zip: STRING>"
ORDER = {"id": "a", "amount": 3, "place": {"zip": "1"}}
SCHEMAS = {"avro": ORDERS, "json": JSON_ORDERS, "columns": DDL}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(config_for(tmp_path)) as api:
        yield api


def make(api: Api, topic: str = "orders", form: str = "json", **schema: Any) -> dict[str, Any]:
    asked = {"format": form, "schema": SCHEMAS[form], **schema}
    reply = api.call("PUT", f"/v1/topics/{topic}", {"partitions": 1, "schema": asked})
    assert reply.status in (200, 201), reply
    answer: dict[str, Any] = reply.json
    return answer


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def send(api: Api, *messages: dict[str, Any], topic: str = "orders") -> Reply:
    return api.call("POST", f"/v1/topics/{topic}/messages", {"messages": list(messages)})


def fetch(api: Api, topic: str = "orders", typed: bool = True, offset: int = 0, **headers: str) -> Reply:
    partition = api.call("GET", f"/v1/topics/{topic}").json["partitions"][0]["partition"]
    path = f"/v1/topics/{topic}/partitions/{partition}/messages?offset={offset}&max_messages=1000"
    reply = api.call("GET", path + ("&typed=true" if typed else ""), None, **headers)
    assert reply.status == 200, reply
    return reply


def values(api: Api, **query: Any) -> list[Any]:
    return [message.get("value") for message in fetch(api, **query).json["messages"]]


def table(api: Api, topic: str = "orders") -> list[dict[str, Any]]:
    location = api.call("GET", f"/v1/topics/{topic}").json["partitions"][0]["location"]
    rows: list[dict[str, Any]] = DeltaTable(location).to_pyarrow_table().sort_by("offset").to_pylist()
    return rows


@pytest.mark.parametrize("form", ["json", "columns"])
def test_type_1_the_first_query_after_the_acknowledgement_sees_the_fields(api: Api, form: str) -> None:
    info = make(api, form=form)["schema"]
    assert (info["format"], info["subject"], info["version"]) == (form, "orders-value", 1)
    assert send(api, {"body": json.dumps(ORDER)}, {"value": {"id": "b"}}).status == 200
    assert [row["value"] for row in table(api)] == [ORDER, {"id": "b", "amount": None, "place": None}]
    assert values(api) == [ORDER, {"id": "b"}]
    bodies = [json.loads(message["body"]) for message in fetch(api, typed=False).json["messages"]]
    assert bodies == [ORDER, {"id": "b"}]


def test_type_1_avro_values_are_encoded_and_decoded(api: Api) -> None:
    make(api, form="avro", wire="confluent")
    value = {"id": "a", "amount": "12.50", "place": {"zip": "1", "floor": -1}}
    assert send(api, {"value": value}, {"value": {"id": "b", "amount": "1", "place": None}}).status == 200
    stored = table(api)
    assert str(stored[0]["value"]["amount"]) == "12.50" and stored[0]["value"]["place"] == value["place"]
    assert stored[0]["body"][:5] == b"\0\0\0\0\x01"
    again = fetch(api).json["messages"]
    assert again[0]["value"]["id"] == "a" and "body" not in again[0]


def test_type_3_a_request_with_a_message_that_does_not_fit_is_refused_as_a_whole(api: Api) -> None:
    make(api)
    reply = send(api, {"body": json.dumps(ORDER)}, {"body": '{"id": 7}'}, {"body": "x"})
    assert (reply.status, reply.json["code"]) == (422, "invalid_value")
    why = {one["index"]: (one["code"], one["field"]) for one in reply.json["invalid"]}
    assert why == {1: ("wrong_type", "id"), 2: ("not_json", "")}
    assert reply.json["count"] == 2 and table(api) == []
    ndjson = b'{"body": "{\\"id\\": \\"a\\"}"}\n{"body": "{}"}\n'
    assert api.call("POST", "/v1/topics/orders/messages", ndjson, **{"Content-Type": NDJSON}).status == 422


def test_type_3_quarantined_messages_are_stored_and_no_reader_is_handed_them(api: Api) -> None:
    make(api, on_invalid="quarantine")
    bodies = [json.dumps(ORDER), "nonsense", '{"id": 1}', json.dumps(ORDER), "{}"]
    assert send(api, *({"body": body} for body in bodies)).status == 200
    rows = table(api)
    assert [row["invalid"] and row["invalid"]["code"] for row in rows] == [
        None,
        "not_json",
        "wrong_type",
        None,
        "missing",
    ]
    assert [row["body"].decode() for row in rows] == bodies
    for typed in (True, False):
        answer = fetch(api, typed=typed).json
        assert [message["offset"] for message in answer["messages"]] == [0, 3] and answer["next_offset"] == 5
    popped = api.call("POST", "/v1/groups/g/topics/orders/pop?typed=true", {"max_messages": 10}).json
    assert [message["value"] for message in popped["messages"]] == [ORDER, ORDER]
    assert popped["rest"] == 0
    again = api.call("POST", "/v1/groups/g/topics/orders/pop?typed=true", {"max_messages": 10}).json
    assert again["messages"] == []


def test_type_3_rescued_messages_are_delivered_with_what_fits(api: Api) -> None:
    make(api, on_invalid="rescue")
    assert send(api, {"body": '{"id": "a", "amount": "many", "more": [1]}'}, {"body": json.dumps(ORDER)}).status == 200
    first, second = fetch(api).json["messages"]
    assert first["value"] == {"id": "a"} and "many" in json.dumps(first["rescued"]) and "rescued" not in second
    assert table(api)[0]["rescued"] is not None


def test_values_in_arrow_go_through_as_columns(api: Api) -> None:
    make(api, form="columns")
    kind = pa.struct([("id", pa.string()), ("amount", pa.int32())])
    batch = pa.RecordBatch.from_pydict({"key": ["k", None], "value": pa.array([{"id": "a", "amount": 1}, None], kind)})
    headers = {"Content-Type": ARROW}
    reply = api.call("POST", "/v1/topics/orders/messages", stream_of(batch), **headers)
    assert reply.status == 200, reply
    assert values(api) == [{"id": "a", "amount": 1}, None]
    answer = fetch(api, Accept=ARROW).table
    assert answer.column("value").to_pylist()[0] == {"id": "a", "amount": 1, "place": None}
    more = pa.RecordBatch.from_pydict({"value": pa.array([{"x": 1}], pa.struct([("x", pa.int64())]))})
    reply = api.call("POST", "/v1/topics/orders/messages", stream_of(more), **headers)
    assert (reply.status, reply.json["code"]) == (422, "invalid_value")


def test_type_5_a_new_version_adds_columns_and_old_rows_read_as_before(api: Api) -> None:
    make(api, form="columns")
    send(api, {"value": ORDER})
    assert make(api, form="columns", schema=DDL + ", note STRING")["schema"]["version"] == 2
    send(api, {"value": {**ORDER, "note": "n"}})
    assert [value.get("note") for value in values(api)] == [None, "n"]
    assert [row["value"]["note"] for row in table(api)] == [None, "n"]
    assert make(api, form="columns", schema=DDL + ", note STRING")["schema"]["version"] == 2


def test_type_5_a_topic_keeps_its_format(api: Api) -> None:
    make(api)
    reply = api.call("PUT", "/v1/topics/orders", {"schema": {"format": "avro", "schema": ORDERS}})
    assert (reply.status, reply.json["code"]) == (409, "schema_fixed")


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"schema": "{}"}, "invalid_schema_setting"),
        ({"format": "json", "schema": "nonsense"}, "invalid_schema"),
        ({"format": "json"}, "invalid_schema"),
        ({"format": "avro", "schema": '{"type": "nothing"}'}, "invalid_schema"),
        ({"format": "columns", "schema": "a NOTHING"}, "invalid_schema"),
        ({"format": "columns", "schema": DDL, "wire": "confluent"}, "invalid_schema_setting"),
    ],
)
def test_a_schema_that_is_none_is_refused(api: Api, asked: dict[str, Any], code: str) -> None:
    reply = api.call("PUT", "/v1/topics/orders", {"schema": asked})
    assert (reply.status, reply.json["code"]) == (422, code), reply
    assert api.call("GET", "/v1/topics/orders").status == 404


def test_values_for_a_topic_of_bytes_are_refused(api: Api) -> None:
    api.call("PUT", "/v1/topics/orders", {"partitions": 1})
    reply = send(api, {"value": {}})
    assert (reply.status, reply.json["code"]) == (422, "no_schema")
    partition = api.call("GET", "/v1/topics/orders").json["partitions"][0]["partition"]
    reply = api.call("GET", f"/v1/topics/orders/partitions/{partition}/messages?offset=0&typed=true")
    assert (reply.status, reply.json["code"]) == (422, "no_schema")


def test_a_topic_of_bytes_is_typed_from_an_offset_on(api: Api) -> None:
    api.call("PUT", "/v1/topics/orders", {"partitions": 1})
    send(api, {"body": json.dumps(ORDER)}, {"body": "anything"})
    make(api, on_invalid="quarantine")
    send(api, {"body": json.dumps(ORDER)})
    assert [row["value"] for row in table(api)] == [None, None, ORDER]
    assert [message["offset"] for message in fetch(api, typed=False).json["messages"]] == [0, 1, 2]


def test_a_restart_finds_schema_and_values(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        make(api, form="columns")
        send(api, {"value": ORDER})
    with running(config_for(tmp_path)) as api:
        send(api, {"value": {"id": "b"}})
        assert values(api) == [ORDER, {"id": "b"}]
        bodies = [message["body"] for message in fetch(api, typed=False).json["messages"]]
        assert json.loads(bodies[0]) == ORDER


def test_repeats_of_a_typed_request_are_known(api: Api) -> None:
    make(api, form="columns")
    request = {"messages": [{"value": ORDER}], "producer": {"id": "p", "seq": 0}}
    first = api.call("POST", "/v1/topics/orders/messages", request)
    again = api.call("POST", "/v1/topics/orders/messages", request)
    assert again.status == 200 and again.json["duplicate"] and again.json["ranges"] == first.json["ranges"]
    assert JSON and len(table(api)) == 1


def test_a_version_that_readers_could_not_read_is_refused(api: Api) -> None:
    make(api, form="columns")
    asked = {"format": "columns", "schema": "id BIGINT NOT NULL"}
    reply = api.call("PUT", "/v1/topics/orders", {"schema": asked})
    assert (reply.status, reply.json["code"]) == (409, "incompatible_schema"), reply
    assert api.call("GET", "/v1/topics/orders").json["schema"]["version"] == 1


def test_type_4_a_body_that_is_a_value_is_stored_once(api: Api) -> None:
    make(api, form="columns", on_invalid="quarantine")
    assert send(api, {"body": ' { "amount":3,"id":"a" } '}, {"body": "x"}).status == 200
    assert [row["body"] for row in table(api)] == [None, b"x"]
    popped = api.call("POST", "/v1/groups/g/topics/orders/pop", {"max_messages": 10}).json["messages"]
    assert [message["body"] for message in popped] == ['{"id":"a","amount":3}']


def test_type_1_a_typed_topics_table_has_its_columns_before_the_first_message(api: Api) -> None:
    location = make(api, form="columns")["partitions"][0]["location"]
    arrow = DeltaTable(location).to_pyarrow_table()
    assert arrow.num_rows == 0 and [field.name for field in arrow.schema.field("value").type] == [
        "id",
        "amount",
        "place",
    ]
    send(api, {"value": ORDER})
    assert DeltaTable(location).version() == 1 and table(api)[0]["value"] == ORDER


def test_an_event_stream_carries_values(api: Api) -> None:
    make(api)
    send(api, {"body": json.dumps(ORDER)})
    for query, wanted in (("&typed=true", ORDER), ("", None)):
        with stream(api, "orders", f"?offset=0{query}") as events:
            message = json.loads(next(events)["data"])
            assert message.get("value") == wanted and ("body" in message) == (wanted is None)


def test_a_retried_message_has_its_value(tmp_path: Path) -> None:
    with queue_in(tmp_path) as queue:
        check_retried(queue)


def check_retried(queue: Queue) -> None:
    asked = {"partitions": 1, "schema": {"format": "columns", "schema": DDL}}
    assert queue.api.call("PUT", "/v1/topics/orders", asked).status == 201
    send(queue.api, {"value": ORDER})
    path = "/v1/groups/billing/topics/orders/pop?typed=true"
    first = queue.api.call("POST", path, {}).json["messages"]
    assert [message["value"] for message in first] == [ORDER]
    queue.advance(120_000)
    queue.revive()
    again = queue.api.call("POST", path, {"wait_ms": 5_000}).json["messages"]
    assert [(message["value"], message["delivery_attempt"]) for message in again] == [(ORDER, 2)]


def test_a_static_topic_has_values_in_its_logical_queues(api: Api) -> None:
    asked = {"static": True, "total_queues": 2, "schema": {"format": "json", "schema": JSON_ORDERS}}
    assert api.call("PUT", "/v1/topics/orders", asked).status == 201
    send(api, {"body": json.dumps(ORDER), "key": "k"}, {"value": ORDER, "key": "k"})
    popped = api.call("POST", "/v1/groups/g/topics/orders/pop?typed=true", {"max_messages": 9}).json["messages"]
    assert [message["value"] for message in popped] == [ORDER, ORDER]
    assert make_static_again(api)["schema"]["version"] == 1


def make_static_again(api: Api) -> dict[str, Any]:
    asked = {"static": True, "total_queues": 4, "schema": {"on_invalid": "quarantine"}}
    reply = api.call("PUT", "/v1/topics/orders", asked)
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json
    assert answer["schema"]["on_invalid"] == "quarantine"
    return answer
