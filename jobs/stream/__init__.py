"""Topics as streams: the plan of a batch, progress shown as a group's, and a query's lag (SPEC SPARK-2, 12)."""

from __future__ import annotations

from deltamq.jobs.stream.progress import ProgressListener, behind
from deltamq.jobs.stream.reader import MessageStreamReader
from deltamq.jobs.stream.refused import RefusedStream

__all__ = [
    "MessageStreamReader",
    "ProgressListener",
    "RefusedStream",
    "behind",
]
