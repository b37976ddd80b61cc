"""The API's own description has examples of what is sent and answered, and they are true (API: "examples included")."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jsonschema_rs
import pyarrow as pa
import pytest

from deltamq.api.app import create_app
from tests.api.running import ARROW, Api, arrow_stream, config_for

Json = dict[str, Any]

NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"


class Body(NamedTuple):
    """What is sent or answered, in one of its media types."""

    call: str
    #: `request`, or the status of an answer.
    what: str
    media_type: str
    content: Json


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    return create_app(config_for(tmp_path_factory.mktemp("openapi") / "warehouse")).fastapi.openapi()


def bodies(document: Json) -> Iterator[Body]:
    for path, item in document["paths"].items():
        for method, call in item.items():
            name = f"{method} {path}"
            for kind, content in call.get("requestBody", {}).get("content", {}).items():
                yield Body(name, "request", kind, content)
            for status, answer in call["responses"].items():
                named = answer.get("$ref", "").rpartition("/")[2]
                answer = document["components"]["responses"][named] if named else answer
                for kind, content in answer.get("content", {}).items():
                    yield Body(name, status, kind, content)


def examples_of(document: Json, content: Json) -> list[Any]:
    """Those of the media type, else those at the top of its schema."""
    if "example" in content:
        return [content["example"]]
    schema = content["schema"]
    name = schema.get("$ref", "").rpartition("/")[2]
    found = document["components"]["schemas"][name] if name else schema
    return list(found.get("examples", []))


def whole(document: Json, schema: Json) -> Json:
    """The schema with what it refers to; fields that it does not name are not allowed."""
    named = {
        name: {"additionalProperties": False, **one} if "properties" in one else one
        for name, one in document["components"]["schemas"].items()
    }
    return {**schema, "components": {"schemas": named}}


def check(document: Json, schema: Json, example: object) -> None:
    jsonschema_rs.Draft202012Validator(whole(document, schema)).validate(example)


def one_of(document: Json, path: str, method: str, what: str, kind: str) -> Json:
    wanted = (f"{method} {path}", what, kind)
    (found,) = [body.content for body in bodies(document) if body[:3] == wanted]
    return found


def test_every_json_body_and_answer_has_an_example(document: Json) -> None:
    wanted = [b for b in bodies(document) if "json" in b.media_type and b.media_type != NDJSON]
    assert len(wanted) > 100
    assert [b[:3] for b in wanted if not examples_of(document, b.content)] == []


def test_every_json_example_is_what_its_schema_says(document: Json) -> None:
    checked = 0
    bodies_of: dict[str, list[Body]] = {}
    for body in bodies(document):
        if "json" in body.media_type and body.media_type != NDJSON:
            bodies_of.setdefault(json.dumps(body.content["schema"]), []).append(body)
    for schema, alike in bodies_of.items():
        examples = [example for body in alike for example in examples_of(document, body.content)]
        # All that have one schema, at once: to compile the schemas of the whole document takes milliseconds.
        check(document, {"type": "array", "items": json.loads(schema)}, examples)
        checked += len(examples)
    assert checked > 100


def test_a_field_that_is_not_described_is_found(document: Json) -> None:
    topics = {"$ref": "#/components/schemas/TopicList"}
    check(document, topics, {"topics": []})
    with pytest.raises(jsonschema_rs.ValidationError):
        check(document, topics, {"topics": [], "more": 1})


def test_lines_and_events_have_examples_that_are_messages(document: Json) -> None:
    sent = one_of(document, "/v1/topics/{topic}/messages", "post", "request", NDJSON)["examples"]["lines"]
    assert len(sent["description"].splitlines()) == 2
    for line in sent["description"].splitlines():
        check(document, {"$ref": "#/components/schemas/Message"}, json.loads(line))
    fetch = "/v1/topics/{topic}/partitions/{partition}/messages"
    events = one_of(document, fetch, "get", "200", EVENTS)["example"]
    found = re.findall(r"^id: flights@broker-a:(\d+)\ndata: (.+)\n\n", events, re.MULTILINE)
    assert [int(offset) for offset, _ in found] == [json.loads(data)["offset"] for _, data in found] == [120]
    for _, data in found:
        check(document, {"$ref": "#/components/schemas/StoredMessage"}, json.loads(data))


def test_the_columns_of_arrow_bodies_are_described(api: Api, document: Json, topic: str) -> None:
    home, moment = f"{topic}@broker-a", pa.scalar(0, pa.timestamp("ms", "UTC"))
    columns: Json = {
        **{name: ["x"] for name in ("body", "key", "tag", "message_id")},
        "partition": [home],
        "headers": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
        "born_time": pa.array([moment]),
        "deliver_time": pa.nulls(1, moment.type),
        "delay_ms": pa.nulls(1, pa.int64()),
    }
    told = one_of(document, "/v1/topics/{topic}/messages", "post", "request", ARROW)["schema"]["description"]
    assert set(re.findall(r"`([a-z_]+)`", told)) == set(columns)
    api.put_topic(topic, partitions=1)
    sent = api.produce(topic, arrow_stream(**columns), ARROW)
    assert sent.status == 200, sent
    fetch = "/v1/topics/{topic}/partitions/{partition}/messages"
    told = one_of(document, fetch, "get", "200", ARROW)["schema"]["description"]
    answer = api.call("GET", f"/v1/topics/{topic}/partitions/{home}/messages", Accept=ARROW)
    schema = pa.ipc.open_stream(answer.body).schema
    assert re.findall(r"`([a-z_]+)`: ", told) == schema.names
    assert all(f"`{one.name}`: {one.type}" in told for one in schema)
