"""Answers that are no success become the exceptions that the service meant."""

from __future__ import annotations

import inspect
import json

import pytest

from deltamq.mq import errors
from deltamq.mq.client.http.answers import error_of
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound, Overloaded, Refused, Unavailable, Unknown

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DeltaMQError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_survives_the_way_over_http(kind: type[DeltaMQError]) -> None:
    sent = kind("what happened")
    document = {"status": sent.status, "detail": sent.detail, "code": sent.code, "field": "messages[0].key", "limit": 7}
    got = error_of(sent.status, {}, json.dumps(document).encode())
    assert type(got) is kind
    assert (got.status, got.code, got.detail, got.field) == (sent.status, sent.code, sent.detail, "messages[0].key")
    assert got.extra["limit"] == 7


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "topic_not_found", NotFound),
        (409, "partitions_cannot_shrink", Conflict),
        (405, "method_not_allowed", Refused),
        (418, None, Refused),
        (502, None, Unknown),
        (504, None, Unknown),
        (503, "stopping", Unavailable),
    ],
)
def test_a_code_of_its_own_keeps_the_class_of_the_status(
    status: int, code: str | None, kind: type[DeltaMQError]
) -> None:
    error = error_of(status, {}, json.dumps({"code": code}).encode())
    assert type(error) is kind
    assert error.status == status
    assert error.code == (code or kind.code)


def test_a_page_that_is_no_problem_document_is_shown_shortened() -> None:
    error = error_of(502, {}, b"<html>" + b"x" * 10_000)
    assert error.detail.startswith("HTTP 502: <html>xxx")
    assert len(error.detail) < 400
    assert error_of(500, {}, b"").detail == "HTTP 500"


def test_retry_after_is_taken_from_the_header_only() -> None:
    assert error_of(429, {"retry-after": "7"}, b"{}").extra["retry_after_s"] == 7
    assert "retry_after_s" not in error_of(429, {}, b"{}").extra
    assert "retry_after_s" not in error_of(503, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"{}").extra
    assert isinstance(error_of(429, {}, b"[]"), Overloaded)
