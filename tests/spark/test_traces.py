"""A span around each batch of a stream, with links to the sends of its messages (LOOK-15)."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, get_current_span
from pyspark.sql import DataFrame, SparkSession

from deltamq.jobs.sql import traced
from deltamq.mq.client.tracing.spans import LINKS_MAX
from tests.queue_tables import QueueTables
from tests.traced import Recorded

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def context(n: int) -> str:
    return f"00-{n:032x}-{n:016x}-01"


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.trace_id for link in span.links}


@pytest.mark.parametrize("row_format", ["message", "kafka"])
def test_look_15_a_batch_of_a_stream_is_a_span_with_links_to_its_messages(
    spark: SparkSession, tmp_path: Path, row_format: str
) -> None:
    tables = QueueTables(tmp_path / "warehouse")
    topic = tables.topic()
    tables.send(topic, "a", "b", headers=[[("traceparent", context(7)), ("h", "a")]] * 2)
    tables.send(topic, "c", headers=[[("traceparent", context(8))]])
    tables.send(topic, "d")
    recorded, inside, counts = Recorded(), list[bool](), list[int]()

    def store(rows: DataFrame, batch_id: int) -> None:
        inside.append(get_current_span().is_recording())
        counts.append(rows.count())

    given = {"topic": "orders", "warehouse": tables.warehouse.uri, "rowFormat": row_format}
    given |= {"startingOffsets": "earliest", "includeHeaders": "true"}
    frame = spark.readStream.format("mq").options(**given).load()
    handle = traced(store, topic="orders", group="lakehouse", tracer_provider=recorded.provider)
    query = frame.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    tables.close()
    span = recorded.one("process orders")
    assert (inside, counts) == ([True], [4])
    assert linked(span) == {7, 8}
    assert span.kind is SpanKind.CONSUMER and span.parent is None
    assert dict(span.attributes or {}) == {
        "messaging.system": "deltamq",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "lakehouse",
        "messaging.deltamq.batch.id": 0,
    }


def test_look_15_the_links_of_a_batch_are_bounded_and_its_error_is_noted(spark: SparkSession) -> None:
    rows = spark.range(1, LINKS_MAX + 50).selectExpr(
        "map('traceparent', format_string('00-%032x-%016x-01', id, id)) AS headers"
    )
    recorded = Recorded()

    def fail(rows: DataFrame, batch_id: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        traced(fail, topic="orders", tracer_provider=recorded.provider)(rows, 3)
    span = recorded.one("process orders")
    assert len(linked(span)) == len(span.links) == LINKS_MAX
    assert (span.attributes or {})["error.type"] == "ValueError"


def test_look_15_what_is_not_traced_reads_nothing_more(spark: SparkSession) -> None:
    seen: list[int] = []
    # Reading these headers would fail.
    rows = spark.sql("SELECT map('traceparent', raise_error('read')) AS headers")
    for provider in (None, Recorded(ALWAYS_OFF).provider):
        traced(lambda rows, batch_id: seen.append(batch_id), topic="orders", tracer_provider=provider)(rows, 1)
    assert seen == [1, 1]
    recorded = Recorded()
    traced(lambda rows, batch_id: None, topic="orders", tracer_provider=recorded.provider)(spark.range(1), 1)
    assert recorded.one("process orders").links == (), "rows without headers"
