"""Messages as a consumer gets them, made from the Arrow rows of a fetch."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """One stored message: its partition and offset, and what its producer sent.

    `born_us` and `append_us` are microseconds since 1970; `born_time` and `append_time` are the same as datetimes.
    """

    partition: str
    offset: int
    body: bytes
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str] | None = None
    message_id: str | None = None
    born_us: int | None = None
    append_us: int | None = None

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()

    @property
    def born_time(self) -> datetime | None:
        """The producer's time."""
        return None if self.born_us is None else datetime.fromtimestamp(self.born_us / 1e6, UTC)

    @property
    def append_time(self) -> datetime | None:
        """The time of the commit that stored it."""
        return None if self.append_us is None else datetime.fromtimestamp(self.append_us / 1e6, UTC)


class OrderedMessage(ReceivedMessage, frozen=True, gc=False):
    """A message as a listener of an `OrderlyConsumer` gets it; `attempt` counts from 1 in each client."""

    topic: str = ""
    attempt: int = 1


def messages_of(partition: str, rows: pa.Table) -> list[ReceivedMessage]:
    """Return the rows as messages, made column by column; a column of nulls costs nothing."""
    return list(map(ReceivedMessage, repeat(partition, len(rows)), *_columns(rows)))


def ordered_messages_of(topic: str, partition: str, rows: pa.Table) -> list[OrderedMessage]:
    """Return the rows as messages of an ordered consumer, each in its first attempt."""
    return list(map(OrderedMessage, repeat(partition, len(rows)), *_columns(rows), repeat(topic)))


def with_partition(partition: str, rows: pa.Table) -> pa.Table:
    """Add the partition as a dictionary column, which takes a few bytes a row instead of the name."""
    indices = pa.array(np.zeros(len(rows), dtype=np.int32))
    names = pa.DictionaryArray.from_arrays(indices, pa.array([partition], pa.string()))
    return rows.add_column(0, "partition", names)


def _columns(rows: pa.Table) -> Iterable[Iterable[Any]]:
    """Return the fields of `ReceivedMessage` after `partition`, in order."""
    return (
        rows.column("offset").to_pylist(),
        rows.column("body").to_pylist(),
        _values(rows, "key"),
        _values(rows, "tag"),
        _headers(rows),
        _values(rows, "message_id"),
        _times(rows, "born_time"),
        _times(rows, "append_time"),
    )


def _filled(rows: pa.Table, name: str) -> pa.ChunkedArray | None:
    at = rows.schema.get_field_index(name)
    if at < 0 or rows.column(at).null_count == len(rows):
        return None
    return rows.column(at)


def _values(rows: pa.Table, name: str) -> Iterable[Any]:
    column = _filled(rows, name)
    return repeat(None) if column is None else column.to_pylist()


def _times(rows: pa.Table, name: str) -> Iterable[int | None]:
    column = _filled(rows, name)
    # As integers: making a datetime for each cell would cost more than the rest of the message.
    return repeat(None) if column is None else column.cast(pa.int64()).to_pylist()


def _headers(rows: pa.Table) -> Iterable[dict[str, str] | None]:
    column = _filled(rows, "headers")
    if column is None:
        return repeat(None)
    return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
