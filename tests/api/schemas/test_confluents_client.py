"""Confluent's own client of a schema registry, unmodified, against `/schemas` (SPEC TYPE-20 to TYPE-26)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.rpc.status_pb2 import Status

from tests.api.auth.test_two_processes import Two, two_in
from tests.api.guarded import Guarded, guarded
from tests.api.running import config_for, running
from tests.releases import made_before_features


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("schemas")) as api:
        yield api


def client_of(api: Guarded, **conf: Any) -> SchemaRegistryClient:
    """Confluent's client with the caller's key as a bearer's token."""
    bearer = {
        "bearer.auth.credentials.source": "STATIC_TOKEN",
        "bearer.auth.token": api.token,
        "bearer.auth.logical.cluster": "lsrc-1",
        "bearer.auth.identity.pool.id": "pool-1",
    }
    # It would read the authorities of the machine, for 40 ms each time, whether or not there is TLS.
    plain = {"url": f"http://127.0.0.1:{api.port}/schemas", "ssl.ca.location": False}
    client = SchemaRegistryClient({**plain, **(conf or bearer)})
    CLIENTS.append(client)
    return client


#: The clients of a test, whose connections end with it.
CLIENTS: list[SchemaRegistryClient] = []


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    yield
    while CLIENTS:
        CLIENTS.pop().close()


def record(*fields: dict[str, Any], name: str = "Order") -> Schema:
    return Schema(json.dumps({"type": "record", "name": name, "fields": list(fields)}, indent=1), "AVRO")


def refusal(call: Callable[[], object]) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as refused:
        call()
    return refused.value.http_status_code, refused.value.error_code


