"""Checks of messages in Arrow columns against the limits of a message (SPEC SEND-6).

All code that takes messages as columns (the service's Arrow requests, the Spark sink) checks them here before anything
is stored.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.mq.errors import Refused, TooLarge, Unprocessable
from deltamq.mq.limits import (
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    TAG_BYTES_MAX,
    TIME_US_MAX,
    TIME_US_MIN,
)
from deltamq.mq.names import TAG_NOT_IN, check_tag

#: A message with fewer headers has none twice.
_SEVERAL: Final = 2

_TEXT_LIMITS: Final = {"key": KEY_BYTES_MAX, "tag": TAG_BYTES_MAX, "message_id": MESSAGE_ID_BYTES_MAX}


def check_column(name: str, column: pa.Array) -> None:
    """Check that all values of a column of INGEST_SCHEMA, in its exact type, are within their bounds.

    Raises
    ------
    Refused
        A value breaks a bound (also as `Unprocessable` or `TooLarge`). `field` is the column; if a value is too long,
        `row` in `extra` is its row.
    """
    if name == "body":
        if column.null_count:
            raise Refused("body: every message needs a body", code="missing_field", field="body")
        check_bodies(column, MESSAGE_BYTES_MAX)
    elif name in _TEXT_LIMITS:
        _check_lengths(name, column, _TEXT_LIMITS[name], Unprocessable)
        if name == "tag":
            _check_tags(column)
    elif name == "born_time":
        bounds = pc.min_max(column)
        if bounds["min"].is_valid and (bounds["min"].value < TIME_US_MIN or bounds["max"].value >= TIME_US_MAX):
            raise Unprocessable("born_time: must be from 1970 to before 2100", field=name)
    elif name == "headers":
        _check_headers(column)


def check_bodies(column: pa.BinaryArray, limit: int) -> None:
    """Check that no body has more bytes than `limit`.

    Raises
    ------
    TooLarge
        One has (`message_too_large`); `row` in `extra` is its row.
    """
    _check_lengths("body", column, limit, TooLarge)


def _check_lengths(name: str, column: pa.Array, limit: int, kind: type[Refused]) -> None:
    values = column.buffers()[2]
    if values is None or values.size <= limit:
        return  # as most columns: together they are no longer than one value may be
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest > limit:
        row = pc.index(pc.greater(pc.binary_length(column), limit), True).as_py()
        code = "message_too_large" if kind is TooLarge else None
        detail = f"{name}: row {row} has {longest} bytes; at most {limit} are allowed"
        raise kind(detail, code=code, field=name, extra={"limit": limit, "row": row})


def _check_tags(column: pa.StringArray) -> None:
    wrong = pc.or_(pc.match_substring_regex(column, TAG_NOT_IN), pc.equal(column, ""))
    row = pc.index(wrong, True).as_py()
    if row >= 0:
        try:
            check_tag(column[row].as_py())
        except Unprocessable as error:
            error.extra["row"] = row
            raise


def _check_headers(column: pa.MapArray) -> None:
    offsets = np.asarray(column.offsets)
    if int(np.diff(offsets).max(initial=0)) > HEADERS_MAX:
        detail = f"headers: a message has at most {HEADERS_MAX} headers"
        raise Unprocessable(detail, field="headers", extra={"limit": HEADERS_MAX})
    first, last = int(offsets[0]), int(offsets[-1])
    keys, items = column.keys.slice(first, last - first), column.items.slice(first, last - first)
    if items.null_count:
        raise Refused("headers: a header's value is null", code="invalid_type", field="headers")
    _check_repeats(offsets, keys)
    sizes = pc.add(pc.binary_length(keys), pc.binary_length(items))
    if (pc.max(sizes).as_py() or 0) > HEADER_BYTES_MAX:
        detail = f"headers: a header has at most {HEADER_BYTES_MAX} bytes"
        raise Unprocessable(detail, field="headers", extra={"limit": HEADER_BYTES_MAX})


def _check_repeats(offsets: npt.NDArray[np.int32], keys: pa.StringArray) -> None:
    """Refuse a header that a message has twice: one reader would take the first value, and another the last."""
    if int(np.diff(offsets).max(initial=0)) < _SEVERAL:
        return
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    names = keys.dictionary_encode()
    codes = rows * max(1, len(names.dictionary)) + names.indices.to_numpy(zero_copy_only=False)
    _, first = np.unique(codes, return_index=True)
    if len(first) < len(codes):
        twice = int(np.setdiff1d(np.arange(len(codes)), first)[0])
        row, name = int(rows[twice]), keys[twice].as_py()
        detail = f"headers: row {row} has the header {name[:40]!r} twice; a message has each once"
        raise Unprocessable(detail, field="headers", extra={"row": row})
