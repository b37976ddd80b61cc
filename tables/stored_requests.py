"""Which requests of idempotent producers lie in the rows of a partition: for who has been away for longer than the
partition's own memory of its producers reaches (`mq.limits.PRODUCER_WINDOW_MS`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow.compute as pc

from mq.limits import PRODUCER_WINDOW_MS
from tables.log import PartitionLog
from tables.pages import pages
from tables.paths import PartitionRef

__all__ = ["REMEMBERED_MS", "StoredRequests"]

#: What was stored less long ago is surely remembered by the partition itself.
REMEMBERED_MS: Final = PRODUCER_WINDOW_MS - 3_600_000


class StoredRequests:
    """Looks requests up in rows, each partition read once."""

    def __init__(self, prefix: str) -> None:
        """Only producers whose id begins with `prefix` are asked for."""
        self._prefix = prefix
        self._found: dict[PartitionRef, tuple[int, dict[str, set[int]]]] = {}

    def of(self, log: PartitionLog, producer_id: str, since_ms: int) -> Collection[int]:
        """The sequences of the producer in rows that were appended at `since_ms` or later.

        Raises
        ------
        Corrupt
            The partition cannot be read.
        """
        known = self._found.get(log.ref)
        if known is None or known[0] > since_ms:
            known = self._found[log.ref] = since_ms, self._read(log, since_ms)
        return known[1].get(producer_id, ())

    def _read(self, log: PartitionLog, since_ms: int) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for page in pages(log, log.offset_at(since_ms * 1_000)):
            rows = page.rows.select(["producer_id", "producer_seq"])
            ours = rows.filter(pc.starts_with(rows.column("producer_id"), self._prefix))
            for producer, seq in zip(*(column.to_pylist() for column in ours.columns), strict=True):
                found.setdefault(producer, set()).add(seq)
        return found
