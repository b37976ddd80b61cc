"""The second process: reads along with Spark SQL, and knows of the topic only what its Delta tables say.

It is asked on standard input and answers on standard output, one JSON line each; whatever Spark prints goes to
standard error. `look` counts, and shows what a dashboard would; `account` is Spark's side of the report. Each answer
is about one moment: offsets are resolved once, when the question arrives.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template
from types import FrameType
from typing import TYPE_CHECKING, Final, TextIO

import msgspec

from jobs.flights.account import Account, PartitionCount
from jobs.flights.events import BODY_FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

__all__ = ["Ask", "Look", "Ready", "account", "look", "main", "queries"]

QUERIES: Final = Path(__file__).with_name("queries.sql")
SHOWN: Final = 3


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: Spark is there."""

    spark: str


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A question: `look` or `account` of a topic."""

    what: str
    topic: str


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What Spark saw, and how long it took."""

    messages: int
    seconds: float
    #: Aircraft and departures, most first.
    busiest: list[tuple[str, int]]
    #: Carrier, mean delay of departure in minutes, latest first.
    delays: list[tuple[str, float]]


def queries() -> dict[str, str]:
    """Return the named statements of `queries.sql`, with what they leave open filled in."""
    schema = ", ".join(f"{name} {kind}" for name, kind in BODY_FIELDS.items())
    statements = {}
    for block in QUERIES.read_text(encoding="utf-8").split("-- name: ")[1:]:
        name, _, text = block.partition("\n")
        statements[name.strip()] = Template(text.strip()).substitute(body_schema=schema, limit=SHOWN)
    return statements


def look(spark: SparkSession, topic: str) -> Look:
    """Return what the topic shows now."""
    began = time.monotonic()
    views = _Views(spark, topic)
    views.add("departures")
    return Look(
        messages=views.one("seen")["messages"],
        busiest=[(row["aircraft"], row["departures"]) for row in views.rows("busiest")],
        delays=[(row["carrier"], row["delay_min"]) for row in views.rows("delays")],
        seconds=round(time.monotonic() - began, 3),
    )


def account(spark: SparkSession, topic: str) -> Account:
    """Return Spark's account of the topic; the bodies are read once and their fingerprints kept meanwhile."""
    views = _Views(spark, topic)
    fingerprints = views.add("fingerprints").cache()
    try:
        sequences = views.rows("sequences")
        return Account(
            kinds={row["tag"]: row["messages"] for row in views.rows("kinds")},
            partitions={row["partition"]: _count(row) for row in views.rows("partitions")},
            bodies_crc=views.one("checksum")["bodies_crc"] or 0,
            sequences={row["key"]: row["digest"] for row in sequences},
            scattered=sum(row["partitions"] > 1 for row in sequences),
        )
    finally:
        fingerprints.unpersist()


class _Views:
    """The topic at one moment as the view `events`, and what is derived from it."""

    def __init__(self, spark: SparkSession, topic: str) -> None:
        from jobs.reader import read_topic

        self._spark = spark
        self._queries = queries()
        read_topic(spark, topic).createOrReplaceTempView("events")

    def add(self, name: str) -> DataFrame:
        """Make a query's result a view of that name."""
        frame = self._spark.sql(self._queries[name])
        frame.createOrReplaceTempView(name)
        return frame

    def rows(self, name: str) -> list[Row]:
        """Return a query's rows."""
        return self._spark.sql(self._queries[name]).collect()

    def one(self, name: str) -> Row:
        """Return the row of a query that has one."""
        (row,) = self.rows(name)
        return row


def _count(row: Row) -> PartitionCount:
    return PartitionCount(
        messages=row["messages"],
        distinct_offsets=row["distinct_offsets"],
        first_offset=row["first_offset"],
        end_offset=row["end_offset"],
    )


def main(warehouse: str, scratch: str) -> None:
    """Answer until standard input ends; Spark's own files go to the folder `scratch`."""
    answers = _own_output()
    signal.signal(signal.SIGTERM, _leave)
    from jobs.session import spark_session

    spark = spark_session("deltamq-flights", warehouse=warehouse, **{"spark.local.dir": scratch})
    try:
        _say(answers, Ready(spark=spark.version))
        for question in _questions(sys.stdin):
            answer = account if question.what == "account" else look
            _say(answers, answer(spark, question.topic))
    finally:
        spark.stop()


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End as at the end of input: Spark stops and takes its files away."""
    raise SystemExit(0)


def _own_output() -> TextIO:
    """Return standard output for the answers alone: Spark's JVM inherits the descriptor and prints to it."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _questions(lines: TextIO) -> Iterator[Ask]:
    for line in lines:
        yield msgspec.json.decode(line, type=Ask)


def _say(answers: TextIO, answer: msgspec.Struct) -> None:
    answers.write(msgspec.json.encode(answer).decode() + "\n")
    answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
