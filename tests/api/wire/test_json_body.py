"""The small JSON bodies: one definition decodes, refuses by name, and describes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import jsonschema_rs
import msgspec
import pytest
from msgspec import Meta

from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import BODIES, REF
from deltamq.mq.errors import Refused

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    """A part."""

    flag: bool | None = None
    many: list[Whole] = []


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    """All that a body may have."""

    id: Annotated[str, Meta(min_length=1)]
    word: bool | Literal["a", "b"] | None = None
    parts: Annotated[dict[str, Inner], Meta(max_length=1_000)] | None = None
    numbers: dict[str, Whole] | None = None
    names: Annotated[list[str] | None, Meta(description="Names.")] = None
    words: list[Literal["c", "d"]] = []


EXAMPLE: dict[str, Any] = {"id": "x", "word": "a", "parts": {"p": {"flag": True}}, "names": ["n"]}
BODY = JsonBody(Outer, EXAMPLE)
ITEMS = JsonBody(Outer, EXAMPLE, items=True)


def refused(body: JsonBody[Outer], **given: object) -> Refused:
    with pytest.raises(Refused) as caught:
        body.decoded({"id": "x", **given})
    return caught.value


@pytest.mark.parametrize(
    ("given", "status", "code", "field"),
    [
        ({"id": None}, 400, "missing_field", "id"),
        ({"id": ""}, 422, "invalid_value", "id"),
        ({"other": None}, 400, "unknown_field", "other"),
        ({"word": 1}, 400, "invalid_type", "word"),
        ({"word": "c"}, 422, "invalid_value", "word"),
        ({"word": "c` - at `$.id"}, 422, "invalid_value", "word"),
        ({"parts": {"p": {}, "q": 1, "r": 2}}, 400, "invalid_type", "parts.q"),
        ({"parts": {"p": {}, "q": {"flg": True}}}, 400, "unknown_field", "parts.q.flg"),
        ({"parts": {"p": {"many": [1]}, "q": {"many": [1, -1]}}}, 422, "invalid_value", "parts.q.many"),
        ({"parts": {str(at): {} for at in range(1_001)}}, 422, "invalid_value", "parts"),
        ({"numbers": {"p": 1, "`q`": None}}, 400, "invalid_type", "numbers.`q`"),
        ({"numbers": {"p": 2**63, "q": -1}}, 422, "invalid_value", "numbers.p"),
        ({"numbers": {"[...]": 2**70}}, 422, "invalid_value", "numbers.[...]"),
        ({"numbers": {"p": 1, "q[0]": -1}}, 422, "invalid_value", "numbers.q[0]"),
        ({"names": ["a", 1]}, 400, "invalid_type", "names"),
        ({"words": ["c", "x"]}, 422, "invalid_value", "words"),
        ({"names[0]": 1}, 400, "unknown_field", "names[0]"),
        ({"names[...]": 1}, 400, "unknown_field", "names[...]"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, object], status: int, code: str, field: str) -> None:
    error = refused(BODY, **given)
    assert (error.status, error.code, error.field) == (status, code, field)
    assert field in error.detail


@pytest.mark.parametrize(
    "name", ["x` - at `$.numbers[...]", "x` - at `$.parts[...].flag", "x` - at `$.id[...]", "Invalid enum value"]
)
def test_a_field_that_is_named_like_a_refusal_is_refused(name: str) -> None:
    assert refused(BODY, numbers={"p": 1}, **{name: 1}).code == "unknown_field"


def test_a_refused_word_is_told_with_those_that_are_taken() -> None:
    assert refused(BODY, word="c").detail == "word must be one of true, false, a, b"
    assert refused(BODY, words=["c", "x"]).detail == "words[1] must be one of c, d"


def test_an_item_of_a_list_is_named_where_that_is_asked_for() -> None:
    assert refused(ITEMS, names=["a", 1]).field == "names[1]"
    assert "names[1]" in refused(BODY, names=["a", 1]).detail


def test_a_null_is_a_field_that_is_left_out() -> None:
    nulls = {"word": None, "parts": None, "numbers": None, "names": None}
    assert BODY.decoded({"id": "x", **nulls}) == Outer("x")


def test_what_describes_a_body_is_what_decodes_it() -> None:
    content = BODY.described["requestBody"]["content"]["application/json"]
    assert content["example"] == EXAMPLE and Outer in BODIES
    _, schemas = msgspec.json.schema_components([Outer], ref_template=f"{REF}{{name}}")
    check = jsonschema_rs.validator_for({**content["schema"], "components": {"schemas": schemas}})
    assert check.is_valid(EXAMPLE)
    for wrong in ({}, {"id": ""}, {"id": "x", "more": 1}, {"id": "x", "parts": {"p": {"flg": 1}}}):
        assert not check.is_valid(wrong)
