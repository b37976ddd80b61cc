"""Batches that were cut short anywhere and planned again, while the log moves on, read each message once (SPARK-2).

The engine around the reader is played: it stores a batch's end before the batch runs, and the sink ignores a number
that it has. What is checked is that a reader made anew gives the same rows for the same offsets, wherever they lie.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.queue_tables import QueueTables
from tests.unit.jobs.stream.driven import Stream


class _Engine:
    """A query with its checkpoint folder and its sink; the process may die between any two steps."""

    def __init__(self, tables: QueueTables, chance: random.Random) -> None:
        self._tables = tables
        self._chance = chance
        self._planned: list[dict[str, Any]] = []  # the offset log: where each batch ends
        self._done = 0  # the commit log: batches that are done
        self.sink: dict[int, list[tuple[str, int]]] = {}
        self._stream = self._made()
        self._first = self._stream.at

    def _made(self) -> Stream:
        at = self._planned[-1] if self._planned else None
        most = str(self._chance.choice([3, 40, 1_000]))
        return Stream(self._tables.warehouse.uri, at, maxOffsetsPerTrigger=most, group="played")

    def kill(self) -> None:
        """The application dies and is started again."""
        self._stream = self._made()
        if self._done < len(self._planned):
            self._run(self._done)

    def batch(self, *, dies_after: str = "") -> bool:
        """Run a batch, up to where the application dies; False when there was none."""
        end = self._stream.end()
        if end == self._start(len(self._planned)):
            return False
        if dies_after == "latestOffset":
            return True
        self._planned.append(end)
        self._stream.at = end
        if dies_after != "plan":
            self._run(self._done, dies_after=dies_after)
        return True

    def _start(self, batch: int) -> dict[str, Any]:
        return self._planned[batch - 1] if batch else self._first

    def _run(self, batch: int, *, dies_after: str = "") -> None:
        rows = self._stream.read(self._start(batch), self._planned[batch])
        if dies_after == "read":
            return
        assert self.sink.setdefault(batch, rows) == rows, "a batch that is read again has the same rows"
        if dies_after != "sink":
            self._done = batch + 1


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_spark_02_batches_cut_short_anywhere_read_each_message_once(tables: QueueTables, seed: int) -> None:
    chance = random.Random(seed)
    topic = tables.topic(partitions=2)
    engine = _Engine(tables, chance)
    for _ in range(20):
        for _ in range(chance.randrange(12)):
            tables.send(topic, *"abc"[: chance.randint(1, 3)], partition=chance.randrange(len(topic.route.partitions)))
        if chance.random() < 0.3:
            for number in range(len(topic.route.partitions)):
                tables.log(topic, number).maintain()
        if chance.random() < 0.05:
            topic = tables.topic(partitions=len(topic.route.partitions) + 1)
        dies_after = chance.choice(["", "", "latestOffset", "plan", "read", "sink"])
        engine.batch(dies_after=dies_after)
        if dies_after or chance.random() < 0.1:
            engine.kill()
    while engine.batch():
        pass
    found = Counter(place for rows in engine.sink.values() for place in rows)
    logs = {name: tables.log(topic, number) for number, name in enumerate(topic.route.partitions)}
    assert found == Counter((name, offset) for name, log in logs.items() for offset in range(log.end_offset))
    assert len(found) > 100
