"""The sink of `format("mq")`: exactly once, through `tables/` (SPEC SPARK-3)."""

from __future__ import annotations

from deltamq.jobs.sink.place import SinkPlace, SinkSettings, place_of
from deltamq.jobs.sink.sink import batch_writer, stream_writer

__all__ = [
    "SinkPlace",
    "SinkSettings",
    "batch_writer",
    "place_of",
    "stream_writer",
]
