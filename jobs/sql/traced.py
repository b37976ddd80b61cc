"""A span around each batch of a stream, with links to the sends of its messages (SPEC LOOK-15).

    frame.writeStream.foreachBatch(traced(store, topic="orders"))

The function runs as it is while the application has no tracer provider of OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType

from deltamq.mq.client.tracing.tracing import Tracing

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import TracerProvider

#: A function for `foreachBatch`: it takes the rows of a batch and the batch's number.
OfBatch: TypeAlias = Callable[[DataFrame, int], object]
_HEADERS = "headers"
_TRACEPARENT = "traceparent"


def traced(
    handle: OfBatch, *, topic: str, group: str | None = None, tracer_provider: TracerProvider | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that runs `handle` in a span `process TOPIC` for each batch.

    The span has links to the contexts in the rows' column `headers`, 128 different ones at most. If it is sampled, the
    batch's headers are read once more for them.

    Parameters
    ----------
    handle
        What to do with a batch: a function of the rows and the batch's number. What it raises is noted and raised.
    topic, group
        The topic that is read, and the group to which progress is committed, as the span names them.
    tracer_provider
        Makes the spans; by default the application's provider.
    """
    tracing = Tracing(tracer_provider)

    def run(rows: DataFrame, batch_id: int) -> None:
        if (spans := tracing.spans) is None:
            handle(rows, batch_id)
            return
        with spans.process_rows(topic, group, batch_id, lambda most: _contexts(rows, most)):
            handle(rows, batch_id)

    return run


def _contexts(rows: DataFrame, most: int) -> Iterator[dict[str, str]]:
    """Yield different contexts that the rows' headers name, `most` of them at most."""
    if _HEADERS not in rows.columns:
        return
    named = rows.select(_traceparent(rows).alias(_TRACEPARENT)).dropna().distinct().limit(most)
    for row in named.collect():
        yield {_TRACEPARENT: row[_TRACEPARENT]}


def _traceparent(rows: DataFrame) -> Column:
    if isinstance(rows.schema[_HEADERS].dataType, MapType):
        return F.try_element_at(_HEADERS, F.lit(_TRACEPARENT))
    # As Spark's Kafka source has them: an array of names with values in bytes.
    same = F.filter(_HEADERS, lambda header: header["key"] == _TRACEPARENT)
    return F.try_element_at(same, F.lit(1))["value"].cast("string")
