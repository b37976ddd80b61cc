"""An error of ours is one line where Spark hands it on; a fault keeps its traceback (SPARK-23)."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pytest
from pyspark.util import handle_worker_exception

from deltamq.jobs.tasks.first_lines import errors_in_one_line, in_one_line, sentence_of
from deltamq.mq.errors import NotFound


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the variables back after the test."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.setenv("SPARK_BUFFER_SIZE", "65536")


@in_one_line
def _raises(error: Exception) -> None:
    raise error


def _yields(error: Exception) -> Iterator[int]:
    with errors_in_one_line():
        yield 1
        raise error


def _handed_on(error: Exception, *, lazily: bool) -> str:
    """Return what Spark's driver gets, as a worker writes it."""
    out = io.BytesIO()
    try:
        list(_yields(error)) if lazily else _raises(error)
    except Exception as raised:
        handle_worker_exception(raised, out)
    return out.getvalue()[8:].decode()  # behind its kind and its length


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.usefixtures("hidden")
def test_spark_23_an_error_of_ours_is_handed_on_in_one_line(lazily: bool) -> None:
    said = _handed_on(NotFound("there is no topic 'a': create it"), lazily=lazily)
    assert said == "deltamq.mq.errors.NotFound: there is no topic 'a': create it\n"


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.usefixtures("hidden")
def test_spark_23_a_fault_keeps_its_traceback(lazily: bool) -> None:
    said = _handed_on(KeyError("x"), lazily=lazily)
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.endswith("\nKeyError: 'x'\n")


@pytest.mark.usefixtures("hidden")
def test_spark_23_only_a_process_of_sparks_hides_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_BUFFER_SIZE")
    assert _handed_on(NotFound("gone"), lazily=False).startswith("Traceback")
    assert not os.environ["SPARK_HIDE_TRACEBACK"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[STREAM_FAILED] Query: mq.errors.Refused: the topic\n SQLSTATE: 1", "the topic"),
        ("a\nTraceback\n  raise\njobs.stream.planner.StreamDataLost: it: is gone\nplan", "it: is gone"),
        ("ours mq.errors.Refused: first\nlater\nmq.errors.NotFound: last", "last"),
        ("\nZeroDivisionError: division by zero\nmore", "ZeroDivisionError: division by zero"),
        ("", ""),
    ],
)
def test_spark_23_a_sentence_is_found_in_what_spark_says(text: str, sentence: str) -> None:
    assert sentence_of(text) == sentence
