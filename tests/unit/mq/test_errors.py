"""The error tree: one HTTP status and one stable code for each class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from deltamq.mq import errors
from deltamq.mq.errors import DeltaMQError, Overloaded, Unknown

# The contract with clients (API.md, RFC 9457): a change here is a change of the API.
EXPECTED = {
    "DeltaMQError": (500, "internal", "unknown"),
    "Refused": (400, "invalid_request", "not_stored"),
    "Unprocessable": (422, "invalid_value", "not_stored"),
    "NotFound": (404, "not_found", "not_stored"),
    "TooLarge": (413, "too_large", "not_stored"),
    "UnsupportedMedia": (415, "unsupported_media_type", "not_stored"),
    "Unauthenticated": (401, "unauthenticated", "not_stored"),
    "Forbidden": (403, "forbidden", "not_stored"),
    "Conflict": (409, "conflict", "not_stored"),
    "Fenced": (409, "fenced", "not_stored"),
    "OffsetMismatch": (412, "offset_mismatch", "not_stored"),
    "Overloaded": (429, "overloaded", "not_stored"),
    "Unavailable": (503, "unavailable", "unknown"),
    "StorageFull": (507, "storage_full", "not_stored"),
    "Unknown": (503, "outcome_unknown", "unknown"),
    "Corrupt": (500, "corrupt", "unknown"),
}


def tree(root: type[DeltaMQError]) -> Iterator[type[DeltaMQError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


OURS = {kind.__name__: kind for kind in tree(DeltaMQError) if kind.__module__ == errors.__name__}


def test_every_error_of_the_tree_is_public_and_in_the_table() -> None:
    assert set(OURS) == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_error_has_one_http_status_and_code_and_says_what_became_of_the_call(name: str) -> None:
    error = OURS[name]()
    assert (error.status, error.code, error.outcome) == EXPECTED[name]
    assert error.not_known().outcome == "unknown"
    assert HTTPStatus(error.status) >= HTTPStatus.BAD_REQUEST


def test_codes_are_unique_and_snake_case() -> None:
    codes = [kind.code for kind in OURS.values()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_the_picture_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+) .*?(\d{3})$", errors.__doc__ or "", flags=re.MULTILINE)
    assert {name: int(status) for name, status in drawn} == {
        name: kind.status for name, kind in OURS.items() if kind is not DeltaMQError
    }


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_docstring_is_the_default_detail(name: str) -> None:
    error = OURS[name]()
    assert error.detail
    assert error.detail == (OURS[name].__doc__ or "").strip() == str(error)


def test_an_error_carries_its_code_field_and_facts() -> None:
    error = errors.Refused("too long", code="invalid_topic_name", field="topic", extra={"limit": 127})
    assert (error.detail, error.code) == ("too long", "invalid_topic_name")
    assert (error.field, error.extra) == ("topic", {"limit": 127})


def test_overloaded_says_when_to_come_back() -> None:
    error = Overloaded(retry_after_s=7)
    assert error.retry_after_s == 7
    assert error.extra == {"retry_after_s": 7}


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("unavailable", "unknown"),
        ("queue_unserved", "unknown"),
        ("starting", "unknown"),
        ("not_readable", "unknown"),
        ("not_writable", "not_stored"),
        ("connect_failed", "not_stored"),
        ("certificate_not_trusted", "not_stored"),
        ("token_unavailable", "not_stored"),
        ("not_sent", "not_stored"),
        ("producer_closed", "not_stored"),
        ("pop_cancelled", "not_stored"),
    ],
)
def test_unavailable_has_stored_nothing_only_if_its_code_says_so(code: str, outcome: str) -> None:
    assert errors.Unavailable(code=code).outcome == outcome
    assert errors.Unavailable(code=code).not_known().outcome == "unknown"


def test_unknown_is_neither_a_refusal_nor_a_conflict() -> None:
    """An unknown outcome must never be taken for "nothing was stored" (SPEC RELY-5)."""
    assert not issubclass(Unknown, errors.Refused | errors.Conflict | errors.Unavailable)
