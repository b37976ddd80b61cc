"""Rows for a typed topic with their columns, made in the tasks (SPEC TYPE-43).

    body                 decoded
    a struct `value`     encoded, so that the body is what a service stores, and decoded

Rows are staged with body and columns: a repeat of the batch has the same bodies, in whatever version its columns are.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from deltamq.jobs.sink.columns import SinkRows
from deltamq.mq.errors import Refused, Unprocessable
from deltamq.tables.typed.codec import Codec, with_columns

#: Rows that do not fit, of which an error says why.
_SHOWN_MAX: Final = 20


def check_values(topic: str, codec: Codec | None) -> None:
    """Raise `Refused` (`no_schema`) for rows with a struct `value` if the topic has no schema."""
    if codec is None:
        raise Refused(
            f"column 'value' is a struct, and topic {topic} has no schema: give it one, or write to_json(value)",
            code="no_schema",
            field="value",
        )


def typed_rows(given: SinkRows, topic: str, codec: Codec | None) -> pa.RecordBatch:
    """Return the rows of one topic with a body, and with columns if it has a schema.

    Raises
    ------
    Refused
        `no_schema`.
    Unprocessable
        `invalid_value`: rows do not fit, and the topic refuses such messages; or a struct has no exact value in the
        topic's columns. The message names up to twenty of them.
    """
    if given.values is not None:
        check_values(topic, codec)
    if codec is None:
        return given.rows
    rows, at = given.rows, given.rows.schema.get_field_index("body")
    if given.values is not None:
        rows = rows.set_column(at, rows.schema.field(at), _bodies(given, topic, codec))
    decoded = codec.decode(rows.column(at))
    if decoded.invalid is not None and codec.rejects:
        raise _misfits(topic, given.rows, decoded.invalid)
    return with_columns(rows, decoded)


def _bodies(given: SinkRows, topic: str, codec: Codec) -> pa.BinaryArray:
    checked = codec.check(given.values)
    if checked.invalid is not None:
        raise _misfits(topic, given.rows, checked.invalid)
    return pc.fill_null(codec.encode(checked.value), b"")


def _misfits(topic: str, rows: pa.RecordBatch, invalid: pa.StructArray) -> Unprocessable:
    """Rows have no number in a batch that Spark has divided, so they are named by key, or id."""
    shown: list[str] = []
    extra: list[dict[str, str | int | None]] = []
    count = len(invalid) - invalid.null_count
    for at, why in enumerate(invalid.to_pylist()):
        if why is None or len(shown) == _SHOWN_MAX:
            continue
        name = next(
            (value for column in ("key", "message_id") if (value := _value(rows, column, at)) is not None), None
        )
        field = f"value.{why['field']}" if why["field"] else "value"
        shown.append(f"{'row ' + str(at) if name is None else repr(name)}: {field} {why['reason']}")
        extra.append({"key": name, "code": why["code"], "field": why["field"], "reason": why["reason"]})
    more = f", and {count - len(shown)} more" if count > len(shown) else ""
    return Unprocessable(
        f"{count} rows do not fit the schema of topic {topic}, and nothing of the batch is stored: "
        f"{'; '.join(shown)}{more}",
        code="invalid_value",
        field="value",
        extra={"invalid": extra, "count": count},
    )


def _value(rows: pa.RecordBatch, column: str, at: int) -> str | None:
    index = rows.schema.get_field_index(column)
    value: str | None = None if index < 0 else rows.column(index)[at].as_py()
    return value