ID = {"name": "id", "type": "int"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
V1, V2, BROKEN = record(ID), record(ID, NOTE), record(ID, {"name": "note", "type": "string"})


def test_type_20_register_lookup_and_read_back(admin: Guarded) -> None:
    client, other = client_of(admin), client_of(admin)
    first = client.register_schema("shown-value", V1)
    second = client.register_schema("shown-value", V2)
    assert second > first == other.register_schema("also-value", V1)
    assert other.get_schema(second).schema_str == json.dumps(json.loads(V2.schema_str or ""), separators=(",", ":"))
    assert other.lookup_schema("shown-value", V1).version == 1
    assert other.get_versions("shown-value") == [1, 2]
    newest = other.get_latest_version("shown-value")
    assert (newest.version, newest.schema_id) == (2, second) == (other.get_version("shown-value", 2).version, second)
    assert {"also-value", "shown-value"} <= set(other.get_subjects())
    assert other.get_subjects(subject_prefix="sho") == ["shown-value"]
    assert other.get_subjects_by_schema_id(first) == ["also-value", "shown-value"]
    assert [(one.subject, one.version) for one in other.get_schema_versions(first)] == [
        ("also-value", 1),
        ("shown-value", 1),
    ]
    assert set(client.get_schema_types()) == {"AVRO", "JSON", "PROTOBUF", "COLUMNS"} and client.get_contexts() == ["."]
    assert refusal(lambda: other.get_schema(9_999)) == (404, 40403)
    assert refusal(lambda: other.get_versions("nobody")) == (404, 40401)
    assert refusal(lambda: other.get_version("shown-value", 9)) == (404, 40402)
    assert refusal(lambda: other.get_version("shown-value", 0)) == (422, 42202)
    assert refusal(lambda: other.lookup_schema("shown-value", BROKEN)) == (404, 40403)


def test_type_20_raw_texts_and_the_largest_id(admin: Guarded) -> None:
    id_ = client_of(admin).register_schema("raw-value", Schema('"long"', "AVRO"))
    for path in (f"schemas/ids/{id_}", "subjects/raw-value/versions/latest"):
        assert admin.call("GET", f"/schemas/{path}/schema").json == "long"
    assert admin.call("GET", f"/schemas/schemas/ids/{id_}?fetchMaxId=true").json["maxId"] >= id_
    assert [one["subject"] for one in admin.call("GET", "/schemas/schemas?subjectPrefix=raw").json] == ["raw-value"]
    assert admin.call("GET", "/schemas").json == {}


def test_type_21_compatibility_is_checked_and_may_be_set(admin: Guarded) -> None:
    client = client_of(admin)
    client.register_schema("checked-value", V1)
    assert client.test_compatibility("checked-value", V2) and not client.test_compatibility("checked-value", BROKEN)
    assert not client.test_compatibility_all_versions("checked-value", BROKEN)
    verbose = admin.call(
        "POST",
        "/schemas/compatibility/subjects/checked-value/versions/latest?verbose=true",
        {"schema": BROKEN.schema_str},
    ).json
    assert verbose["is_compatible"] is False and "field note has no default" in verbose["messages"][0]
    assert refusal(lambda: client.register_schema("checked-value", BROKEN)) == (409, 409)
    assert refusal(lambda: client.get_compatibility("checked-value")) == (404, 40408)
    assert client.get_compatibility() == "BACKWARD"
    assert client.set_compatibility("checked-value", "NONE")["compatibility"] == "NONE"
    assert client.get_compatibility("checked-value") == "NONE"
    client.register_schema("checked-value", BROKEN)
    assert client.delete_config("checked-value").compatibility_level == "NONE"
    assert refusal(lambda: client.set_compatibility("checked-value", "SOMEHOW")) == (422, 42203)
    client.set_compatibility(level="FULL")
    try:
        assert client.get_compatibility() == "FULL"
        assert not client.test_compatibility("checked-value", V2)
    finally:
        assert client.delete_config().compatibility_level == "FULL"
    assert client.get_compatibility() == "BACKWARD"


@pytest.mark.parametrize(
    ("kind", "used", "using", "worse"),
    [
        ("AVRO", '{"type":"record","name":"Address","fields":[]}', '{"type":"array","items":"Address"}', '"Address"'),
        ("JSON", '{"type":"object"}', '{"properties":{"a":{"$ref":"address"}}}', '{"$ref":"nothing"}'),
        (
            "PROTOBUF",
            'syntax = "proto3"; message Address {}',
            'syntax = "proto3"; import "address"; message Order { Address a = 1; }',
            'syntax = "proto3"; import "nothing"; message Order {}',
        ),
    ],
)
def test_type_22_references_of_each_type(admin: Guarded, kind: str, used: str, using: str, worse: str) -> None:
    client = client_of(admin)
    subject, name = f"dir/{kind}.used", "Address" if kind == "AVRO" else "address"
    client.register_schema(subject, Schema(used, kind))
    refers = Schema(using, kind, [SchemaReference(name, subject, 1)])
    id_ = client.register_schema(f"{kind}-value", refers)
    assert client.register_schema(f"{kind}-value", refers) == id_
    assert client.get_referenced_by(subject, 1) == [id_]
    (reference,) = client.get_version(f"{kind}-value", 1).schema.references or ()
    assert (reference.subject, reference.version) == (subject, 1)
    assert refusal(lambda: client.delete_subject(subject)) == (422, 42206)
    assert refusal(lambda: client.register_schema("refers-value", Schema(using, kind))) == (422, 42201)
    unknown = Schema(using, kind, [SchemaReference(name, subject, 2)])
    assert refusal(lambda: client.register_schema("refers-value", unknown)) == (422, 42201)
    if kind != "AVRO":
        assert refusal(lambda: client.register_schema("refers-value", Schema(worse, kind))) == (422, 42201)


def test_type_23_modes_and_the_import_of_ids(admin: Guarded) -> None:
    client = client_of(admin)
    client.register_schema("closed-value", V1)
    assert client.get_global_mode() == "READWRITE" and refusal(lambda: client.get_mode("closed-value")) == (404, 40409)
    assert client.update_mode("closed-value", "READONLY") == client.get_mode("closed-value") == "READONLY"
    assert refusal(lambda: client.register_schema("closed-value", V2)) == (422, 42205)
    assert refusal(lambda: client.delete_subject("closed-value")) == (422, 42205)
    assert client.delete_mode("closed-value") == "READONLY"
    assert refusal(lambda: client.update_mode("closed-value", "IMPORT")) == (422, 42205)
    assert refusal(lambda: client.update_mode("closed-value", "SOMEHOW")) == (422, 42204)
    assert client.update_mode("brought-value", "IMPORT") == "IMPORT"
    brought = {"schema": '"bytes"', "id": 100_001, "version": 7}
    assert admin.call("POST", "/schemas/subjects/brought-value/versions", brought).json["id"] == 100_001
    assert client.get_versions("brought-value") == [7]
    clash = {"schema": '"double"', "id": 100_001}
    assert admin.call("POST", "/schemas/subjects/brought-value/versions", clash).json["error_code"] == 42205
    assert client.register_schema("after-value", Schema('"float"', "AVRO")) == 100_002


def test_type_25_what_is_deleted_is_still_read_by_its_id_until_it_is_gone(admin: Guarded) -> None:
    client, fresh = client_of(admin), lambda: client_of(admin)
    id_ = client.register_schema("gone-value", record(ID, name="Gone"))
    client.register_schema("gone-value", record(ID, NOTE, name="Gone"))
    assert refusal(lambda: client.delete_version("gone-value", 1, permanent=True)) == (404, 40407)
    assert client.delete_version("gone-value", 1) == 1 and refusal(lambda: client.delete_version("gone-value", 1)) == (
        404,
        40406,
    )
    assert client.get_versions("gone-value") == [2] and client.get_versions("gone-value", deleted=True) == [1, 2]
    assert fresh().get_schema(id_).schema_str and fresh().get_subjects_by_schema_id(id_) == []
    assert client.delete_subject("gone-value") == [2] and "gone-value" not in client.get_subjects()
    assert "gone-value" in client.get_subjects(deleted=True) and "gone-value" in client.get_subjects(deleted_only=True)
    assert refusal(lambda: admin_delete(admin, "gone-value")) == (404, 40404)
    assert refusal(lambda: fresh().get_latest_version("gone-value")) == (404, 40401)
    assert fresh().register_schema("gone-value", record(ID, name="Gone")) == id_
    assert client.get_versions("gone-value") == [3]
    assert refusal(lambda: admin_delete(admin, "gone-value", "?permanent=true")) == (404, 40405)
    assert client.delete_subject("gone-value") == [3]
    assert client.delete_subject("gone-value", permanent=True) == [1, 2, 3]
    assert refusal(lambda: fresh().get_schema(id_)) == (404, 40403)
    assert fresh().register_schema("gone-value", record(ID, name="Gone")) > id_


def admin_delete(admin: Guarded, subject: str, query: str = "") -> None:
    """Delete without the client, which deletes softly first."""
    reply = admin.call("DELETE", f"/schemas/subjects/{subject}{query}")
    if reply.status != 200:
        raise SchemaRegistryError(reply.status, reply.json["error_code"], reply.json["message"])


def test_type_26_a_subject_has_the_access_rules_of_its_topic(admin: Guarded) -> None:
    maker = admin.caller("maker", ("topic", "theirs", "alter", "publish"), ("topic", "lib.*", "alter"))
    reader = admin.caller("reader", ("topic", "theirs", "subscribe"))
    basic = client_of(maker, **{"basic.auth.user.info": f"maker:{maker.token}"})
    theirs, mine = client_of(reader), client_of(admin)
    id_ = basic.register_schema("theirs-value", record(ID, name="Theirs"))
    secret = mine.register_schema("secret-value", record(ID, name="Secret"))
    assert basic.register_schema("lib.common", record(ID, name="Common"))
    assert theirs.get_schema(id_) and theirs.get_subjects() == ["theirs-value"]
    assert theirs.test_compatibility("theirs-value", record(ID, NOTE, name="Theirs"))
    assert theirs.lookup_schema("theirs-value", record(ID, name="Theirs")).version == 1
    for refused in (
        lambda: theirs.register_schema("theirs-value", V1),
        lambda: theirs.register_schema("theirs-key", V1),
        lambda: basic.register_schema("secret-value", V1),
        lambda: theirs.set_compatibility("theirs-value", "NONE"),
        lambda: basic.set_compatibility(level="NONE"),
        lambda: basic.update_global_mode("READONLY"),
        lambda: basic.delete_subject("theirs-value"),
        lambda: theirs.get_versions("secret-value"),
    ):
        assert refusal(refused) == (403, 40301)
    assert refusal(lambda: theirs.get_schema(secret)) == (404, 40403), "as if there were none"
    key = str(maker.token)[4:20]
    assert client_of(maker, **{"basic.auth.user.info": f"{key}:{maker.token}"}).get_subjects()
    for user in ("reader", "", "nobody"):
        wrong = client_of(maker, **{"basic.auth.user.info": f"{user}:{maker.token}"})
        assert refusal(wrong.get_subjects) == (401, 40101)


def test_type_26_a_topic_gets_another_topics_subject_only_from_who_may_see_or_change_it(admin: Guarded) -> None:
    client_of(admin).register_schema("guarded-value", record(ID, name="Guarded"))
    maker = admin.caller("topic.maker", ("topic", "made.*", "create", "alter"))
    helped = admin.caller("helped", ("topic", "made.*", "create", "alter"), ("topic", "guarded", "describe"))
    wanted: dict[str, Any] = {"format": "avro", "subject": "guarded-value"}
    text = record(ID, NOTE, name="Guarded").schema_str
    for caller, schema, status in (
        (maker, wanted, 403),
        (helped, {**wanted, "schema": text}, 403),
        (helped, wanted, 201),
        (maker, {"format": "avro", "schema": text}, 201),
    ):
        topic = f"made.{caller.token[-4:]}{status}" if caller.token else ""
        assert caller.call("PUT", f"/v1/topics/{topic}", {"schema": schema}).status == status, (schema, status)
    assert client_of(admin).get_versions("guarded-value") == [1]


def test_type_20_serializers_of_each_format_write_what_their_deserializers_read(admin: Guarded) -> None:
    sender = admin.caller("sender", ("topic", "wire*", "publish", "create"))
    reader = admin.caller("receiver", ("topic", "wire*", "subscribe"))
    sends, reads = client_of(sender, **{"basic.auth.user.info": f"sender:{sender.token}"}), client_of(reader)
    written = SerializationContext("wire", MessageField.VALUE)
    order = {"id": 5, "note": "größe"}
    avro = AvroSerializer(sends, V2.schema_str)(order, written)
    assert avro[:1] == b"\0" and AvroDeserializer(reads)(avro, written) == order
    text = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})
    in_json = SerializationContext("wire-json", MessageField.VALUE)
    body = JSONSerializer(text, sends)(order, in_json)
    assert JSONDeserializer(None, schema_registry_client=reads)(body, in_json) == order
    in_proto = SerializationContext("wire-proto", MessageField.VALUE)
    status = Status(code=7, message="größe")
    proto = ProtobufSerializer(Status, sends, {"use.deprecated.format": False})(status, in_proto)
    assert ProtobufDeserializer(Status, {"use.deprecated.format": False}, reads)(proto, in_proto) == status
    assert reads.get_latest_version("wire-proto-value").schema.schema_type == "PROTOBUF"
    assert reads.get_associations_by_resource_name("wire", "-", "topic", ["value"]) == []


