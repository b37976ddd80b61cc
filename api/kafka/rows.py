"""Kafka's records as message rows, and message rows as records (SPEC KAFKA-4).

    record                                          message row
    key, null or UTF-8                              key
    key of other bytes                              key: base64 of them, and the header `mq-key`: "base64"
    value                                           body
    value null                                      body: empty, and the header `mq-null-body`: "true"
    headers with different names and UTF-8 values   headers
    other headers                                   headers: those that fit; header `mq-headers`: all of them, as JSON
    time                                            born_time

The row stays what it is: readers of every other kind see plain columns. `tables.kafka_row` reads reserved headers back.
Columns are converted as columns; only rows that need a reserved header are looked at one by one.
"""

from __future__ import annotations

import base64
import functools
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.api.kafka.records.columns import Int64s, Records
from deltamq.api.kafka.records.native import DECODER_SOURCE, ENCODER_SOURCE, NativeDecoder, NativeEncoder
from deltamq.mq.errors import Refused, TooLarge, Unprocessable
from deltamq.mq.limits import HEADER_BYTES_MAX, KEY_BYTES_MAX, LARGE_MESSAGE_BYTES_MAX, TIME_US_MAX, TIME_US_MIN
from deltamq.tables.column_ends import ends_of
from deltamq.tables.compiled import library_path
from deltamq.tables.kafka_row import (
    ALL_HEADERS,
    BASE64,
    KEY_FORM,
    NULL_BODY,
    RESERVED,
    TRUE,
    header_list,
    kafka_headers,
    kafka_key,
    kafka_time_ms,
    kafka_value,
)
from deltamq.tables.message_limits import check_bodies, check_column
from deltamq.tables.schema import HEADERS, TIME

#: The columns of MESSAGE_SCHEMA that records are made of, and their offset.
RECORD_COLUMNS: Final = ("offset", "key", "headers", "body", "born_time")

_US: Final = 1_000
_LEAST_MS: Final = TIME_US_MIN // _US
_GREATEST_MS: Final = TIME_US_MAX // _US
#: The time that a client sends which has none.
_NO_TIME: Final = -1

_Pairs: TypeAlias = list[tuple[bytes, bytes | None]]
_Row: TypeAlias = dict[str, str]


@functools.cache
def native_decoder() -> NativeDecoder | None:
    """Return the compiled decoder of records; None where there is none, or none that this machine can load."""
    try:
        return NativeDecoder(library_path(DECODER_SOURCE))
    except OSError:
        return None


@functools.cache
def native_encoder() -> NativeEncoder | None:
    """Return the compiled encoder of records; None where there is none, or none that this machine can load."""
    try:
        return NativeEncoder(library_path(ENCODER_SOURCE))
    except OSError:
        return None


def rows_of(records: Records) -> pa.RecordBatch:
    """Return the records as rows with columns of INGEST_SCHEMA.

    Raises
    ------
    Refused
        `invalid_record`: a key, a header or a time is out of bounds.
    TooLarge
        A value is larger than a message may be.
    """
    _check_headers(records.headers)
    try:
        return _rows_of(records)
    except TooLarge:
        raise
    except Refused as error:
        raise _invalid(error.detail) from error


def _rows_of(records: Records) -> pa.RecordBatch:
    value = records.value
    extra: dict[int, _Row] = {}
    if value.null_count:
        extra = {at: {NULL_BODY: TRUE} for at in np.flatnonzero(np.asarray(value.is_null())).tolist()}
        value = pc.fill_null(value, b"")
    check_bodies(value, LARGE_MESSAGE_BYTES_MAX)
    columns: dict[str, pa.Array] = {"body": value}
    if records.key.null_count < len(records.key):
        columns["key"] = key = _keys(records.key, extra)
        _check_keys(key)
    headers = _headers(records, extra)
    if headers is not None:
        columns["headers"] = headers
    times = _times(records.time_ms)
    if times is not None:
        columns["born_time"] = times
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _check_keys(keys: pa.StringArray) -> None:
    """Check the keys' lengths, whose error names the row: for most columns one look at the offsets is enough."""
    if int(np.diff(ends_of(keys)).max(initial=0)) > KEY_BYTES_MAX:
        check_column("key", keys)


def _invalid(detail: str) -> Unprocessable:
    return Unprocessable(detail, code="invalid_record")


