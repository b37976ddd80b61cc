"""Stored rows as the JSON messages of fetch answers and event streams.

Columns are converted one by one, since JSON needs a Python object for each cell. A body that is UTF-8 is text, any
other is `body_base64`; fields that a message does not have are left out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.wire.stored import MessageOrigin, StoredMessage

_EPOCH: Final = datetime(1970, 1, 1)
#: Number of values up to which they are made one by one: Arrow's kernels cost as much for one as for a hundred.
_FEW: Final = 100


def stored_messages(rows: pa.Table) -> list[StoredMessage]:
    """Return the rows (MESSAGE_SCHEMA) as JSON messages."""
    return list(map(StoredMessage, *json_columns(rows)))


def json_columns(rows: pa.Table) -> list[Iterable[Any]]:
    """Return the values of the rows column by column, in the order of `StoredMessage`'s fields."""
    bodies, encoded = _bodies(rows.column("body"))
    return [
        rows.column("offset").to_pylist(),
        rows.column("message_id").to_pylist(),
        _times(rows.column("append_time")),
        bodies,
        encoded,
        _values(rows.column("key")),
        _values(rows.column("tag")),
        _headers(rows.column("headers")),
        _times(rows.column("born_time")),
        _times(rows.column("deliver_time")),
        rows.column("reconsume_times").to_pylist(),
        _origins(rows.column("origin")),
        _values(rows.column("producer_id")),
        _values(rows.column("producer_seq")),
    ]


def _values(column: pa.ChunkedArray) -> Any:
    """Return the column's values; a column of nulls costs nothing."""
    return repeat(None) if column.null_count == len(column) else column.to_pylist()


def _times(column: pa.ChunkedArray) -> Any:
    """Return RFC 3339 texts with microseconds (`2013-01-01T05:15:00.000000Z`); a few cost less without Arrow."""
    if column.null_count == len(column):
        return repeat(None)
    if len(column) <= _FEW:
        return [text for chunk in column.chunks for text in _few_times(chunk)]
    texts = pc.replace_substring(pc.cast(column, pa.string()), " ", "T", max_replacements=1)
    return texts.to_pylist()


def _few_times(column: pa.Array) -> list[str | None]:
    """Return the times of one chunk, read from its buffer, since Arrow would wait for the interpreter's lock."""
    start = column.offset
    micros = memoryview(column.buffers()[1]).cast("q")[start : start + len(column)].tolist()
    if not column.null_count:
        return [_time(us) for us in micros]
    return [_time(us) if valid else None for us, valid in zip(micros, column.is_valid().to_pylist(), strict=True)]


@lru_cache(maxsize=1_024)
def _time(us: int) -> str:
    """Return one time as text; cached, since messages of one commit or producer share their times."""
    return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds") + "Z"


def _bodies(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return (texts, base64 texts), one of which is None for each message."""
    try:
        if len(column) <= _FEW:
            return [raw.decode() for raw in column.to_pylist()], repeat(None)
        return pc.cast(column, pa.string()).to_pylist(), repeat(None)
    except (UnicodeDecodeError, pa.ArrowInvalid):
        pairs = [_body(raw) for raw in column.to_pylist()]
        return [p[0] for p in pairs], [p[1] for p in pairs]


def _body(raw: bytes) -> tuple[str | None, str | None]:
    try:
        return raw.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(raw).decode("ascii")


def _headers(column: pa.ChunkedArray) -> Any:
    if column.null_count == len(column):
        return repeat(None)
    values: Sequence[list[tuple[str, str | None]] | None] = column.to_pylist()
    return [None if v is None else dict(v) for v in values]


def _origins(column: pa.ChunkedArray) -> Any:
    if column.null_count == len(column):
        return repeat(None)
    return [None if v is None else MessageOrigin(**v) for v in column.to_pylist()]