def test_type_24_protobuf_in_text_is_given_as_a_descriptor_if_asked(admin: Guarded) -> None:
    client = client_of(admin)
    text = 'syntax = "proto3"; message Seen { int32 a = 1; }'
    id_ = client.register_schema("seen-value", Schema(text, "PROTOBUF"))
    assert client_of(admin).get_schema(id_).schema_str == text
    serialized = client_of(admin).get_schema(id_, fmt="serialized").schema_str
    assert client.register_schema("seen-again", Schema(serialized, "PROTOBUF")) > id_
    assert refusal(lambda: client_of(admin).get_schema(id_, fmt="resolved")) == (422, 422)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"schema": "{"}, 42201),
        ({"schema": '{"type":"record"}'}, 42201),
        ({"schema": "message {", "schemaType": "PROTOBUF"}, 42201),
        ({"schema": '{"type":"text"}', "schemaType": "JSON"}, 42201),
        ({"schema": "id NOTHING", "schemaType": "COLUMNS"}, 42201),
        ({"schema": "a", "schemaType": "XML"}, 42201),
        ({"schema": '"int"', "ruleSet": {"domainRules": [{"name": "encrypt"}]}}, 42210),
        ({"schema": '"int"', "references": [{"name": "a"}]}, 42201),
        ({}, 42201),
        (b"{", 400),
        (b"[" * 100_000, 42201),
        ({"schema": "[" * 100_000}, 42201),
    ],
)
def test_type_24_bad_input_is_refused_with_where_and_why(admin: Guarded, body: Any, code: int) -> None:
    reply = admin.call("POST", "/schemas/subjects/bad-value/versions", body, "application/vnd.schemaregistry.v1+json")
    assert (reply.status, reply.json["error_code"]) == (int(str(code)[:3]), code) and reply.json["message"]
    assert reply.headers["content-type"] == "application/vnd.schemaregistry.v1+json"


