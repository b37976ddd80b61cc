"""Stored rows as clients see them: the JSON messages of answers and event streams, dead letters, logical offsets.

Columns are converted one by one, since JSON needs a Python object for each cell. A body that is UTF-8 is text, any
other is `body_base64`; missing fields are left out. The rows of a static topic are stored with physical partitions and
offsets, which never change; one addition turns a column of offsets into logical ones (SPEC STATIC-2):

    row at offset 7 of orders#3@broker-a    segment, from 400 on    --> 407 of 3@__logical_queue_broker__
                                            of a global topic       --> 907 of 3@__global_logical_queue_broker__
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType

from deltamq.api.wire.fields import rfc3339
from deltamq.mq.queue.dead_letters import LetterMarks
from deltamq.mq.queue.retry import DEAD_REASON_HEADER
from deltamq.mq.static.logical_queue import ShownQueue
from deltamq.mq.static.segments import UNDECIDED, not_decided
from deltamq.mq.wire.stored import DeadLetter, MessageOrigin, StoredMessage
from deltamq.tables.log.fetch import one_record_batch
from deltamq.tables.queue.waiting_rows import decoded
from deltamq.tables.schema import MESSAGE_COLUMNS
from deltamq.tables.typed.codec import Codec
from deltamq.tables.typed.json.rendering import rendered
from deltamq.tables.typed_row import RESCUED, VALUE

_EPOCH: Final = datetime(1970, 1, 1)
#: Up to so many values are converted one by one: Arrow's kernels cost as much for one as for a hundred.
_FEW: Final = 100


def stored_messages(rows: pa.Table) -> list[StoredMessage]:
    """Return the rows (MESSAGE_SCHEMA) as JSON messages."""
    return list(map(StoredMessage, *json_columns(rows)))


def json_columns(rows: pa.Table) -> list[Iterable[Any]]:
    """Return the values of the rows column by column, in the order of `StoredMessage`'s fields."""
    bodies, encoded = _bodies(_shown_bodies(rows))
    values, rescued = _typed(rows)
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
        values,
        rescued,
    ]


#: Maximum number of messages of an answer whose JSON is made on the event loop: a thread would cost more.
INLINE_ROWS: Final = 200
#: The columns to read for `with_values` where bodies do not say which schema wrote them.
READ_COLUMNS: Final = (*MESSAGE_COLUMNS, VALUE, RESCUED)


class Valued(NamedTuple):
    """Rows with values, and whether one of them names a schema that is not known here."""

    rows: pa.Table
    is_behind: bool = False


def with_values(rows: pa.Table, codec: Codec, *, waited: bool = False) -> Valued:
    """Return rows with what their bodies are in a topic's columns: then JSON has values in place of bodies.

    `waited`: they are retried messages, whose column `value` has the id of their schema (SPEC TYPE-51).
    """
    if not rows.num_rows:
        return Valued(rows.select(MESSAGE_COLUMNS))
    names = [name for name in ("body", VALUE, RESCUED) if name in rows.column_names]
    typed = decoded(one_record_batch(rows.select(names)), codec, waited=waited)
    rows = rows.select(MESSAGE_COLUMNS).append_column(VALUE, typed.value)
    if typed.rescued is not None:
        rows = rows.append_column(RESCUED, typed.rescued)
    return Valued(rows, typed.is_behind)


def _typed(rows: pa.Table) -> tuple[Any, Any]:
    """Return the values and what did not fit, as JSON."""
    at, rescued_at = rows.schema.get_field_index(VALUE), rows.schema.get_field_index(RESCUED)
    if at < 0:
        return repeat(UNSET), repeat(UNSET)
    values = [_raw(value) for chunk in rows.column(at).chunks for value in rendered(chunk).to_pylist()]
    if rescued_at < 0:
        return values, repeat(UNSET)
    return values, [_raw(None if text is None else text.encode()) for text in rows.column(rescued_at).to_pylist()]


def _raw(text: bytes | None) -> msgspec.Raw | UnsetType:
    return UNSET if text is None else msgspec.Raw(text)


def _values(column: pa.ChunkedArray) -> Any:
    return repeat(None) if column.null_count == len(column) else column.to_pylist()


def _times(column: pa.ChunkedArray) -> Any:
    """Return RFC 3339 texts with microseconds (`2013-01-01T05:15:00.000000Z`); few times cost less without Arrow."""
    if column.null_count == len(column):
        return repeat(None)
    if len(column) <= _FEW:
        return [text for chunk in column.chunks for text in _few_times(chunk)]
    texts = pc.replace_substring(pc.cast(column, pa.string()), " ", "T", max_replacements=1)
    return texts.to_pylist()