def _keys(keys: pa.BinaryArray, extra: dict[int, _Row]) -> pa.StringArray:
    """Return the keys as text; what is not UTF-8 is base64, and noted in `extra`."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for at, raw in enumerate(keys.to_pylist()):
            text = None if raw is None else _text(raw)
            if raw is not None and text is None:
                if len(raw) > KEY_BYTES_MAX * 3 // 4:
                    raise _invalid(f"key: binary keys have at most {KEY_BYTES_MAX * 3 // 4} bytes") from None
                text = base64.b64encode(raw).decode("ascii")
                extra.setdefault(at, {})[KEY_FORM] = BASE64
            texts.append(text)
        return pa.array(texts, pa.string())


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _times(ms: Int64s) -> pa.Array | None:
    """Return the column of times; None if no record has one."""
    least, greatest = int(ms.min()), int(ms.max())
    if least >= _LEAST_MS and greatest < _GREATEST_MS:
        return pa.Array.from_buffers(TIME, len(ms), [None, pa.py_buffer(ms * _US)])
    unset = ms == _NO_TIME
    if unset.all():
        return None
    known = ms[~unset]
    if int(known.min()) < _LEAST_MS or int(known.max()) >= _GREATEST_MS:
        raise _invalid("time: must be from 1970 to before 2100, in milliseconds")
    return pa.array(np.where(unset, 0, ms) * _US, mask=unset).cast(TIME)


def _check_headers(headers: pa.MapArray | None) -> None:
    if headers is None or not len(headers.keys):
        return
    sizes = pc.add(pc.binary_length(headers.keys), pc.fill_null(pc.binary_length(headers.items), 0))
    if pc.max(sizes).as_py() > HEADER_BYTES_MAX:
        raise _invalid(f"headers: a header has at most {HEADER_BYTES_MAX} bytes")


def _headers(records: Records, extra: dict[int, _Row]) -> pa.MapArray | None:
    """Return the headers column; None if no row has any."""
    if records.headers is None and not extra:
        return None
    if records.headers is not None and not extra:
        plain = _plain(records.headers)
        if plain is not None:
            return plain
    listed: list[_Pairs] = [[]] * records.count if records.headers is None else records.headers.to_pylist()
    rows = [_row_headers(pairs, extra.get(at)) for at, pairs in enumerate(listed)]
    return pa.array([None if row is None else list(row.items()) for row in rows], HEADERS)


def _plain(headers: pa.MapArray) -> pa.MapArray | None:
    """Return the headers if all of them fit into the column as they are, else None."""
    if headers.items.null_count:
        return None
    try:
        names, values = headers.keys.cast(pa.string()), headers.items.cast(pa.string())
    except pa.ArrowInvalid:
        return None
    if pc.any(pc.is_in(names, pa.array(RESERVED))).as_py():
        return None
    offsets = np.asarray(headers.offsets).astype(np.int64)
    encoded = names.dictionary_encode()
    of_row = np.repeat(np.arange(len(headers)), np.diff(offsets)) * max(1, len(encoded.dictionary))
    pairs = of_row + np.asarray(encoded.indices)
    if len(np.unique(pairs)) < len(pairs):
        return None
    mask = pa.array(np.diff(offsets) == 0)  # a message without headers has none, rather than an empty list
    return pa.MapArray.from_arrays(headers.offsets, names, values, mask=mask)


def _row_headers(pairs: _Pairs, extra: _Row | None) -> _Row | None:
    if not pairs:
        return extra
    texts = [(_name(name), None if value is None else _text(value)) for name, value in pairs]
    fitting: _Row = {}
    for name, text in texts:
        if text is not None and name not in RESERVED:
            fitting.setdefault(name, text)
    if len(fitting) < len(pairs):
        listed = [(name, value) for (name, _), (_, value) in zip(texts, pairs, strict=True)]
        fitting[ALL_HEADERS] = header_list(listed)
    return {**fitting, **(extra or {})}


def _name(raw: bytes) -> str:
    name = _text(raw)
    if name is None:
        raise _invalid("headers: a name is not UTF-8")
    return name


# Rows as records.


def records_of(rows: pa.Table) -> Records:
    """Return message rows, of which RECORD_COLUMNS are enough, as records."""
    key, body, headers = _column(rows, "key"), _column(rows, "body"), _column(rows, "headers")
    times = kafka_time_ms(_column(rows, "born_time"))
    if headers.null_count == len(headers):
        return Records(key=key.cast(pa.binary()), value=body, headers=None, time_ms=times)
    return Records(
        key=kafka_key(key, headers),
        value=kafka_value(body, headers),
        headers=kafka_headers(headers, key, body),
        time_ms=times,
    )


def _column(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
