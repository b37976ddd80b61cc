"""The lag of a streaming query, for each source of `format("mq")` (SPEC SPARK-12).

Spark gives a Python source no metrics of its own, so these are computed from a query's progress: the end of the batch
and the ends of the topics at that time. They have the names of Spark's Kafka source, `avgOffsetsBehindLatest`,
`minOffsetsBehindLatest` and `maxOffsetsBehindLatest`, and there is the sum.

    >>> behind(query.lastProgress)                                                            # doctest: +SKIP
    [OffsetsBehind(source=0, partitions=4, total=120, min=0, max=90, avg=30.0)]
    >>> spark.streams.addListener(ProgressListener(lambda batch: gauge.set(batch.behind[0].max)))  # doctest: +SKIP
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from deltamq.jobs.tasks.first_lines import sentence_of
from deltamq.mq.errors import Corrupt, Refused
from deltamq.mq.streams import StreamOffset, messages_behind

log = logging.getLogger("deltamq.jobs.stream.progress")


class OffsetsBehind(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that one source of a query has not read yet, over its partitions."""

    source: int  #: its index among the query's sources
    partitions: int
    total: int
    min: int
    max: int
    avg: float


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one batch, as a listener reports it."""

    query_id: str
    name: str | None
    batch_id: int
    rows: int
    took_ms: int
    behind: tuple[OffsetsBehind, ...]


def behind(progress: Mapping[str, Any] | None) -> list[OffsetsBehind]:
    """Return the lag of each source of `format("mq")`; other sources are left out.

    Parameters
    ----------
    progress
        `query.lastProgress`, an item of `query.recentProgress` or the progress of a listener's event. None, before the
        first batch, gives an empty list.
    """
    lags = []
    for index, source in enumerate((progress or {}).get("sources", [])):
        end, latest = _position(source.get("endOffset")), _position(source.get("latestOffset"))
        if end is not None and latest is not None:
            lags.append(_behind(index, end, latest))
    return lags


def _behind(index: int, end: StreamOffset, latest: StreamOffset) -> OffsetsBehind:
    counts = list(messages_behind(end, latest).values()) or [0]
    total = sum(counts)
    return OffsetsBehind(
        source=index,
        partitions=len(counts),
        total=total,
        min=min(counts),
        max=max(counts),
        avg=total / len(counts),
    )


def _position(value: object) -> StreamOffset | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping) or not {"topics", "version", "warehouse"} <= value.keys():
        return None
    try:
        return StreamOffset.from_json(value)
    except (Corrupt, Refused):
        return None


class ProgressListener(StreamingQueryListener):
    """Write one line to the log for each batch of a query that reads topics, and pass the numbers on.

    Register it with `spark.streams.addListener`. The callback is for your own metrics. It runs on Spark's listener
    thread; an exception that it raises is logged and does not affect the query.
    """

    def __init__(self, told: Callable[[BatchProgress], None] | None = None) -> None:
        self._callback = told

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Log that a query began."""
        log.info("event=stream_started query=%s name=%r", event.id, event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Log a batch and the lag after it."""
        lags = tuple(behind(event.progress))
        if not lags:
            return
        progress = event.progress
        batch = BatchProgress(
            query_id=str(progress.id),
            name=progress.name,
            batch_id=progress.batchId,
            rows=progress.numInputRows,
            took_ms=progress.batchDuration,
            behind=lags,
        )
        log.info("event=stream_batch %s", _line(batch))
        if self._callback is not None:
            try:
                self._callback(batch)
            except Exception:
                log.exception("event=stream_listener_failed query=%s", batch.query_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has read nothing since its last batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Log that a query ended, and its error in one sentence if it failed."""
        error = None if event.exception is None else sentence_of(event.exception)
        log.info("event=stream_ended query=%s error=%r", event.id, error)


def _line(batch: BatchProgress) -> str:
    """Return the batch as `key=value` pairs; the pairs of a source follow its index."""
    parts = [f"query={batch.query_id} name={batch.name!r} batch={batch.batch_id} rows={batch.rows}"]
    parts.append(f"took_ms={batch.took_ms}")
    for lag in batch.behind:
        parts.append(f"source={lag.source} behind_min={lag.min} behind_max={lag.max} behind_avg={lag.avg:.1f}")
        parts.append(f"behind_total={lag.total}")
    return " ".join(parts)
