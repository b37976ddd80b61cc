"""The second process: it reads only the topic's Delta tables, with Spark SQL.

It gets questions on standard input and answers on standard output, one JSON line each, after a first line with Spark's
version; Spark's own output goes to standard error. Each answer describes one moment.

| question  | purpose                             | how it reads                                                     |
|-----------|-------------------------------------|------------------------------------------------------------------|
| `look`    | the view of a dashboard              | `format("mq")`, three columns: many small commits cost it little |
| `account` | Spark's side of the report          | `read_topic`: the partitions' Delta tables, as Spark reads them  |
| `left`    | whether the groups are done         | state tables and partitions (`group_reading`)             |
| `groups`  | Spark's side of the second table    | the same                                                         |
| `follow`  | starts the streams; their folder    | `readStream.format("mq")` (`streaming`)                   |
| `streams` | the third table; end of the streams | the tables that the streams wrote                                |
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from deltamq.jobs.flights.account import Account, PartitionCount
from deltamq.jobs.flights.child import Child
from deltamq.jobs.flights.events import BODY_FIELDS, DEPARTURE
from deltamq.jobs.flights.statements import statements
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from deltamq.jobs.flights.group_account import GroupAccount
    from deltamq.jobs.flights.group_reading import GroupReader
    from deltamq.jobs.flights.streaming import FlightStreams, StreamAccount

QUERIES: Final = Path(__file__).with_name("queries.sql")
SHOWN: Final = 3
WARM_UP: Final = "warm-up"
ANSWER_TIMEOUT_S: Final = 300.0

T = TypeVar("T")


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A question about a topic, and about groups that consume it."""

    what: Literal["look", "account", "left", "groups", "follow", "streams"]
    topic: str
    groups: list[str] = []


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Spark's view of the topic, and the time of the look."""

    messages: int
    seconds: float
    #: Aircraft and their departures, most first.
    busiest: list[tuple[str, int]]
    #: Carriers and their mean delay of departure in minutes, latest first.
    delays: list[tuple[str, float]]
    #: Rows that the stream has typed so far.
    typed: int = 0


def ask(reader: Child, question: Ask, answer: type[T]) -> T:
    """Send a question to the reader's process, and return its answer."""
    reader.write_line(msgspec.json.encode(question).decode())
    return msgspec.json.decode(reader.read_line(ANSWER_TIMEOUT_S), type=answer)


def queries() -> dict[str, str]:
    """Return the named statements of `queries.sql`, with their placeholders filled in."""
    schema = ", ".join(f"{name} {kind}" for name, kind in BODY_FIELDS.items())
    return statements(QUERIES, body_schema=schema, limit=SHOWN)


def look(spark: SparkSession, topic: str, **options: str) -> Look:
    """Return the present view of the topic; `options` go to `format("mq")`."""
    began = time.monotonic()
    source = spark.read.format("mq").options(topic=topic, **options)
    views = _Views(spark, source.schema("key STRING, tag STRING, body BINARY").load())
    with views.kept("summary"):
        return Look(
            messages=views.row("seen")["messages"],
            busiest=[(row["aircraft"], row["departures"]) for row in views.rows("busiest")],
            delays=[(row["carrier"], row["delay_min"]) for row in views.rows("delays")],
            seconds=round(time.monotonic() - began, 3),
        )


def account(spark: SparkSession, topic: str, **options: str) -> Account:
    """Return Spark's account of the topic; the bodies are read once, and their checksums cached meanwhile."""
    from deltamq.jobs.sql.reader import read_topic

    views = _Views(spark, read_topic(spark, topic, **options))
    with views.kept("fingerprints"):
        sequences = views.rows("sequences")
        return Account(
            kinds={row["tag"]: row["messages"] for row in views.rows("kinds")},
            partitions={
                row["partition"]: PartitionCount(messages=row["messages"], dense=row["dense"])
                for row in views.rows("partitions")
            },
            bodies_crc=views.row("checksum")["bodies_crc"] or 0,
            sequences={row["key"]: row["digest"] for row in sequences},
            scattered=sum(row["partitions"] > 1 for row in sequences),
        )


