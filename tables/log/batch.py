"""Input and result of an append."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from deltamq.tables.delta.stamped import ProducerStamp, RowsPart, Stamped


class Batch(msgspec.Struct, frozen=True):
    """The rows of one request: any of INTERNAL_SCHEMA's columns in their exact types; `body` is required."""

    rows: pa.RecordBatch
    producer: ProducerStamp | None = None


class MessageIds:
    """The ids of some messages of an append, made on demand."""

    __slots__ = ("_at", "_count", "_rows")

    def __init__(self, rows: Stamped | None = None, at: int = 0, count: int = 0) -> None:
        """Take rows `[at, at + count)`; without `rows` there are no ids."""
        self._rows = rows
        self._at = at
        self._count = count

    def slice(self, at: int, count: int) -> MessageIds:
        """Return `count` of these ids, from position `at` on."""
        return MessageIds(self._rows, self._at + at, count)

    def to_pylist(self) -> list[str]:
        return [] if self._rows is None else self._rows.message_ids(self._at, self._count)


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Where an appended batch is stored: offsets `[base_offset, base_offset + count)`.

    `duplicate` says that an earlier request stored it; `message_ids` is then empty.
    """

    base_offset: int
    count: int
    duplicate: bool
    durable: bool
    version: int
    message_ids: MessageIds


def only(rows: pa.RecordBatch, parts: Sequence[RowsPart], keep: set[int]) -> pa.RecordBatch:
    """Return the rows of the parts whose positions are in `keep`."""
    mask = np.repeat([i in keep for i in range(len(parts))], [p.count for p in parts])
    return rows.filter(pa.array(mask))
