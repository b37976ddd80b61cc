"""Message rows as Kafka's clients read them: for the Kafka port and for `rowFormat=kafka` (SPEC KAFKA-4, SPARK-18).

Parts of a record that do not fit the message row's columns are in reserved headers (`api.kafka.rows` writes them):

    header           value      means
    `mq-null-body`   "true"     the value is null; the body is empty
    `mq-key`         "base64"   the column `key` holds the base64 of the key's bytes
    `mq-headers`     JSON       all headers in their order, [[name, base64 or null], ...]

A reserved header that another writer filled is shown as it is. Each rule exists twice: for Arrow columns, of which
only rows with a reserved header are looked at one by one, and as expressions of Spark's SQL.
"""

from __future__ import annotations

import base64
import json
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NULL_BODY: Final = "mq-null-body"
KEY_FORM: Final = "mq-key"
ALL_HEADERS: Final = "mq-headers"
RESERVED: Final = (NULL_BODY, KEY_FORM, ALL_HEADERS)
TRUE: Final = "true"
BASE64: Final = "base64"
BINARY_HEADERS: Final = pa.map_(pa.binary(), pa.binary())
_US: Final = 1_000

_Pairs: TypeAlias = list[tuple[bytes, bytes | None]]


def kafka_key(key: pa.StringArray, headers: pa.MapArray) -> pa.BinaryArray:
    """Return the keys as bytes."""
    raw = key.cast(pa.binary())
    marked = _marked(headers, KEY_FORM, BASE64)
    if not marked.any():
        return raw
    keys = raw.to_pylist()
    for at in np.flatnonzero(marked).tolist():
        decoded = _bytes_of_key(keys[at])
        keys[at] = keys[at] if decoded is None else decoded
    return pa.array(keys, pa.binary())


def kafka_value(body: pa.BinaryArray, headers: pa.MapArray) -> pa.BinaryArray:
    """Return the bodies as values, null where the record's was."""
    null = _null_values(body, headers)
    return pc.if_else(pa.array(~null), body, pa.scalar(None, body.type)) if null.any() else body


def kafka_headers(headers: pa.MapArray, key: pa.StringArray, body: pa.BinaryArray) -> pa.MapArray | None:
    """Return the headers as map<binary, binary> without nulls; None if no row has any.

    `key` and `body` are the columns of the message row: a mark that does not hold for them is a header.
    """
    if headers.null_count == len(headers):
        return None
    if not _has_reserved(headers):
        listed = headers.cast(BINARY_HEADERS)
        return pc.coalesce(listed, pa.scalar([], BINARY_HEADERS)) if listed.null_count else listed
    null, coded = _null_values(body, headers), _marked(headers, KEY_FORM, BASE64)
    lists = []
    for at, pairs in enumerate(headers.to_pylist()):
        row_headers = dict(pairs or ())
        if null[at]:
            del row_headers[NULL_BODY]
        if coded[at] and _bytes_of_key(key[at].as_py()) is not None:
            del row_headers[KEY_FORM]
        lists.append(_listed(row_headers))
    return pa.array(lists, BINARY_HEADERS)


def kafka_time_ms(born_time: pa.TimestampArray) -> np.ndarray:
    """Return the records' times in milliseconds since 1970."""
    return np.asarray(born_time.cast(pa.int64()).fill_null(0)) // _US


def header_list(pairs: list[tuple[str, bytes | None]]) -> str:
    """Return all headers of a record as the value of `ALL_HEADERS`."""
    coded = [[name, None if value is None else base64.b64encode(value).decode("ascii")] for name, value in pairs]
    return _json(coded)


