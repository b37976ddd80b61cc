"""A stream reader driven as Spark's planner process and tasks drive it, offsets as JSON in between."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from deltamq.jobs.spark.datasource import MessageSource
from deltamq.jobs.stream.reader import MessageStreamReader


class Stream:
    """One run of a query; `checkpoint` survives it."""

    def __init__(self, warehouse: Path | str, checkpoint: dict[str, Any] | None = None, **options: str) -> None:
        what = {} if {"assign", "subscribePattern"} & options.keys() else {"topic": "orders"}
        source = MessageSource(what | {"startingOffsets": "earliest", "warehouse": str(warehouse)} | options)
        made = source.streamReader(source.schema())
        assert isinstance(made, MessageStreamReader)
        self._task = pickle.loads(pickle.dumps(made))
        self.reader = made
        self.at = checkpoint if checkpoint is not None else _stored(made.initialOffset())

    def batch(self, limit: ReadLimit | None = None) -> list[tuple[str, int]]:
        """Run the next batch; returns the places that it read, none if there were no new messages."""
        end = self.end(limit)
        rows = [] if end == self.at else self.read(self.at, end)
        self.at = end
        return rows

    def end(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Return the end of the next batch."""
        asked = limit or self.reader.getDefaultReadLimit()
        return _stored(self.reader.latestOffset(json.loads(json.dumps(self.at)), asked))

    def all_of_it(self) -> list[tuple[str, int]]:
        """Run the batch of a trigger that reads everything available."""
        return self.batch(ReadAllAvailable())

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
        """Return the places that the tasks of a batch read."""
        found: list[tuple[str, int]] = []
        for partition in self.reader.partitions(start, end):
            for batch in self._task.read(pickle.loads(pickle.dumps(partition))):
                found += zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
        return sorted(found)


def _stored(offset: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(offset)
    read: dict[str, Any] = json.loads(text)
    assert json.dumps(read) == text, "Spark compares offsets as text"
    return read
