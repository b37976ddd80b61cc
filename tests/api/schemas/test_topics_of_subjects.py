"""The registry and typed topics: a subject that a topic has gets only what the topic can have (SPEC TYPE-27)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.api.running import Api, config_for, running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(config_for(tmp_path_factory.mktemp("topics"))) as api:
        yield api


def record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, *fields]})


def register(api: Api, subject: str, schema: str, kind: str = "AVRO") -> tuple[int, Any]:
    reply = api.call("POST", f"/schemas/subjects/{subject}/versions", {"schema": schema, "schemaType": kind})
    return reply.status, reply.json


MORE = {"name": "more", "type": ["null", "string"], "default": None}


def test_type_27_a_version_of_a_topics_subject_must_have_columns(api: Api) -> None:
    api.put_topic("orders", schema={"format": "avro", "schema": record(), "subject": "shop.Order"})
    assert api.call("GET", "/schemas/subjects/shop.Order/versions").json == [1]
    assert register(api, "shop.Order", record(MORE))[0] == 200
    api.call("PUT", "/schemas/config/shop.Order", {"compatibility": "NONE"})
    for schema, kind, code in (
        ('"long"', "AVRO", 42201),
        ("id BIGINT", "COLUMNS", 422),
        (record({"name": "ID", "type": "int"}), "AVRO", 42201),
    ):
        status, refused = register(api, "shop.Order", schema, kind)
        assert (status, refused["error_code"]) == (422, code), refused
        asked = "/schemas/compatibility/subjects/shop.Order/versions?verbose=true"
        checked = api.call("POST", asked, {"schema": schema, "schemaType": kind}).json
        assert checked == {"is_compatible": False, "messages": [refused["message"]]}
        assert register(api, f"free-{len(schema)}", schema, kind)[0] == 200, "no topic has this subject"
    assert api.call("GET", "/schemas/subjects/shop.Order/versions").json == [1, 2]


def test_type_27_what_a_topics_messages_were_written_with_is_not_deleted_for_good(api: Api) -> None:
    api.put_topic("kept", schema={"format": "avro", "schema": record(), "subject": "kept-value"})
    register(api, "kept-value", record(MORE))
    subject = "/schemas/subjects/kept-value"
    assert api.call("DELETE", f"{subject}/versions/1").status == 200
    for path in (f"{subject}/versions/1?permanent=true", f"{subject}?permanent=true"):
        api.call("DELETE", subject)
        refused = api.call("DELETE", path).json
        assert refused["error_code"] == 42206 and "the messages of topic kept" in refused["message"]
    assert api.call("DELETE", "/v1/topics/kept").status == 204
    assert api.call("DELETE", f"{subject}?permanent=true").json == [1, 2]


def test_type_27_a_serializer_is_given_the_subject_of_its_topic(api: Api) -> None:
    api.put_topic("asked", schema={"format": "avro", "schema": record(), "subject": "asked.Order", "wire": "confluent"})
    path = "/schemas/associations/resources/-/asked?resourceType=topic&associationType="
    (value,) = api.call("GET", f"{path}value").json
    assert (value["subject"], value["resourceName"]) == ("asked.Order", "asked")
    assert api.call("GET", f"{path}key").json == api.call("GET", path.replace("asked?", "nobody?") + "value").json == []
    with SchemaRegistryClient({"url": f"http://127.0.0.1:{api.port}/schemas"}) as client:
        body = AvroSerializer(client, record())({"id": 7}, SerializationContext("asked", MessageField.VALUE))
        assert client.get_subjects(subject_prefix="asked") == ["asked.Order"], "it took the topic's"
        assert client.get_versions("asked.Order") == [1], "the same schema, whoever registers it"
    sent = api.produce(
        "asked", json.dumps({"messages": [{"body_base64": base64.b64encode(body).decode()}]}), "application/json"
    )
    assert sent.status == 200, sent
    (message,) = (
        api.fetch("asked", "asked@broker-a", "?typed=true").json["messages"]
        or api.fetch("asked", "asked@broker-b", "?typed=true").json["messages"]
    )
    assert message["value"] == {"id": 7}