def kafka_sql() -> dict[str, str]:
    """Return the Kafka columns `key`, `value`, `timestamp` and `headers` as SQL over a message table's columns.

    `headers` is an array of structs `key`, `value`, null where a record has none.
    """
    marked = "coalesce(try_element_at(`headers`, '{}') = '{}' AND {}, false)"
    is_null = marked.format(NULL_BODY, TRUE, "length(`body`) = 0")
    is_coded = marked.format(KEY_FORM, BASE64, _is_base64("`key`"))
    kept = f"NOT (k = '{NULL_BODY}' AND {is_null}) AND NOT (k = '{KEY_FORM}' AND {is_coded})"
    pairs = f"map_entries(map_filter(`headers`, (k, v) -> {kept}))"
    plain = f"transform({pairs}, e -> named_struct('key', e.key, 'value', CAST(e.value AS BINARY)))"
    text = f"try_element_at(`headers`, '{ALL_HEADERS}')"
    listed = f"from_json({text}, 'array<array<string>>')"
    right = f"size(p) = 2 AND get(p, 0) IS NOT NULL AND (get(p, 1) IS NULL OR {_is_base64('get(p, 1)')})"
    # Spark reads numbers and spaces as well: only what it writes as the same text again is a list of headers
    is_list = f"coalesce(lower(to_json({listed})) = lower({text}) AND forall({listed}, p -> {right}), false)"
    whole = f"transform({listed}, p -> named_struct('key', get(p, 0), 'value', unbase64(get(p, 1))))"
    headers = f"CASE WHEN `headers` IS NULL THEN NULL WHEN {is_list} THEN {whole} ELSE {plain} END"
    return {
        "key": f"CASE WHEN {is_coded} THEN unbase64(`key`) ELSE CAST(`key` AS BINARY) END",
        "value": f"CASE WHEN {is_null} THEN CAST(NULL AS BINARY) ELSE `body` END",
        "timestamp": "date_trunc('MILLISECOND', coalesce(`born_time`, timestamp_micros(0)))",
        "headers": f"get(filter(array({headers}), found -> size(found) > 0), 0)",
    }


def _is_base64(text: str) -> str:
    """Return SQL for whether a text is base64: text that only a lenient decoder accepts encodes to another text."""
    return f"coalesce(replace(base64(try_to_binary({text}, 'base64')), '\r\n', '') = {text}, false)"


def _has_reserved(headers: pa.MapArray) -> bool:
    return pc.any(pc.is_in(headers.keys, pa.array(RESERVED))).as_py() is True


def _marked(headers: pa.MapArray, name: str, value: str) -> np.ndarray:
    if headers.null_count == len(headers) or not _has_reserved(headers):
        return np.zeros(len(headers), dtype=bool)
    values = pc.map_lookup(headers, pa.scalar(name), "first")
    return np.asarray(pc.fill_null(pc.equal(values, value), False))


def _null_values(body: pa.BinaryArray, headers: pa.MapArray) -> np.ndarray:
    marked = _marked(headers, NULL_BODY, TRUE)
    return marked & np.asarray(pc.equal(pc.binary_length(body), 0)) if marked.any() else marked


def _unbase64(text: bytes | str) -> bytes:
    """Decode base64; raise ValueError if encoding the bytes again gives another text."""
    given = text.encode() if isinstance(text, str) else text
    raw = base64.b64decode(given, validate=True)
    if base64.b64encode(raw) != given:
        raise ValueError("not the base64 of its bytes")
    return raw


def _bytes_of_key(key: bytes | str | None) -> bytes | None:
    try:
        return None if key is None else _unbase64(key)
    except ValueError:
        return None


def _listed(row_headers: dict[str, str | None]) -> _Pairs:
    listed = _whole(row_headers.get(ALL_HEADERS))
    if listed is not None:
        return listed
    return [(name.encode(), None if value is None else value.encode()) for name, value in row_headers.items()]


def _whole(text: str | None) -> _Pairs | None:
    """Return the headers that `header_list` wrote; None if it did not write this text."""
    if text is None:
        return None
    try:
        listed = json.loads(text)
        if not isinstance(listed, list) or _json(listed).lower() != text.lower():
            return None
        return [(name.encode(), None if value is None else _unbase64(value)) for name, value in listed]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
