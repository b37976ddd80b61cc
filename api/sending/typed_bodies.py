"""Bodies of a request to a typed topic: made of the values that it brings, and checked before anything is stored.

    value ──encode──> body ──decode──> columns      a request is refused as a whole if a message does not fit (reject)

In the other modes bodies become columns in the commit, those of many requests at once (`api.log.parts`); but not bodies
that were made here and only this version can read: the next one may be the topic's by then.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from deltamq.api.wire.rows import ArrowRows, Decoded, Misfits, Rows
from deltamq.mq.errors import Unprocessable
from deltamq.tables.few_rows import FEW_ROWS_MAX, binary_column
from deltamq.tables.typed.codec import Codec, with_columns
from deltamq.tables.typed_row import TYPED, VALUE


def check_bytes(topic: str, body: Decoded) -> None:
    """Raise `Unprocessable` (`no_schema`) if a request brings values for a topic of bytes."""
    if body.has_values:
        raise Unprocessable(
            f"value: topic {topic} has no schema; send a body, or give the topic a schema",
            code="no_schema",
            field="value",
        )


def typed_body(codec: Codec, body: Decoded) -> None:
    """Make the bodies of values; decode and check all bodies if messages that do not fit are refused.

    Raises
    ------
    Unprocessable
        `invalid_value`: messages do not fit; nothing is stored. `invalid` says of up to twenty which, and why.
    """
    rows, brings_values = body.rows, body.has_values
    if isinstance(rows, ArrowRows):
        _fill_arrow(codec, rows, is_delayed=body.times is not None)
    else:
        _fill(codec, rows, body.values)
    body.values = None
    body.schema_id = codec.newest if codec.is_headless else None
    if not codec.rejects and not (brings_values and codec.is_read_by_its_writer):
        return
    columns = rows.batch if isinstance(rows, ArrowRows) else rows.typed
    if columns is None or columns.schema.get_field_index(VALUE) < 0:
        bodies = _bodies(rows)
        decoded = codec.decode(bodies)
        if decoded.invalid is not None and codec.rejects:
            raise Misfits(decoded.invalid)
        if isinstance(rows, ArrowRows):
            rows.batch = with_columns(rows.batch, decoded)
        else:
            rows.typed = with_columns(pa.RecordBatch.from_arrays([bodies], names=["body"]), decoded)


def _bodies(rows: Rows | ArrowRows) -> pa.BinaryArray:
    if isinstance(rows, ArrowRows):
        return rows.batch.column(rows.batch.schema.get_field_index("body"))
    if rows.count > FEW_ROWS_MAX and all(isinstance(body, str) for body in rows.body):
        return pa.array(rows.body, pa.string()).cast(pa.binary())
    return binary_column([body.encode() if isinstance(body, str) else body for body in rows.body])


def _fill(codec: Codec, rows: Rows, values: list[msgspec.Raw | None] | None) -> None:
    """Put the bodies of values in their places."""
    if values is None:
        return
    at = [index for index, value in enumerate(values) if value is not None]
    made = codec.encode([values[index] for index in at]).to_pylist()
    bodies = list(rows.body)
    for index, made_body in zip(at, made, strict=True):
        bodies[index] = made_body or b""
    rows.body = bodies


def _fill_arrow(codec: Codec, rows: ArrowRows, *, is_delayed: bool) -> None:
    """Replace the values of a batch by their bodies; where only values are stored, they stay as they are."""
    batch = rows.batch
    at = batch.schema.get_field_index(VALUE)
    if at < 0:
        return
    values, others = batch.column(at), batch.select([name for name in batch.schema.names if name not in TYPED])
    if others.schema.get_field_index("body") >= 0:
        raise Unprocessable("value: a message has a body or a value, not both", code="invalid_body", field="value")
    checked = codec.check(values)
    if checked.invalid is not None:
        raise Misfits(checked.invalid)
    if not codec.is_rendered:
        rows.batch = others.append_column("body", codec.encode(checked.value))
        return
    others = others.append_column("body", codec.render(checked.value)) if is_delayed else others
    rows.batch = with_columns(others, checked)
