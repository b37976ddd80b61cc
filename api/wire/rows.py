"""The messages of a produce request, decoded and checked, whatever its format.

    many small requests ──> Rows, Rows, Rows ──(committer thread)──> ONE pa.RecordBatch for the commit

JSON and NDJSON become column lists. Making an Arrow batch for each request would cost more than committing it, so
requests stay plain lists while they wait and are joined column by column. A column that no message fills is None and
costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.mq.errors import Unprocessable
from deltamq.mq.wire.produce import Producer
from deltamq.tables.delta.stamped import one_batch
from deltamq.tables.few_rows import FEW_ROWS_MAX, binary_column, text_column
from deltamq.tables.queue.deliver_times import Times
from deltamq.tables.schema import INGEST_SCHEMA
from deltamq.tables.typed_row import VALUE

Body = str | bytes
Headers = dict[str, str]
#: Positions of messages in a request.
Indexes: TypeAlias = Sequence[int] | NDArray[np.int64]


class Rows(msgspec.Struct):
    """`count` messages, column by column, in request order; `nbytes` is their share of the request's size."""

    count: int
    nbytes: int
    body: Sequence[Body]
    key: Sequence[str | None] | None = None
    tag: Sequence[str | None] | None = None
    headers: Sequence[Headers | None] | None = None
    message_id: Sequence[str | None] | None = None
    born_time: Sequence[datetime | None] | None = None
    #: The bodies and their typed columns, if they were decoded already (`tables.typed_row`).
    typed: pa.RecordBatch | None = None

    def take(self, indexes: Indexes) -> Rows:
        """Return the messages at `indexes`, in that order."""
        taken = self._each(len(indexes), lambda column: [column[i] for i in indexes])
        if self.typed is not None:
            taken.typed = self.typed.take(pa.array(np.asarray(indexes, dtype=np.int64)))
        return taken

    def slice(self, start: int, end: int) -> Rows:
        """Return the messages in `[start, end)`."""
        sliced = self._each(end - start, lambda column: column[start:end])
        if self.typed is not None:
            sliced.typed = self.typed.slice(start, end - start)
        return sliced

    def _each(self, count: int, pick: Callable[[Sequence[Any]], Sequence[Any]]) -> Rows:
        def picked(column: Sequence[Any] | None) -> Sequence[Any] | None:
            return None if column is None else pick(column)

        return Rows(
            count=count,
            nbytes=self.nbytes * count // self.count,
            body=pick(self.body),
            key=picked(self.key),
            tag=picked(self.tag),
            headers=picked(self.headers),
            message_id=picked(self.message_id),
            born_time=picked(self.born_time),
        )


class ArrowRows(msgspec.Struct):
    """Messages as one Arrow batch with columns of INGEST_SCHEMA, as `Rows` for JSON."""

    count: int
    nbytes: int
    batch: pa.RecordBatch

    def take(self, indexes: Indexes) -> ArrowRows:
        """Return the messages at `indexes`, in that order."""
        count = len(indexes)
        taken = self.batch.take(pa.array(np.asarray(indexes, dtype=np.int64)))
        return ArrowRows(count, self.nbytes * count // self.count, taken)

    def slice(self, start: int, end: int) -> ArrowRows:
        """Return the messages in `[start, end)`, not copied."""
        count = end - start
        return ArrowRows(count, self.nbytes * count // self.count, self.batch.slice(start, count))

    @property
    def key(self) -> pa.StringArray | None:
        """The key column; None if no message has a key."""
        at = self.batch.schema.get_field_index("key")
        return self.batch.column(at) if at >= 0 else None


def to_record_batch(parts: Sequence[Rows]) -> pa.RecordBatch:
    """Return all messages of `parts`, in order, as one Arrow batch with only the columns that some message fills."""
    assert parts, "a commit has at least one message"
    columns: list[pa.Array] = []
    fields: list[pa.Field] = []
    typed = [part.typed for part in parts if part.typed is not None]
    decoded = one_batch(typed) if len(typed) == len(parts) else None
    for field in INGEST_SCHEMA:
        if field.name == "deliver_time" or (field.name == "body" and decoded is not None):
            continue
        values = _column(parts, field.name)
        if values is not None:
            columns.append(_array(values, field))
            fields.append(field)
    if decoded is not None:
        columns += decoded.columns
        fields += list(decoded.schema)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _column(parts: Sequence[Rows], name: str) -> Sequence[Any] | None:
    columns: list[Sequence[Any] | None] = [getattr(part, name) for part in parts]
    if len(columns) == 1:
        return columns[0]
    if all(column is None for column in columns):
        return None
    filled: Iterable[Sequence[Any]] = (
        column if column is not None else [None] * part.count for part, column in zip(parts, columns, strict=True)
    )
    return list(chain.from_iterable(filled))


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if field.name == "headers":
        values = [None if v is None else list(v.items()) for v in values]
    if pa.types.is_string(field.type):
        return text_column(values)
    if pa.types.is_binary(field.type) and len(values) <= FEW_ROWS_MAX:
        return binary_column([v.encode() if isinstance(v, str) else v for v in values])
    return pa.array(values, field.type)


#: The partitions that messages name: one for all, or a column.
Column: TypeAlias = Sequence[str | None] | pa.StringArray
Named: TypeAlias = str | Column | None


class Decoded(msgspec.Struct):
    """The messages of one request, and the other fields of its body."""

    rows: Rows | ArrowRows
    #: The partition that each message names; None if no message names one.
    partitions: Column | None
    #: When each message is delivered; None if no message is delayed.
    times: Times | None = None
    producer: Producer | None = None
    expected_offset: int | None = None
    #: The values that messages bring in place of bodies, as JSON; None if no message brings one.
    values: list[msgspec.Raw | None] | None = None
    #: The schema that wrote the bodies, if they do not say it (SPEC TYPE-51).
    schema_id: int | None = None

    @property
    def has_values(self) -> bool:
        """Whether messages bring values in place of bodies."""
        is_typed = isinstance(self.rows, ArrowRows) and self.rows.batch.schema.get_field_index(VALUE) >= 0
        return self.values is not None or is_typed


#: Messages that do not fit, of which a refusal says why.
_SHOWN_MAX: Final = 20


class Misfits(Unprocessable):
    """Messages of a request do not fit the topic's schema (`invalid_value`); nothing of it is stored (SPEC TYPE-3)."""

    def __init__(self, invalid: pa.StructArray) -> None:
        """Take the column `invalid` of the request's messages."""
        #: Of up to twenty, which and why.
        self.shown: list[dict[str, str | int | None]] = []
        count = 0
        for index, why in enumerate(invalid.to_pylist()):
            if why is not None:
                count += 1
                if len(self.shown) < _SHOWN_MAX:
                    known = {name: why[name] for name in ("code", "field", "reason")}
                    self.shown.append({"index": index, **known})
        first = self.shown[0]
        at = f"messages[{first['index']}]"
        where = f"{at}.{first['field']}" if first["field"] else at
        more = f" ({count} messages do not fit)" if count > 1 else ""
        super().__init__(
            f"{where}: {first['reason']}{more}; nothing was stored",
            code="invalid_value",
            field=where,
            extra={"invalid": self.shown, "count": count},
        )
