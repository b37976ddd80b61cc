"""What generators of clients for other languages are given by the document (SPEC LOOK-21)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from deltamq.api.app import create_app
from deltamq.api.openapi.portable import make_portable
from tests.api.running import config_for

Json = dict[str, Any]

#: Generated clients call these: a name stays, whatever becomes of the function behind it.
OPERATIONS = """
ack alive cancelDelayed cancelMessage check cluster commitOffsets console countDeadLetters dead deleteDeadLetters
deleteGroup deleteQuarantine deleteTopic disablePrincipal enablePrincipal erase explain fetch heartbeat invisible jobs
listActs listAcls listDeadLetters listDelayed listExports listGroups listKeys listPrincipals listQuarantine listQuotas
listRefusals listTopics makeKey may metrics nack offsetsByTime pauseGroup pop produce putAcl putApplied putBroker
putCopy putGroup putLogLevel putPartition putPrincipal putQuota putTopic ready releaseLocks remap removeAcl
removePassword removePrincipal repair replayDeadLetters replayQuarantine resetOffsets resumeGroup revokeKey search
setAside settings showApplied showCopy showDeliveries showErasure showGroup showHistory showInFlight showLatest
showLock showNumbers showOffsets showPrincipal showRetention showRetries showStatistics showTopic signIn
switchOn takeLocks upgrade
"""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    return create_app(config_for(tmp_path_factory.mktemp("openapi") / "warehouse")).fastapi.openapi()


def schemas(value: Any) -> Iterator[Json]:
    """All schemas of a part of the document."""
    if isinstance(value, list):
        for item in value:
            yield from schemas(item)
    elif isinstance(value, dict):
        yield value
        for name, item in value.items():
            if name == "properties":
                yield from (one for field in item.values() for one in schemas(field))
            elif name not in ("example", "examples"):
                yield from schemas(item)


def test_look_21_calls_have_short_names_that_stay(document: Json) -> None:
    names = [call["operationId"] for path in document["paths"].values() for call in path.values()]
    assert sorted(names) == sorted(OPERATIONS.split())
    assert all(re.fullmatch("[a-z]+([A-Z][a-z]+)*", name) for name in names)


def test_look_21_fields_that_may_be_left_out_have_no_default(document: Json) -> None:
    fields = [
        (field, name in one.get("required", ()))
        for one in schemas(document)
        for name, field in one.get("properties", {}).items()
    ]
    assert len(fields) > 500
    assert [field for field, required in fields if "default" in field and not required] == []
    wait = document["components"]["schemas"]["PopRequest"]["properties"]["max_messages"]
    assert (wait["type"], wait["description"]) == (["integer", "null"], "By default 32.")


def test_look_21_integers_say_their_size_and_words_their_type(document: Json) -> None:
    integers = [one for one in schemas(document) if one.get("type") in ("integer", ["integer", "null"])]
    assert len(integers) > 200
    assert {one.get("format") for one in integers} == {"int32", "int64"}
    assert all(one["format"] == "int64" for one in integers if not 0 <= one.get("maximum", -1) < 2**31)
    assert all("type" in one for one in schemas(document) if "enum" in one)


def test_look_21_times_of_answers_say_that_they_are(document: Json) -> None:
    schemas = document["components"]["schemas"].values()
    times = [field for one in schemas for name, field in one.get("properties", {}).items() if name.endswith("_time")]
    assert len(times) > 40 and {field.get("format") for field in times} == {"date-time"}


def test_look_21_javascript_holds_every_integer_but_those_that_say_so(document: Json) -> None:
    wide = [one for one in schemas(document) if one.get("format") == "int64"]
    held = [one for one in wide if one.get("maximum", 2**63) <= 2**53 - 1]
    others = {one["description"] for one in wide if one not in held}
    assert len(held) > 200 and all("2^53" in said for said in others)
    for name, where in (("producer_seq", "StoredMessage"), ("seq", "Producer")):
        assert document["components"]["schemas"][where]["properties"][name]["description"] in others


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, {"enum": ["a", None], "type": ["string", "null"]}),
        (
            {"anyOf": [{"type": "integer", "maximum": 9}, {"type": "null"}], "description": "x"},
            {"type": ["integer", "null"], "maximum": 9, "format": "int32", "description": "x"},
        ),
        (
            {"anyOf": [{"$ref": "#/x"}, {"type": "null"}]},
            {"anyOf": [{"$ref": "#/x"}, {"type": "null"}]},
        ),
        (
            {"properties": {"default": {"type": "string", "default": "eu"}}, "required": []},
            {"properties": {"default": {"type": "string", "description": 'By default "eu".'}}, "required": []},
        ),
        (
            {"in": "query", "schema": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            {"in": "query", "schema": {"type": "string"}},
        ),
        ({"example": {"type": "integer"}}, {"example": {"type": "integer"}}),
        ({"description": "a\n\n    b"}, {"description": "a\n\nb"}),
    ],
)  # fmt: skip
def test_look_21_a_schema_is_rewritten(before: Json, after: Json) -> None:
    make_portable(before)
    assert before == after
