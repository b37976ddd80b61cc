"""How far behind a query is, from its progress (SPARK-12)."""

from __future__ import annotations

import json
import logging
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from deltamq.jobs.stream.progress import BatchProgress, OffsetsBehind, ProgressListener, behind
from deltamq.mq.streams import StreamOffset, TopicOffset


def _position(**offsets: int) -> dict[str, Any]:
    return StreamOffset(warehouse="w", topics={"t": TopicOffset("id", offsets)}).to_json()


def _progress() -> dict[str, Any]:
    kafka = {"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 9}}}
    ours = {"endOffset": _position(a=10, b=4), "latestOffset": _position(a=40, b=4, c=6)}
    return {"sources": [kafka, ours, {"endOffset": None, "latestOffset": None}]}


EXPECTED = OffsetsBehind(source=1, partitions=3, total=36, min=0, max=30, avg=12.0)


class _Progress(dict[str, Any]):
    """As Spark's: a dictionary with attributes, offsets as JSON text."""

    id, name, batchId, numInputRows, batchDuration = uuid.UUID(int=1), "gold", 7, 50, 120


def _event(told: dict[str, Any]) -> Any:
    sources = [{name: json.dumps(value) for name, value in source.items()} for source in told["sources"]]
    return SimpleNamespace(progress=_Progress(sources=sources))


def test_spark_12_behind_is_latest_minus_end_of_our_sources() -> None:
    assert behind(_progress()) == [EXPECTED]
    assert behind(_event(_progress()).progress) == [EXPECTED]


def test_spark_12_behind_before_the_first_batch_is_nothing() -> None:
    assert behind(None) == []
    assert behind({"sources": [{"endOffset": _position(a=1), "latestOffset": None}]}) == []


def test_spark_12_a_listener_writes_one_line_and_hands_the_numbers_on(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BatchProgress] = []
    with caplog.at_level(logging.INFO):
        ProgressListener(told.append).onQueryProgress(_event(_progress()))
    assert told[0].behind == (EXPECTED,)
    assert (told[0].batch_id, told[0].rows, told[0].took_ms) == (7, 50, 120)
    [line] = [record.message for record in caplog.records]
    assert line.startswith("event=stream_batch query=00000000-0000-0000-0000-000000000001 name='gold' batch=7 rows=50")
    assert "source=1 behind_min=0 behind_max=30 behind_avg=12.0 behind_total=36" in line


def test_spark_12_a_callback_that_fails_harms_no_query(caplog: pytest.LogCaptureFixture) -> None:
    def failing(_: BatchProgress) -> None:
        raise ValueError("mine")

    ProgressListener(failing).onQueryProgress(_event(_progress()))
    assert "event=stream_listener_failed" in caplog.text


def test_spark_12_a_query_without_our_sources_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ProgressListener().onQueryProgress(_event({"sources": [{"endOffset": "3", "latestOffset": "not json"}]}))
    assert not caplog.records
