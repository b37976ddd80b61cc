"""The streams of the main job: from the topic to a typed table, and from this table to sums by carrier and hour.

    format("mq") --from_json--> flights (silver, Delta) --sums of each batch--> hours (gold, Delta)

Both are exactly once: the first by the stream's checkpoint and Delta's sink, the second because the MERGE of a batch
stores the batch's number in its own commit, and Delta skips a number that it has.

Their account: the producer's side is computed here, from the acknowledged events; Spark computes its own in SQL
(`stream.sql`), from the typed table and from the table of carriers and hours.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from deltamq.jobs.flights.events import ARRIVAL, BODY_FIELDS, CANCELLATION, DEPARTURE
from deltamq.jobs.flights.statements import statements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


#: The fields of a body that the sums need; `time` stays text, which begins with the hour.
_FIELDS: Final = pa.schema(
    [("event", pa.string()), ("time", pa.string()), ("carrier", pa.string()), ("delay_min", pa.int64())]
)
_HOUR_LENGTH: Final = len("2013-01-01T05")
_SUMS: Final = ("arrivals", "departures", "cancellations", "delay_min")
QUERIES: Final = Path(__file__).with_name("stream.sql")
#: The interval of batches; shorter ones would take cores from the replay.
_EVERY: Final = "2 seconds"
_SOURCE: Final = "partition STRING, offset BIGINT, body BINARY"
_TXN: Final = "spark.databricks.delta.write"


class StreamAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The flights by carrier and hour, as one side has them."""

    events: int
    arrivals: int
    departures: int
    cancellations: int
    #: Total delay of the departures in minutes.
    delay_min: int
    carriers: int
    #: Hours in which a carrier had an event, over all carriers.
    carrier_hours: int
    #: The sum of the CRC-32 of `carrier|hour|arrivals|departures|cancellations|delay` of each.
    hours_crc: int


def expected_stream(bodies: pa.ChunkedArray) -> StreamAccount:
    """Return the account that the streams must have for these events (see `jobs.flights.events.BODY_FIELDS`)."""
    lines = b"\n".join(bodies.to_pylist())
    options = pa.json.ParseOptions(explicit_schema=_FIELDS, unexpected_field_behavior="ignore")
    flights = pa.json.read_json(pa.BufferReader(lines), parse_options=options)
    departed = pc.equal(flights["event"], DEPARTURE)
    columns = {
        "carrier": flights["carrier"],
        "hour": pc.utf8_slice_codeunits(flights["time"], 0, _HOUR_LENGTH),
        "arrivals": pc.equal(flights["event"], ARRIVAL).cast(pa.int64()),
        "departures": departed.cast(pa.int64()),
        "cancellations": pc.equal(flights["event"], CANCELLATION).cast(pa.int64()),
        "delay_min": pc.if_else(departed, pc.fill_null(flights["delay_min"], 0), 0),
    }
    summed = pa.table(columns).group_by(["carrier", "hour"]).aggregate([(name, "sum") for name in _SUMS])
    hours = [summed[name] for name in ("carrier", "hour", *(f"{name}_sum" for name in _SUMS))]
    written = pc.binary_join_element_wise(*[column.cast(pa.string()) for column in hours], "|")
    totals = {name: pc.sum(summed[f"{name}_sum"]).as_py() or 0 for name in _SUMS}
    return StreamAccount(
        events=len(bodies),
        **totals,
        carriers=len(summed["carrier"].unique()),
        carrier_hours=summed.num_rows,
        hours_crc=sum(zlib.crc32(text.encode()) for text in written.to_pylist()),
    )


class FlightStreams:
    """Two streaming queries over one topic; their tables and checkpoints lie in `folder`."""

    def __init__(self, spark: SparkSession, topic: str, folder: str) -> None:
        self._spark = spark
        self._topic = topic
        self._folder = folder
        self._silver = f"{folder}/flights"
        self._gold = f"{folder}/hours"
        self._queries = statements(QUERIES, flights="flights", hours="hours", gold=self._gold)
        self._running: list[StreamingQuery] = []

    def start(self) -> None:
        """Start both queries; they run until `account`."""
        self._spark.sql(self._queries["create"])
        typed = self._start(self._typed().writeStream.format("delta"), "flights", path=self._silver)
        # the second query reads the first one's table, which must exist
        typed.processAllAvailable()
        flights = self._spark.readStream.format("delta").load(self._silver)
        hours = self._start(flights.writeStream.foreachBatch(self._add), "hours")
        self._running = [typed, hours]

    def rows(self) -> int:
        """Return the number of rows of the typed table."""
        return self._spark.read.format("delta").load(self._silver).count()

    def account(self) -> dict[str, StreamAccount]:
        """Let the queries process all stored messages, and end them; return the account of each table."""
        for query in self._running:
            query.processAllAvailable()
        for query in self._running:
            query.stop()
        self._spark.read.format("delta").load(self._silver).createOrReplaceTempView("flights")
        self._spark.sql(self._queries["hours"]).createOrReplaceTempView("hours")
        silver = self._sums()
        self._spark.read.format("delta").load(self._gold).createOrReplaceTempView("hours")
        return {"flights": silver, "hours": self._sums()}

    def _typed(self) -> DataFrame:
        schema = ", ".join(f"{name} {kind}" for name, kind in BODY_FIELDS.items())
        source = self._spark.readStream.format("mq").options(topic=self._topic, startingOffsets="earliest")
        rows = source.schema(_SOURCE).load()
        return rows.selectExpr(
            f"from_json(CAST(body AS STRING), '{schema}') AS flight", "partition AS _partition", "offset AS _offset"
        ).selectExpr("flight.*", "_partition", "_offset")

    def _start(self, writer: DataStreamWriter, name: str, **options: str) -> StreamingQuery:
        checkpoint = f"{self._folder}/checkpoints/{name}"
        writer = writer.options(checkpointLocation=checkpoint, **options).queryName(f"{self._topic} {name}")
        return writer.trigger(processingTime=_EVERY).start()

    def _add(self, batch: DataFrame, number: int) -> None:
        session = batch.sparkSession
        batch.createOrReplaceTempView("flights")
        session.sql(self._queries["hours"]).createOrReplaceTempView("new_hours")
        session.conf.set(f"{_TXN}.txnAppId", f"hours of {self._topic}")
        session.conf.set(f"{_TXN}.txnVersion", number)
        session.sql(self._queries["add"])

    def _sums(self) -> StreamAccount:
        (row,) = self._spark.sql(self._queries["account"]).collect()
        return StreamAccount(**row.asDict())
