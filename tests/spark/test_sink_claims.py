"""A streaming query that only writes topics, gone on with by another application from its checkpoint (SPARK-24)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from deltamq.jobs.sink.stream_run import StreamRun, check_claim
from deltamq.jobs.tasks.checkpoint_claims import Claimant
from tests.queue_tables import QueueTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.promise("PIPE-1")]

OTHER = Claimant(application="local-17", host="bigbox", pid=4711)
TAKEN = (
    r"this query's checkpoint was taken over by application local-17 \(host bigbox, process 4711, since \S+Z\); "
    r"one checkpoint has one application at a time, and the later one goes on\. To go on here instead, stop that one "
    r"and start this again"
)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "warehouse")
    yield made
    made.close()


Started = Callable[[], StreamingQuery]


@pytest.fixture(params=["sink", pytest.param("foreachBatch", marks=pytest.mark.long)])
def started(request: pytest.FixtureRequest, spark: SparkSession, tables: QueueTables, tmp_path: Path) -> Started:
    """Return how to start a query without a name that copies lines of files into the topic, file by file."""
    tables.topic()
    lines = tmp_path / "lines"
    lines.mkdir()

    def write(rows: DataFrame, number: int) -> None:
        given = {"topic": "orders", "warehouse": tables.warehouse.uri, "producerId": "lines", "batchId": str(number)}
        rows.write.format("mq").options(**given).mode("append").save()

    def start() -> StreamingQuery:
        frame = spark.readStream.option("maxFilesPerTrigger", "1").text(str(lines))
        if request.param == "sink":
            writer = frame.writeStream.format("mq").options(topic="orders", warehouse=tables.warehouse.uri)
        else:
            writer = frame.writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    return start


def _stored(tables: QueueTables) -> list[str]:
    return [row["body"].decode() for row in tables.rows(tables.log(tables.topic()).ref)]


def test_spark_24_a_query_that_only_writes_ends_by_name_and_may_go_on_again(
    started: Started, tables: QueueTables, tmp_path: Path
) -> None:
    (tmp_path / "lines" / "1.txt").write_text("a\n")
    query = started()
    try:
        query.processAllAvailable()
        check_claim(tables.warehouse.store, OTHER, StreamRun(str(query.id), "other", 1))
        (tmp_path / "lines" / "2.txt").write_text("b\n")
        with pytest.raises(StreamingQueryException, match=TAKEN):
            query.awaitTermination(120)
    finally:
        query.stop()
    assert _stored(tables) == ["a"]
    query = started()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert _stored(tables) == ["a", "b"]


@pytest.mark.parametrize("started", ["sink"], indirect=True)
def test_spark_24_spark_itself_stops_who_plans_a_batch_second_before_the_sink_is_asked(
    started: Started, tables: QueueTables, tmp_path: Path
) -> None:
    (tmp_path / "lines" / "1.txt").write_text("a\n")
    query = started()
    try:
        query.processAllAvailable()
        offsets = tmp_path / "checkpoint" / "offsets"
        (offsets / "1").write_bytes((offsets / "0").read_bytes())  # as the other application plans it
        (tmp_path / "lines" / "2.txt").write_text("b\n")
        with pytest.raises(StreamingQueryException, match="CONCURRENT_STREAM_LOG_UPDATE"):
            query.awaitTermination(120)
    finally:
        query.stop()
    assert _stored(tables) == ["a"]
    newest = max((tmp_path / "warehouse" / "jobs" / "streams" / f"query-{query.id}").iterdir())
    claim = json.loads(newest.read_bytes())
    assert re.fullmatch(r"local-\d+", claim["claimant"]["application"])
    assert claim["position"]["batch"] == 0
