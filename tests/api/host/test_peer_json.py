"""Answers of other processes and clusters that are no problem documents (SPEC STATIC-19)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltamq.api.host.clusters import has_newer_copy
from deltamq.api.host.owners import Relayed
from deltamq.api.host.peers import json_of
from deltamq.api.sending.global_sender import stored_by
from deltamq.api.wire.answer import Answer
from deltamq.mq.errors import Unavailable
from deltamq.mq.wire.produce import ProduceAnswer

HTML, TEXT, JSON = ([(b"content-type", kind)] for kind in (b"text/html", b"text/plain", b"application/json"))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(503, HTML, b"<html>Service Unavailable</html>"),
        Answer(503, TEXT, b"\xff\xfe"),
        Answer(503, JSON, b"[]"),
    ],
)
@pytest.mark.parametrize("read", [Relayed.of, has_newer_copy, stored_by])
def test_static_19_what_is_no_problem_document_is_an_unavailable_peer(
    read: Callable[[Answer], object], answer: Answer
) -> None:
    with pytest.raises(Unavailable) as raised:
        read(answer)
    assert raised.value.code == "broker_unavailable" and "503" in raised.value.detail


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, TEXT, b"Internal Server Error"),
        Answer(404, JSON, b'{"detail":"Not Found"}'),
        Answer(429, [(b"retry-after", b"Fri, 27 Nov 2026 04:00:00 GMT")], b'{"detail":"too many","code":"busy"}'),
    ],
)
def test_static_19_a_problem_that_is_not_ours_is_an_unavailable_peer(answer: Answer) -> None:
    with pytest.raises(Unavailable):
        Relayed.of(answer)


def test_static_19_a_page_with_status_200_is_an_unavailable_peer() -> None:
    for body in (b"<html>Welcome</html>", b"{}", b"\xff"):
        with pytest.raises(Unavailable):
            json_of(body, ProduceAnswer)


def test_static_19_a_problem_document_is_passed_on_as_it_is() -> None:
    body = b'{"status":409,"detail":"it moves","code":"remap_in_progress","field":"topic","cluster":"west"}'
    problem = Relayed.of(Answer(409, [(b"retry-after", b"3")], body))
    assert (problem.status, problem.code, problem.detail, problem.field) == (
        409,
        "remap_in_progress",
        "it moves",
        "topic",
    )
    assert problem.extra == {"cluster": "west"} and problem.retry_after_s == 3
