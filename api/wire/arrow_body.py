"""Arrow bodies: produce requests, checked and without copies, and rows in answers, sent in pieces.

The arrays of a request's result point into its body. Nothing in the body is trusted: the stream must be complete up to
its end marker, uncompressed, and of a few known types, so that no small body unfolds into a large table. Every array
is validated in full before its first use, since an offset out of bounds would read foreign memory.

An answer is a stream of record batches, each copied when it is sent:

    schema | batch of up to PIECE_BYTES_MAX | batch | ... | end marker
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.api.wire.rows import ArrowRows, Decoded
from deltamq.mq.errors import Refused, TooLarge, Unprocessable
from deltamq.mq.limits import (
    ARROW_BATCHES_MAX,
    ARROW_MESSAGES_MAX,
)
from deltamq.tables.message_limits import check_column
from deltamq.tables.queue.deliver_times import times_of_columns
from deltamq.tables.schema import HEADERS, INGEST_SCHEMA, TIME
from deltamq.tables.typed_row import VALUE

_TEXT: Final = (pa.string(), pa.large_string())
_BYTES: Final = (*_TEXT, pa.binary(), pa.large_binary())
_COLUMNS: Final = (
    *("body", "key", "tag", "headers", "message_id", "born_time", "partition", "deliver_time", "delay_ms"),
    VALUE,
)
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
#: Numbers of the IPC format's flatbuffer: the kind of a message, and the slot of a batch's `compression`.
_RECORD_BATCH: Final = 3
_COMPRESSION_SLOT: Final = 3


def decode_arrow(body: bytes | bytearray, now_ms: int) -> Decoded:
    """Decode and check one Arrow stream; delays count from `now_ms`."""
    try:
        batch = _read(body)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, struct.error, ValueError) as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Refused(f"body: not a complete Arrow stream: {detail}", code="invalid_arrow", field="body") from None
    if batch.num_rows == 0:
        raise Unprocessable("body: at least one message is needed", code="no_messages", field="body")
    columns = {
        f.name: batch.column(i) for i, f in enumerate(batch.schema) if batch.column(i).null_count < batch.num_rows
    }
    times = times_of_columns(columns.pop("deliver_time", None), columns.pop("delay_ms", None), now_ms)
    partition = columns.pop("partition", None)
    checked = [(f, _checked(f.name, columns[f.name])) for f in INGEST_SCHEMA if f.name in columns]
    value = columns.get(VALUE)
    if "body" not in columns and value is None:
        raise Refused("body: every message needs a body", code="missing_field", field="body")
    if value is not None:
        checked.append((pa.field(VALUE, value.type), value))
    rows = pa.RecordBatch.from_arrays([c for _, c in checked], schema=pa.schema([f for f, _ in checked]))
    named = None if partition is None else _cast("partition", partition)
    return Decoded(ArrowRows(rows.num_rows, len(body), rows), named, times)


# The stream ---------------------------------------------------------------------------------------------------


def _read(body: bytes | bytearray) -> pa.RecordBatch:
    """Return all batches of the stream as one; it copies them only if there are several."""
    batches = []
    rows = 0
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        _check_schema(reader.schema)
        _check_messages(body)
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            _check_counts(rows, len(batches))
        if len(batches) == 1:
            return batches[0]
        columns = pa.Table.from_batches(batches, reader.schema).columns
        return pa.RecordBatch.from_arrays([c.combine_chunks() for c in columns], schema=reader.schema)


def _check_messages(body: bytes | bytearray) -> None:
    """Check the frames of the stream: a schema, uncompressed batches, and the end marker as its end."""
    source = pa.BufferReader(pa.py_buffer(body))
    batches = 0
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(source)):
        if message.type != ("schema" if number == 0 else "record batch"):
            raise ValueError(f"message {number} is a {message.type}")
        if number:
            batches += 1
            _check_counts(0, batches)
            if _compressed(message.metadata):
                raise Unprocessable("body: compressed Arrow is not taken", code="compressed_arrow", field="body")
    if source.tell() != len(body) or bytes(body[-8:]) != _END:
        raise ValueError("its end marker is missing or not at the end")


def _check_counts(rows: int, batches: int) -> None:
    if rows > ARROW_MESSAGES_MAX:
        detail = f"body: more than {ARROW_MESSAGES_MAX} messages in one request"
        raise TooLarge(detail, code="too_many_messages", field="body", extra={"limit": ARROW_MESSAGES_MAX})
    if batches > ARROW_BATCHES_MAX:
        detail = f"body: more than {ARROW_BATCHES_MAX} record batches in one request"
        raise TooLarge(detail, code="too_many_batches", field="body", extra={"limit": ARROW_BATCHES_MAX})


def _compressed(metadata: pa.Buffer) -> bool:
    """Whether an IPC message is a record batch with compressed buffers, from its flatbuffer.

    Arrow verified the flatbuffer when it read the message, but does not show compression to Python.
    """
    view = memoryview(metadata)

    def slot(table: int, number: int) -> int:
        vtable = table - int.from_bytes(view[table : table + 4], "little", signed=True)
        size = int.from_bytes(view[vtable : vtable + 2], "little")
        at = 4 + 2 * number
        offset = int.from_bytes(view[vtable + at : vtable + at + 2], "little") if at < size else 0
        return table + offset if offset else 0

    message = int.from_bytes(view[0:4], "little")
    kind = slot(message, 1)
    if not kind or view[kind] != _RECORD_BATCH:
        return False
    header = slot(message, 2)
    batch = header + int.from_bytes(view[header : header + 4], "little")
    return slot(batch, _COMPRESSION_SLOT) != 0


def _check_schema(schema: pa.Schema) -> None:
    """Check that columns are known, given once, and of types that cannot unfold into more than the body holds."""
    if len(set(schema.names)) != len(schema.names):
        raise Refused("body: a column is given twice", code="unknown_field", field="body")
    for field in schema:
        name = field.name
        if name not in _COLUMNS:
            known = ", ".join(_COLUMNS)
            raise Refused(f"{name} is not a column of a message: {known}", code="unknown_field", field=name)
        if not _type_fits(name, field.type):
            raise Refused(f"{name}: type {field.type} is not taken", code="invalid_type", field=name)
    if "body" not in schema.names and VALUE not in schema.names:
        raise Refused("body: the column body is missing", code="missing_field", field="body")


def _type_fits(name: str, kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return name != "body"
    if name == "body":
        return kind in _BYTES or bool(pa.types.is_fixed_size_binary(kind))
    if name == VALUE:
        return bool(pa.types.is_struct(kind))
    if name in ("born_time", "deliver_time"):
        return bool(pa.types.is_timestamp(kind) and kind.tz is not None)
    if name == "delay_ms":
        return bool(pa.types.is_integer(kind))
    if name == "headers":
        return bool(pa.types.is_map(kind) and kind.key_type == pa.string() and kind.item_type == pa.string())
    return kind in _TEXT


# Columns ------------------------------------------------------------------------------------------------------


def _cast(name: str, column: pa.Array) -> pa.Array:
    target = {"born_time": TIME, "headers": HEADERS, "body": pa.binary()}.get(name, pa.string())
    try:
        # A cast may keep the buffers, too: the one of texts to bytes does.
        return _whole_numbers(column if column.type == target else pc.cast(column, target))
    except pa.ArrowInvalid as error:
        raise Unprocessable(f"{name}: {error}", field=name) from None


def _whole_numbers(column: pa.Array) -> pa.Array:
    """Return the column, copied if its buffer ends with a part of a number: readers take buffers of whole numbers.

    Arrow lets a buffer be longer than its column by any number of bytes; its own writers make no such buffers.
    """
    numbers = column.buffers()[1]
    width = 8 if pa.types.is_timestamp(column.type) else 4
    if numbers is None or numbers.size % width == 0:
        return column
    return pa.concat_arrays([column, column.slice(0, 0)])


def _checked(name: str, column: pa.Array) -> pa.Array:
    column = _cast(name, column)
    check_column(name, column)
    return column


#: Most bytes of a piece: it is copied in less than a millisecond and fits into a processor's cache.
_PIECE_BYTES_MAX: Final = 4 * 1024 * 1024
#: Average rows below which batches are joined: each batch costs the reader about as much as a hundred rows.
_SMALL_BATCH_ROWS: Final = 256


class ArrowPieces:
    """The body of an Arrow answer."""

    def __init__(self, rows: pa.Table) -> None:
        chunks = rows.column(0).num_chunks
        if chunks > 1 and rows.num_rows < chunks * _SMALL_BATCH_ROWS:
            rows = rows.combine_chunks()
        self._schema = memoryview(rows.schema.serialize())
        self._batches = _batches(rows)
        sizes = map(pa.ipc.get_record_batch_size, self._batches)
        self.size: int = len(self._schema) + sum(sizes) + len(_END)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        if self.size <= _PIECE_BYTES_MAX:
            yield b"".join(chain((self._schema,), map(_copied, self._batches), (_END,)))
            return
        yield self._schema
        yield from map(_copied, self._batches)
        yield _END


def _batches(rows: pa.Table) -> list[pa.RecordBatch]:
    pieces = -(-rows.nbytes // _PIECE_BYTES_MAX)
    batches: list[pa.RecordBatch] = rows.to_batches(max_chunksize=max(1, -(-rows.num_rows // max(1, pieces))))
    return batches


def _copied(batch: pa.RecordBatch) -> memoryview:
    return memoryview(batch.serialize())