class _Views:
    """A topic's messages as the view `events`, and the queries on it."""

    def __init__(self, spark: SparkSession, events: DataFrame) -> None:
        self._spark = spark
        self._queries = queries()
        events.createOrReplaceTempView("events")

    @contextmanager
    def kept(self, name: str) -> Iterator[None]:
        """Make a query's result a view of that name, computed once while the block runs."""
        frame = self._spark.sql(self._queries[name]).cache()
        frame.createOrReplaceTempView(name)
        try:
            yield
        finally:
            frame.unpersist()

    def rows(self, name: str) -> list[Row]:
        """Return a query's rows."""
        return self._spark.sql(self._queries[name]).collect()

    def row(self, name: str) -> Row:
        """Return the only row of a query."""
        (row,) = self.rows(name)
        return row


def main(warehouse: str, scratch: str) -> None:
    """Answer questions until standard input ends; Spark's own files go to the folder `scratch`."""
    answers = _own_output()
    signal.signal(signal.SIGTERM, _leave)
    from py4j.protocol import Py4JError

    from deltamq.jobs.spark.session import spark_session

    settings: dict[str, Any] = {"spark.local.dir": scratch}
    spark = spark_session("deltamq-flights", warehouse=warehouse, **settings)
    try:
        _warm_up(spark, scratch)
        _say(answers, spark.version)
        answering = _Answering(spark, warehouse)
        for line in sys.stdin:
            _say(answers, answering(msgspec.json.decode(line, type=Ask)))
    finally:
        # A signal within a call to the JVM leaves the answer unread, and then no other call works.
        # The JVM ends with this process in any case, and removes Spark's files.
        with suppress(Py4JError):
            spark.stop()


Answer: TypeAlias = "str | msgspec.Struct | list[GroupAccount] | dict[str, StreamAccount]"


class _Answering:
    def __init__(self, spark: SparkSession, warehouse: str) -> None:
        from deltamq.jobs.flights.group_reading import GroupReader

        self._spark = spark
        self._warehouse = warehouse
        self._reader: GroupReader = GroupReader(spark, warehouse)
        self._streams: FlightStreams | None = None

    def __call__(self, question: Ask) -> Answer:
        match question.what:
            case "look":
                return self._look(question.topic)
            case "account":
                return account(self._spark, question.topic)
            case "left":
                return self._reader.left(question.topic, question.groups)
            case "groups":
                return self._reader.accounts(question.topic, question.groups)
            case "follow":
                return self._follow(question.topic)
            case "streams":
                assert self._streams is not None, "the streams were never started"
                return self._streams.account()

    def _look(self, topic: str) -> Look:
        view = look(self._spark, topic)
        return msgspec.structs.replace(view, typed=self._streams.rows() if self._streams else 0)

    def _follow(self, topic: str) -> str:
        from deltamq.jobs.flights.streaming import FlightStreams

        folder = f"{self._warehouse}/spark/flights/{topic}"
        self._streams = FlightStreams(self._spark, topic, folder)
        self._streams.start()
        return folder


def _warm_up(spark: SparkSession, scratch: str) -> None:
    """Query another topic with one message: Spark's first query takes many times as long as later ones."""
    folder = str(Path(scratch) / "warm-up")
    warehouse = Warehouse.open(folder)
    try:
        log = warehouse.create(PartitionRef(Space.TOPICS, WARM_UP, f"{WARM_UP}@here"))
        log.append([Batch(pa.RecordBatch.from_pylist([{"tag": DEPARTURE, "body": b"{}"}]))])
    finally:
        warehouse.close()
    view = look(spark, WARM_UP, warehouse=folder)
    assert view.messages == 1, view


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End as at the end of input: Spark stops and removes its files."""
    raise SystemExit(0)


def _own_output() -> TextIO:
    """Reserve standard output for the answers: Spark's JVM inherits the descriptor and prints to it."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _say(answers: TextIO, answer: Answer) -> None:
    answers.write(msgspec.json.encode(answer).decode() + "\n")
    answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
