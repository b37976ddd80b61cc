"""Requests of idempotent producers, read from the rows of a partition: for writers that were away for longer than the
partition remembers its producers (`mq.limits.PRODUCER_WINDOW_MS`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
import pyarrow.compute as pc

from deltamq.mq.limits import PRODUCER_WINDOW_MS
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.paging import pages
from deltamq.tables.paths import PartitionRef

#: Age up to which the partition itself surely remembers a stored request.
REMEMBERED_MS: Final = PRODUCER_WINDOW_MS - 3_600_000


class _Read(msgspec.Struct):
    """The sequences read from a partition's rows, from an append time on and up to an offset."""

    since_ms: int
    next_offset: int
    sequences: dict[str, set[int]] = msgspec.field(default_factory=dict)


class StoredRequests:
    """Looks up requests in rows; each row of a partition is read once, rows that are appended later included."""

    def __init__(self, prefix: str) -> None:
        """Collect only requests of producers whose ids begin with `prefix`."""
        self._prefix = prefix
        self._reads: dict[PartitionRef, _Read] = {}

    def of(self, log: PartitionLog, producer_id: str, since_ms: int) -> Collection[int]:
        """Return the producer's sequences in the rows known to `log` that were appended at `since_ms` or later.

        Raises
        ------
        Corrupt
            The partition cannot be read.
        """
        known = self._reads.get(log.ref)
        if known is None or known.since_ms > since_ms:
            known = self._reads[log.ref] = _Read(since_ms, log.offset_at(since_ms * 1_000))
        if known.next_offset < log.end_offset:
            self._read_on(log, known)
        return known.sequences.get(producer_id, ())

    def _read_on(self, log: PartitionLog, known: _Read) -> None:
        for page in pages(log, max(known.next_offset, log.min_offset)):
            rows = page.rows.select(["producer_id", "producer_seq"])
            ours = rows.filter(pc.starts_with(rows.column("producer_id"), self._prefix))
            for producer, seq in zip(*(column.to_pylist() for column in ours.columns), strict=True):
                known.sequences.setdefault(producer, set()).add(seq)
            known.next_offset = page.next_offset