def _few_times(column: pa.Array) -> list[str | None]:
    """Read the times of one chunk from its buffer: Arrow would wait for the interpreter's lock."""
    start = column.offset
    micros = memoryview(column.buffers()[1]).cast("q")[start : start + len(column)].tolist()
    if not column.null_count:
        return [_time(us) for us in micros]
    return [_time(us) if valid else None for us, valid in zip(micros, column.is_valid().to_pylist(), strict=True)]


@lru_cache(maxsize=1_024)
def _time(us: int) -> str:
    """Cached, since messages of one commit or producer share their times."""
    return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds") + "Z"


def _bodies(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return (texts, base64 texts), one of which is None for each message."""
    try:
        if len(column) <= _FEW:
            return [None if raw is None else raw.decode() for raw in column.to_pylist()], repeat(None)
        return pc.cast(column, pa.string()).to_pylist(), repeat(None)
    except (UnicodeDecodeError, pa.ArrowInvalid):
        pairs = [_body(raw) for raw in column.to_pylist()]
        return [p[0] for p in pairs], [p[1] for p in pairs]


def _shown_bodies(rows: pa.Table) -> pa.ChunkedArray:
    """Return the bodies of rows that show no value."""
    body, at = rows.column("body"), rows.schema.get_field_index(VALUE)
    return body if at < 0 else pc.if_else(rows.column(at).is_valid(), pa.scalar(None, pa.binary()), body)


def _body(raw: bytes | None) -> tuple[str | None, str | None]:
    if raw is None:
        return None, None
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


def dead_letters(partition: str, rows: pa.Table, marks: LetterMarks) -> list[DeadLetter]:
    """Return rows of a partition of dead letters as JSON messages."""
    letters = []
    for message in stored_messages(rows):
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        sent = marks.sent(message.offset)
        letters.append(
            DeadLetter(
                **fields,
                partition=partition,
                topic=message.origin.topic if message.origin else None,
                reason=(message.headers or {}).get(DEAD_REASON_HEADER),
                attempts=message.reconsume_times,
                state=marks.state(message.offset),
                sent_back_time=None if sent is None else rfc3339(sent[0] * 1_000),
                sent_back_by=None if sent is None else sent[1] or None,
            )
        )
    return letters


#: Returns the logical queue and offsets for a topic's partition. None for plain topics, and for a dropped segment: then
#: the row is shown as it is stored.
ShownQueueOf: TypeAlias = Callable[[str, str], ShownQueue | None]


def shown_offsets(rows: pa.Table, place: ShownQueue) -> pa.Table:
    """Return the rows of a segment with logical offsets.

    Raises
    ------
    Unavailable
        `logic_offset_undecided`: the rows have none yet (SPEC STATIC-10).
    """
    at = rows.schema.get_field_index("offset")
    if not rows.num_rows:
        return rows
    first: int = rows.column(at)[0].as_py()
    shown = place.shown(first)
    if shown == UNDECIDED:
        raise not_decided(place.name)
    delta = shown - first
    return rows if not delta else rows.set_column(at, rows.schema.field(at), pc.add(rows.column(at), delta))


def shown_origins(rows: pa.Table, shown_queue_of: ShownQueueOf) -> pa.Table:
    """Return the rows with origins in logical queues."""
    at = rows.schema.get_field_index("origin")
    origins = rows.column(at)
    if not rows.num_rows or origins.null_count == rows.num_rows:
        return rows
    field = rows.schema.field(at)
    return rows.set_column(at, field, pa.chunked_array([_shown(chunk, shown_queue_of) for chunk in origins.chunks]))


def _shown(origins: pa.StructArray, shown_queue_of: ShownQueueOf) -> pa.StructArray:
    topics, partitions, offsets = (origins.field(name) for name in ("topic", "partition", "offset"))
    pairs = list(zip(topics.to_pylist(), partitions.to_pylist(), strict=True))
    places = {pair: shown_queue_of(*pair) for pair in set(pairs) if None not in pair}
    shown_at = [places.get(pair) for pair in pairs]
    if not any(shown_at):
        return origins
    names = [stored if place is None else place.name for (_, stored), place in zip(pairs, shown_at, strict=True)]
    moved = [
        at if place is None or at is None else place.shown(at)
        for at, place in zip(offsets.to_pylist(), shown_at, strict=True)
    ]
    return pa.StructArray.from_arrays(
        [topics, pa.array(names, partitions.type), pa.array(moved, offsets.type)],
        fields=list(origins.type),
        mask=origins.is_null(),
    )
