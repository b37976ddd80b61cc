"""Each error of ours is one status and one code, and nothing that we did not mean to say leaves the service."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from deltamq.api.wire.answer import PROBLEM_TYPE, answer_of, as_deltamq_error, install
from deltamq.mq import errors
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.failpoints import FailpointHit


def _all_errors(kind: type[DeltaMQError] = DeltaMQError) -> Iterator[type[DeltaMQError]]:
    # The client's own errors never meet the service, whatever was imported before; those of requests make their text.
    if not kind.__module__.startswith(("deltamq.mq.client", "deltamq.api.wire")):
        yield kind
    for below in kind.__subclasses__():
        yield from _all_errors(below)


@pytest.mark.parametrize("kind", sorted(set(_all_errors()), key=lambda k: k.__name__), ids=lambda k: k.__name__)
def test_each_error_is_one_problem_document(kind: type[DeltaMQError]) -> None:
    answer = answer_of(kind("why"))
    problem = json.loads(bytes(answer.body))
    assert answer.status == problem["status"] == kind.status
    assert problem["code"] == kind.code and problem["detail"] == "why"
    assert problem["type"] == f"urn:deltamq:problem:{kind.code}"
    retry = dict(answer.headers).get(b"retry-after")
    assert (retry is not None) == issubclass(kind, (errors.Overloaded, errors.Unavailable, errors.Unknown))
    assert kind.status < 500 or kind.status in (503, 507) or kind.code in ("internal", "corrupt") or retry is None


def test_facts_travel_in_the_problem() -> None:
    error = errors.TooLarge("big", code="message_too_large", field="body", extra={"limit": 3})
    problem = json.loads(bytes(answer_of(error).body))
    assert (problem["field"], problem["limit"], problem["code"]) == ("body", 3, "message_too_large")


def test_an_unforeseen_error_says_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        error = as_deltamq_error(RuntimeError("secret"))
    assert (error.status, error.code) == (500, "internal") and "secret" not in error.detail
    assert "kind=RuntimeError" in caplog.text


def test_an_unforeseen_error_of_any_route_is_answered_with_a_problem_document() -> None:
    app = FastAPI()
    install(app)

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("secret")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/broken")

    answer = asyncio.run(ask())
    assert answer.status_code == 500 and answer.headers["content-type"] == PROBLEM_TYPE.decode()
    assert answer.json()["code"] == "internal" and "secret" not in answer.text


def test_a_failpoint_is_an_unknown_outcome() -> None:
    assert as_deltamq_error(FailpointHit("x")).code == "outcome_unknown"
