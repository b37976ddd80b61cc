"""Topics as streams: what a batch reads, progress as a group's, how far behind a query is (SPEC SPARK-2, 12)."""

from __future__ import annotations

from jobs.stream.progress import ProgressListener, behind
from jobs.stream.reader import MessageStreamReader

__all__ = [
    "MessageStreamReader",
    "ProgressListener",
    "behind",
]