def test_type_24_other_refusals_are_confluents_too(admin: Guarded) -> None:
    assert admin.call("POST", "/schemas/subjects/x", b"{}", "text/plain").json["error_code"] == 415
    large = {"schema": json.dumps({"type": "enum", "name": "E", "symbols": [], "doc": "x" * 1_100_000})}
    assert admin.call("POST", "/schemas/subjects/x/versions", large).json["error_code"] == 413
    assert admin.call("GET", "/schemas/nothing").json["error_code"] == 404
    assert admin.call("GET", "/schemas/subjects?limit=x").json["error_code"] == 422
    subject = "/schemas/subjects/%3A.other%3Aorders-value/versions"
    assert admin.call("POST", subject, {"schema": '"int"'}).json["error_code"] == 42208


def test_type_20_a_restart_knows_everything(tmp_path: Path) -> None:
    made_before_features(tmp_path)
    with guarded(tmp_path) as api:
        id_ = client_of(api).register_schema("kept-value", V1)
        client_of(api).set_compatibility("kept-value", "FULL")
        client_of(api).delete_version("kept-value", 1)
        token = api.token
    with guarded(tmp_path, token=token) as api:
        client = client_of(api)
        assert client.get_schema(id_).schema_str and client.get_compatibility("kept-value") == "FULL"
        assert client.register_schema("kept-value", V1) == id_ and client.get_versions("kept-value") == [2]
        assert [one.feature for one in api_features(api)] == ["guarded", "schemas"]


