"""What messages that wait keep of their schema, where bodies do not say which version wrote them (SPEC TYPE-51).

    topic's row --picked--> retried message, dead letter, delayed message --arrived--> topic's row
    value {a, b}            value {schema_id}                                          value {a, b, c}

Logs of waiting messages are shared by topics and have no columns of their values. Their rows have the id of the schema
in the column `value`, which readers of messages do not ask for. A row without it is of the newest version: it is older
than this rule, or its body says by itself what wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from deltamq.mq.errors import Conflict
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.point_reads import Picked, pick
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.schema import MESSAGE_COLUMNS
from deltamq.tables.typed.codec import Codec, with_columns
from deltamq.tables.typed.columns import TypedColumns
from deltamq.tables.typed_row import RESCUED, TYPED, VALUE, conformed, joined, untyped

#: The columns of rows that wait.
WAITING_COLUMNS: Final = (*MESSAGE_COLUMNS, VALUE)
#: The columns of a topic's rows that say which schema wrote them.
STORED_COLUMNS: Final = (*MESSAGE_COLUMNS, *TYPED)


def pick_to_wait(
    log: PartitionLog,
    offsets: npt.NDArray[np.int64],
    codec_of: Callable[[PartitionRef], Codec | None],
    *,
    bytes_max: int | None,
) -> Picked:
    """Return messages of a topic, or messages that wait already, as rows that wait; raises as `pick` does."""
    if log.ref.space is not Space.TOPICS:
        return pick(log, offsets, bytes_max=bytes_max, columns=WAITING_COLUMNS)
    try:
        codec = codec_of(log.ref)
    except Conflict:
        codec = None  # its subject has no version now, so nothing says which one wrote a body
    if codec is None or not codec.is_headless:
        return pick(log, offsets, bytes_max=bytes_max)
    picked = pick(log, offsets, bytes_max=bytes_max, columns=STORED_COLUMNS)
    return replace(picked, rows=to_wait(picked.rows, codec))


def to_wait(rows: pa.RecordBatch, codec: Codec | None) -> pa.RecordBatch:
    """Return a topic's rows, as it stores them, as rows that wait."""
    if codec is None or not codec.is_headless or rows.schema.get_field_index(VALUE) < 0:
        return untyped(rows)
    try:
        writers = codec.writers(rows)
    except Conflict:
        return untyped(rows)
    return _with_writers(untyped(rows), writers)


def written_by(rows: pa.RecordBatch, id_: int | None) -> pa.RecordBatch:
    """Return messages that were sent just now as rows that wait; None: their bodies say what wrote them."""
    rows = untyped(rows)
    if id_ is None:
        return rows
    has_body = pc.greater(pc.binary_length(rows.column("body")), 0)
    return _with_writers(rows, pc.if_else(pc.fill_null(has_body, False), pa.scalar(id_, pa.int32()), None))


def arrived(
    rows: pa.RecordBatch, codec: Codec | None, newest: Callable[[], Codec | None] | None = None
) -> pa.RecordBatch:
    """Return rows that waited as the topic stores them, with columns if it has a schema (SPEC TYPE-42).

    `newest` returns the codec by the newest metadata, for messages whose schema was registered meanwhile.
    """
    if codec is None:
        return untyped(rows)
    columns = columns_of(rows, codec)
    if columns.is_behind and newest is not None:
        return arrived(rows, newest())
    return codec.typed(with_columns(untyped(rows), columns))


def columns_of(rows: pa.RecordBatch, codec: Codec) -> TypedColumns:
    """Return the columns of rows that wait, by the schema that wrote each."""
    writers = writers_of(rows)
    if writers is None and codec.is_rendered:
        writers = pa.nulls(len(rows), pa.int32())
    return codec.decode(rows.column("body"), writers)


def decoded(rows: pa.RecordBatch, codec: Codec, *, waited: bool) -> TypedColumns:
    """Return the columns of messages that were read with STORED_COLUMNS; `waited`: of a log of messages that wait.

    A message of the topic itself has the value that was stored with it, also in columns that the codec does not know.
    """
    bodies = rows.column("body")
    if waited:
        return columns_of(rows, codec)
    if rows.schema.get_field_index(VALUE) < 0:
        return codec.decode(bodies)
    value = rows.column(VALUE)
    rescued = rows.column(RESCUED) if rows.schema.get_field_index(RESCUED) >= 0 else pa.nulls(len(rows), pa.string())
    is_older = pc.and_(value.is_null(), rescued.is_null())
    if not pc.any(pc.and_(is_older, bodies.is_valid())).as_py():
        return TypedColumns(value, None, rescued)
    try:
        both = joined(value.type, codec.value_type)
    except Conflict:
        return codec.decode(bodies)  # a field has another type now
    # Rows without a value have none, or are older than the schema.
    others = codec.decode(pc.if_else(is_older, bodies, pa.scalar(None, pa.binary())))
    value = pc.if_else(is_older, conformed(others.value, both), conformed(value, both))
    if others.rescued is not None:
        rescued = pc.coalesce(rescued, others.rescued)
    return TypedColumns(value, None, rescued, others.is_behind)


def writers_of(rows: pa.RecordBatch) -> pa.Int32Array | None:
    """Return the id of the schema that wrote each row that waits; None if none says it."""
    at = rows.schema.get_field_index(VALUE)
    return None if at < 0 else pc.struct_field(rows.column(at), "schema_id")


def _with_writers(rows: pa.RecordBatch, writers: pa.Int32Array) -> pa.RecordBatch:
    if writers.null_count == len(writers):
        return rows
    ids = pa.StructArray.from_arrays([writers], names=["schema_id"], mask=writers.is_null())
    return rows.append_column(VALUE, ids)
