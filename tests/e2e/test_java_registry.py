"""Confluent's client of a schema registry for Java, and a serializer that uses it (SPEC TYPE-20 to TYPE-26, KAFKA-25).

Confluent's jars are not on Maven Central. A jar of Flink is, which has their client with nothing changed but the names
of packages, and Flink's serializers, which write Confluent's framing by this client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deltamq import Admin
from tests.api.guarded import Guarded, guarded
from tests.e2e.service_process import ServiceProcess
from tests.e2e.test_two_brokers import call
from tests.free_ports import free_port
from tests.java import GENERATIONS, REGISTRY, Java

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

_PROGRAMS = Path(__file__).parents[1] / "java"
_FORMS = Path(__file__).parents[1] / "api" / "schemas" / "avro_forms.jsonl"
_COUNT = 1_000
_BEGIN = datetime.fromtimestamp(1_700_000_000, UTC)

Told = dict[str, str]
Tell = Callable[..., Told]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Java:
    made = Java(GENERATIONS["4.3"], REGISTRY)
    classes = tmp_path_factory.mktemp("classes")
    for program in ("Registry", "TypedValues"):
        made.compile(_PROGRAMS / f"{program}.java", classes)
    return made


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("schemas")) as api:
        yield api


@pytest.fixture
def tell(java: Java, admin: Guarded) -> Tell:
    """Return what the client says of a part, with the administrator's key as a bearer's token."""

    def told(part: str, *arguments: str) -> Told:
        return _told(java, admin, part, *arguments, *_bearer(admin))

    return told


def _bearer(api: Guarded) -> tuple[str, ...]:
    return ("bearer.auth.credentials.source=STATIC_TOKEN", f"bearer.auth.token={api.token}")


def _told(java: Java, api: Guarded, part: str, *arguments: str, user: str = "") -> Told:
    url = f"http://{user}127.0.0.1:{api.port}/schemas"
    lines = java.run("Registry", url, part, *arguments)
    return {name: value for name, _, value in (line.partition("\t") for line in lines)}


ONE = '{"type":"record","name":"Shown","fields":[{"name":"id","type":"int"}]}'
TWO = ONE.removesuffix("]}") + ',{"name":"note","type":["null","string"],"default":null}]}'


def test_type_20_confluents_client_for_java_registers_looks_up_and_reads_back(tell: Tell) -> None:
    told = tell("versions")
    first, second = told["first"], told["second"]
    assert int(second) > int(first) > 0
    assert told == {
        "first": first,
        "second": second,
        "again": first,
        "elsewhere": first,
        "normalized": first,
        "answer": second,
        "by id": TWO,
        "by subject and id": ONE,
        "id": first,
        "version": "2",
        "versions": "[1, 2]",
        "newest": f"{second} 2 AVRO {TWO}",
        "oldest": f"{first} 1 AVRO {ONE}",
        "by version": TWO,
        "subjects": told["subjects"],
        "subjects by prefix": "[shown-value]",
        "subjects by id": "[also-value, shown-value]",
        "versions by id": "[{subject=also-value,version=1}, {subject=shown-value,version=1}]",
        "schemas": f"[{ONE}, {TWO}]",
        "newest schemas": f"[{TWO}]",
        "types": "[AVRO, JSON, PROTOBUF, COLUMNS]",
        "contexts": "[.]",
        "text by id": ONE,
        "newest text": TWO,
        "no id": "refused 404 40403",
        "no subject": "refused 404 40401",
        "no version": "refused 404 40402",
        "bad version": "refused 422 42202",
        "no such schema": "refused 404 40403",
    }
    assert {"also-value", "shown-value"} <= set(told["subjects"].strip("[]").split(", "))


def test_type_20_javas_client_finds_the_schemas_that_others_wrote_in_their_own_way(
    tell: Tell, admin: Guarded, tmp_path: Path
) -> None:
    texts = [json.loads(line)[0] for line in _FORMS.read_text(encoding="utf-8").splitlines()]
    file = tmp_path / "texts"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    wanted: Told = {}
    for at, text in enumerate(texts):
        reply = admin.call("POST", f"/schemas/subjects/form{at}/versions", {"schema": text})
        assert reply.status == 200, (text, reply)
        for kind in ("found", "registered", "read"):
            wanted[f"{kind} form{at}"] = str(reply.json["id"])
        wanted[f"versions form{at}"] = "[1]"
    assert tell("forms", str(file)) == wanted


def test_type_22_the_calls_of_javas_client_take_texts_of_each_type_and_references(tell: Tell) -> None:
    told = tell("types")
    assert int(told.pop("JSON used")) > 0 and int(told.pop("PROTOBUF used")) > 0
    assert told == {
        "JSON": "JSON true true",
        "PROTOBUF": "PROTOBUF true true",
        "not found": "refused 422 42201",
        "XML": "refused 422 42201",
    }
    address = '{"type":"record","name":"Address","fields":[{"name":"id","type":"int"}]}'
    assert tell("references") == {
        "again": "true",
        "by id": "[{name='Address', subject='dir/address', version=1}]",
        "whole": '{"type":"array","items":' + address + "}",
        "users": "true",
        "stays": "refused 422 42206",
        "no such": "refused 422 42201",
        "without": "refused 422 42201",
    }


def test_type_21_javas_client_checks_and_sets_compatibility(tell: Tell) -> None:
    told = tell("compatibility")
    assert "field note has no default" in told.pop("why")
    assert told == {
        "fits": "true",
        "does not fit": "false",
        "refused": "refused 409 409",
        "none": "refused 404 40408",
        "of all": "BACKWARD",
        "set": "NONE",
        "read": "NONE",
        "taken": "true",
        "unknown": "refused 422 42203",
        "put": "FULL",
        "got": "FULL",
        "none again": "refused 404 40408",
    }


def test_type_23_javas_client_sets_modes_and_imports_ids(tell: Tell) -> None:
    assert tell("modes") == {
        "of all": "READWRITE",
        "none": "refused 404 40409",
        "set": "READONLY",
        "read": "READONLY",
        "refused": "refused 422 42205",
        "stays": "refused 422 42205",
        "taken": "true",
        "unknown": "refused 422 42204",
        "import": "IMPORT",
        "brought": "100001",
        "versions": "[7]",
        "clash": "refused 422 42205",
        "next": "100002",
    }


def test_type_25_javas_client_deletes_versions_and_subjects_for_now_and_for_good(tell: Tell) -> None:
    assert tell("deletions") == {
        "permanent first": "refused 404 40407",
        "version": "1",
        "again": "refused 404 40406",
        "versions": "[2]",
        "all versions": "[1, 2]",
        "deleted versions": "[1]",
        "by id": ONE.replace("Shown", "Gone"),
        "subjects of id": "[]",
        "last": "[2]",
        "no subject": "refused 404 40404",
        "live": "false",
        "all": "true",
        "deleted": "[gone-value]",
        "anew": "true",
        "new version": "[3]",
        "subject": "[3]",
        "for good": "[1, 2, 3]",
        "gone": "refused 404 40403",
        "other id": "true",
    }


def test_type_26_javas_client_shows_a_key_in_each_way_that_it_has(java: Java, admin: Guarded) -> None:
    made = admin.call("POST", "/schemas/subjects/theirs-value/versions", {"schema": ONE})
    assert made.status == 200, made
    reader = admin.caller("reader", ("topic", "theirs", "subscribe"))
    source = "basic.auth.credentials.source="
    theirs = {"subjects": "[theirs-value]"}
    assert _told(java, reader, "subjects", *_bearer(reader)) == theirs
    basic = (f"{source}USER_INFO", f"basic.auth.user.info=reader:{reader.token}")
    assert _told(java, reader, "subjects", *basic) == theirs
    assert _told(java, reader, "subjects", f"{source}URL", user=f"reader:{reader.token}@") == theirs
    refused = {"subjects": "refused 401 40101"}
    assert _told(java, reader, "subjects") == refused
    assert (
        _told(java, reader, "subjects", f"{source}USER_INFO", f"basic.auth.user.info=admin:{reader.token}") == refused
    )
    # No rule lets a reader register.
    assert _told(java, reader, "alter", *basic) == {"registered": "refused 403 40301"}


def test_kafka_25_values_of_a_serializer_in_java_are_columns_while_a_version_is_added(
    java: Java, tmp_path: Path
) -> None:
    port = free_port()
    service = ServiceProcess(tmp_path / "warehouse", "--kafka-port", str(port))
    try:
        lines = java.run("TypedValues", f"127.0.0.1:{port}", f"{service.url}/schemas", "orders", str(_COUNT))
        told = [line.split("\t") for line in lines]
        sent = {int(number): (int(partition), int(offset)) for kind, number, partition, offset in _of("SENT", told)}
        assert sorted(sent) == list(range(_COUNT)) and len(set(sent.values())) == _COUNT
        # The deserializer's values are what was sent; of the older schema with the default of the newer one.
        assert {
            int(number): (int(partition), int(offset)) for _, number, partition, offset, _ in _of("READ", told)
        } == sent
        assert {line[4] for line in _of("READ", told)} == {"true"}
        [(_, refused)] = _of("REFUSED", told)
        assert "incompatible" in refused and "missing" in refused and "409" in refused
        with Admin(service.url) as admin:
            topic = admin.get_topic("orders")
            assert topic.schema is not None and (topic.schema.format, topic.schema.wire) == ("avro", "confluent")
            assert (topic.schema.subject, topic.schema.version) == ("orders-value", 2)
        for index, partition in enumerate(topic.partitions):
            wanted = {offset: number for number, (place, offset) in sent.items() if place == index}
            rows = DeltaTable(partition.location).to_pyarrow_table().to_pylist()
            assert {row["offset"]: row["value"] for row in rows} == {
                offset: _value(number) for offset, number in wanted.items()
            }
            assert {row["key"] for row in rows} == {f"key {number}" for number in wanted.values()}
            assert {row["body"][:5] for row in rows} == {b"\0\0\0\0\1", b"\0\0\0\0\2"}
            found = _fetched(service, partition.partition, len(rows))
            assert found == {offset: _shown(number) for offset, number in wanted.items()}
    finally:
        service.close()


def _of(kind: str, told: list[list[str]]) -> list[list[str]]:
    return [line for line in told if line[0] == kind]


def _is_newer(number: int) -> bool:
    return number >= _COUNT // 2 and number % 2 == 0


def _value(number: int) -> dict[str, Any]:
    """Return the columns of what the program sends."""
    return {
        "number": number,
        "item": None if number % 3 == 0 else f"größe {number}",
        "amount": Decimal(number * 7 - 500).scaleb(-2),
        "at": _BEGIN + timedelta(milliseconds=number),
        "state": "PAID" if number % 2 else "NEW",
        "tags": ["a", f"tag {number}"] if number % 4 else [],
        "place": {"city": f"city {number % 10}"},
        "note": f"note {number}" if _is_newer(number) else None,
    }


def _shown(number: int) -> dict[str, Any]:
    """Return the value as REST shows it."""
    value = _value(number)
    value |= {"amount": f"{value['amount']:.2f}", "at": value["at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    return {name: cell for name, cell in value.items() if cell is not None}


def _fetched(service: ServiceProcess, partition: str, count: int) -> dict[int, Any]:
    found: dict[int, Any] = {}
    while len(found) < count:
        path = f"/v1/topics/orders/partitions/{partition}/messages?offset={len(found)}&typed=true"
        reply: Any = call(service.url, "GET", path)
        assert reply.status == 200 and reply.json["messages"], reply
        found |= {message["offset"]: message["value"] for message in reply.json["messages"]}
    return found