def api_features(api: Guarded) -> Any:
    from deltamq.mq.client.admin.admin import Admin

    with Admin(f"http://127.0.0.1:{api.port}", token=api.token) as admin:
        return admin.upgrade_state().on


def test_type_20_a_service_without_authentication_has_a_registry_for_everybody(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        client = client_of(Guarded(api.port, api.service), url=f"http://127.0.0.1:{api.port}/schemas")
        assert client.register_schema("open-value", V1) == 1 and client.get_latest_version("open-value").version == 1


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    yield from two_in(tmp_path_factory.mktemp("two") / "warehouse")


def test_type_20_processes_that_register_at_once_give_one_text_one_id_and_each_text_its_own(two: Two) -> None:
    same = record(ID, name="Same")
    others = [record(ID, name=f"Other{at}") for at in range(12)]
    with ThreadPoolExecutor(8) as threads:
        alike = list(
            threads.map(lambda at: client_of(two[at % 2]).register_schema(f"same{at % 3}-value", same), range(24))
        )
        unlike = list(
            threads.map(
                lambda at: client_of(two[at % 2]).register_schema(f"other{at}-value", others[at]), range(len(others))
            )
        )
    assert len(set(alike)) == 1 and len({*alike, *unlike}) == 13
    for api in two:
        client = client_of(api)
        assert [client.get_schema(id_).schema_str for id_ in unlike] == [
            json.dumps(json.loads(one.schema_str or ""), separators=(",", ":")) for one in others
        ]


def test_type_21_of_two_that_change_a_subject_at_once_one_is_checked_against_the_other(two: Two) -> None:
    client_of(two.a).register_schema("raced-value", record(ID, name="Raced"))

    def register(at: int) -> int:
        # Each is compatible with the first version, and no two of them are with each other.
        field = {
            "name": "more",
            "type": ["null", {"type": "enum", "name": f"E{at}", "symbols": ["A"]}],
            "default": None,
        }
        return client_of(two[at % 2]).register_schema("raced-value", record(ID, field, name="Raced"))

    def tried(at: int) -> bool:
        try:
            return register(at) > 0
        except SchemaRegistryError as error:
            assert error.error_code == 409
            return False

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(tried, range(8))) == 1
    assert client_of(two.b).get_versions("raced-value") == [1, 2]
