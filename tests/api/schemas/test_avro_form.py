"""The one form of Avro's texts, as Avro's own library for Java writes them (SPEC TYPE-20)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.schemas.texts import given_form, stored_form
from deltamq.mq.errors import Unprocessable
from tests.api.guarded import Guarded, guarded

#: A text on each line; what Confluent's client for Java makes of it: `new AvroSchema(text).canonicalString()`; and of
#: that, `normalize()`, or null where it loses something (a default, a namespace, that a record is an error).
CASES = [
    json.loads(line) for line in Path(__file__).with_name("avro_forms.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("forms")) as api:
        yield api


def form(text: str, normalize: bool = False) -> str:
    return stored_form("AVRO", text, normalize=normalize)


@pytest.mark.parametrize(("given", "javas"), [case[:2] for case in CASES])
def test_type_20_avros_texts_have_the_form_that_its_library_for_java_writes(given: str, javas: str) -> None:
    assert json.loads(form(given)) == json.loads(javas)
    # The order counts, digits of numbers do not: both write them in a way of their own.
    assert form(given) == given_form("AVRO", javas) == form(javas)


@pytest.mark.parametrize(("given", "normal"), [(given, normal) for given, _, normal in CASES if normal is not None])
def test_type_20_normalized_texts_are_those_of_confluent(given: str, normal: str) -> None:
    assert form(given, normalize=True) == given_form("AVRO", normal) == form(normal, normalize=True)
    assert form(form(given), normalize=True) == form(given, normalize=True)


@pytest.mark.parametrize(
    "text",
    [
        '{"type":{"type":"int"}}',
        '{"type":"n.Name","size":1}',
        '{"type":"record","fields":[]}',
        '{"type":"record","name":7,"fields":[]}',
        '{"type":"record","name":"A","fields":{"name":"b"}}',
        '{"type":"record","name":"A","fields":[1,{"doc":"d"}],"aliases":[1]}',
        '{"type":"array"}',
        '{"items":"int"}',
        "[1,null,true]",
    ],
)
def test_type_20_what_is_no_schema_of_avro_stays_as_it_is(text: str) -> None:
    assert form(text) == text


def test_type_20_a_text_that_is_nested_too_deeply_is_refused() -> None:
    for depth in (300, 800, 20_000):
        deep = '{"type":"array","items":' * depth + '"int"' + "}" * depth
        default = '{"type":"record","name":"A","fields":[{"name":"b","default":' + "[" * depth + "]" * depth + "}]}"
        for text in (deep, default):
            try:
                assert form(text, normalize=True) == text
            except Unprocessable as refused:
                assert refused.code == "invalid_schema" and depth > 300


def test_type_20_texts_of_other_types_have_no_form() -> None:
    given = '{ "type" : "object",\n "title" : "größe" }'
    assert stored_form("JSON", given, normalize=False) == '{"type":"object","title":"größe"}'
    assert stored_form("JSON", given, normalize=True) == '{"title":"größe","type":"object"}'
    assert stored_form("COLUMNS", " a INT\n", normalize=True) == "a INT"


def registered(api: Guarded, subject: str, text: str, **more: Any) -> Any:
    reply = api.call("POST", f"/schemas/subjects/{subject}/versions", {"schema": text, **more})
    assert reply.status == 200, reply
    return reply.json


WRITTEN = '{"namespace":"shop","type":"record","name":"Order","fields":[{"type":{"type":"int"},"name":"id"}]}'
FORMED = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"int"}]}'


def test_type_20_one_schema_has_one_id_however_it_is_written(admin: Guarded) -> None:
    id_ = registered(admin, "written-value", WRITTEN)["id"]
    assert registered(admin, "written-value", FORMED)["version"] == 1
    assert registered(admin, "formed-value", FORMED)["id"] == id_
    found = admin.call("POST", "/schemas/subjects/written-value", {"schema": FORMED}).json
    assert (found["id"], found["version"], found["schema"]) == (id_, 1, FORMED)
    normal = admin.call("POST", "/schemas/subjects/written-value/versions?normalize=true", {"schema": WRITTEN}).json
    assert (normal["id"], normal["version"]) == (id_, 1)


def test_type_23_texts_that_come_with_their_ids_stay_as_they_are_also_if_they_are_one_schema(admin: Guarded) -> None:
    texts = {1001: WRITTEN.replace("shop", "other"), 1002: FORMED.replace("shop", "other")}
    assert admin.call("PUT", "/schemas/mode/came-value", {"mode": "IMPORT"}).status == 200
    for number, (id_, text) in enumerate(texts.items(), 1):
        assert registered(admin, "came-value", text, id=id_, version=number)["id"] == id_
    assert admin.call("DELETE", "/schemas/mode/came-value").status == 200
    for id_, text in texts.items():
        assert admin.call("GET", f"/schemas/schemas/ids/{id_}").json["schema"] == text
        assert registered(admin, "came-value", text)["id"] == id_
    assert admin.call("GET", "/schemas/subjects/came-value/versions").json == [1, 2]


def test_type_20_a_text_that_was_stored_without_the_form_keeps_its_id(admin: Guarded) -> None:
    text = WRITTEN.replace("shop", "old")
    assert admin.call("PUT", "/schemas/mode/old-value", {"mode": "IMPORT"}).status == 200
    registered(admin, "old-value", text, id=2001, version=1)
    assert admin.call("DELETE", "/schemas/mode/old-value").status == 200
    assert registered(admin, "old-value", text)["id"] == 2001
    assert registered(admin, "also-old-value", text)["id"] == 2001
    # Where the form has an id meanwhile, the text keeps its own in the subject that has it.
    assert registered(admin, "new-value", FORMED.replace("shop", "old"))["id"] > 2001
    assert registered(admin, "old-value", text)["id"] == 2001
    assert admin.call("GET", "/schemas/subjects/old-value/versions").json == [1]
