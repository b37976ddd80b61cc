"""What waits is decoded with the schema that wrote it, whatever was registered meanwhile (SPEC TYPE-51)."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest

from deltamq.mq.schemas.setting import Format, OnInvalid
from deltamq.tables.queue.redelivery_rows import again, sent_back, with_reason
from deltamq.tables.queue.waiting_rows import arrived, decoded, to_wait, writers_of, written_by
from deltamq.tables.schema import INTERNAL_SCHEMA, MESSAGE_SCHEMA
from deltamq.tables.typed.codec import Codec, with_columns
from deltamq.tables.typed_row import VALUE
from tests.typed import both, record

#: Formats, two versions of which the second reads the first one's bodies wrongly or not at all, and a value of each.
CASES: dict[str, tuple[Format, str, str, Any, dict[str, Any]]] = {
    "another field in front": (
        "avro",
        record(("id", "long"), ("name", "string")),
        record(("note", ["null", "string"], {"default": None}), ("id", "long"), ("name", "string")),
        {"id": 7, "name": "x"},
        {"id": 8, "name": "y", "note": "n"},
    ),
    "bytes that happen to fit": (
        "avro",
        record(("a", "long"), ("b", "long")),
        record(("b", "long"), ("a", "long")),
        {"a": 1, "b": 2},
        {"a": 3, "b": 4},
    ),
    "another name of a field": (
        "avro",
        record(("a", "double"), ("b", "double")),
        record(("b", "double"), ("c", "double", {"aliases": ["a"]})),
        struct.pack("<dd", math.nan, 2.5),
        {"b": 1.5, "c": 4.5},
    ),
    "protobuf": (
        "protobuf",
        'syntax = "proto3"; message Order { int64 a = 1; int64 b = 2; }',
        'syntax = "proto3"; message Order { int64 b = 1; int64 a = 2; }',
        {"a": 1, "b": 2},
        {"a": 3, "b": 4},
    ),
    "json": (
        "json",
        '{"properties": {"id": {"type": "integer"}}}',
        '{"properties": {"id": {"type": "string"}}}',
        {"id": 7},
        {"id": "x"},
    ),
    "columns": ("columns", "id BIGINT", "id STRING", {"id": 7}, {"id": "x"}),
}


def _codecs(case: str, compiled: bool, on_invalid: OnInvalid = "quarantine") -> tuple[Codec, Codec]:
    """The codec of the first version, and that of both."""
    form, first, second, *_ = CASES[case]
    at = 0 if compiled else 1
    return both(form, first, on_invalid=on_invalid)[at], both(form, first, second, on_invalid=on_invalid)[at]


def _sent(codec: Codec, *some: Any) -> pa.RecordBatch:
    """Messages as a request brings them; an object is a value, bytes are a body."""
    made = [one if isinstance(one, bytes) or one is None else codec.encode([one])[0].as_py() for one in some]
    rows = [{"message_id": f"m{at}", "body": body} for at, body in enumerate(made)]
    return pa.RecordBatch.from_pylist(rows, schema=INTERNAL_SCHEMA)


def _read(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that were appended as a reader gets them, with all columns."""
    names = set(rows.schema.names)
    columns = [
        rows.column(field.name) if field.name in names else pa.nulls(rows.num_rows, field.type)
        for field in MESSAGE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, names=MESSAGE_SCHEMA.names)


def _stored(codec: Codec, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the topic as a reader gets them with typed columns."""
    return with_columns(_read(rows), codec.decode(rows.column("body")))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_type_51_what_waits_is_decoded_with_the_schema_that_wrote_it(case: str, compiled: bool) -> None:
    first, newest = _codecs(case, compiled)
    old, new = CASES[case][3:]
    stored = _stored(first, _sent(first, old, None, b""))
    waiting = to_wait(stored, newest)
    assert writers_of(waiting).to_pylist() == [11, None, None]
    retried = again(waiting, "orders", "orders@a", [1, 1, 1])
    letter = with_reason(retried, ["because"] * 3)
    wanted = newest.decode(_sent(first, old).column("body"), pa.array([11], pa.int32())).value[0]
    for to_retry in (True, False):
        back = sent_back(letter, to_retry=to_retry)
        came = arrived(back, newest)
        assert str(came.column(VALUE).to_pylist()) == str([wanted.as_py(), None, None])
        assert str(decoded(back, newest, waited=True).value.to_pylist()) == str([wanted.as_py(), None, None])
    delayed = written_by(_sent(first, old, None, b""), first.newest)
    assert str(arrived(delayed, newest).column(VALUE)[0].as_py()) == str(wanted.as_py())
    # What the newest version wrote is of it, also beside others.
    fresh = to_wait(_stored(newest, _sent(newest, new)), newest)
    if case != "columns":
        assert writers_of(fresh).to_pylist() == [12]
    mixed = pa.Table.from_batches([delayed, written_by(_sent(newest, new), 12)]).combine_chunks().to_batches()[0]
    came = arrived(mixed, newest)
    assert came.schema.get_field_index("invalid") < 0
    assert str(came.column(VALUE)[0].as_py()) == str(wanted.as_py()) and came.column(VALUE)[3].is_valid


@pytest.mark.parametrize("case", CASES)
def test_type_51_a_row_that_does_not_say_what_wrote_it_is_of_the_newest_version(case: str) -> None:
    first, newest = _codecs(case, True)
    rows = _sent(first, CASES[case][3])
    if case == "columns":  # it is in the topic's columns
        assert arrived(rows, newest).column(VALUE).to_pylist() == [{"id": 7, "id_v2": None}]
    else:
        assert str(arrived(rows, newest)) == str(newest.typed(rows))
    unknown = written_by(rows, 99)
    assert str(arrived(unknown, newest)) == str(newest.typed(rows))
    assert arrived(unknown, None).schema.names == rows.schema.names, "a topic of bytes gets no columns"
    assert to_wait(_read(rows), newest).schema.names == MESSAGE_SCHEMA.names


@pytest.mark.parametrize("compiled", [True, False])
def test_type_51_what_did_not_fit_its_schema_keeps_it_too(compiled: bool) -> None:
    some = (b'{"id": "x"}', b'{"id": 7}', b"nonsense", None)
    first, newest = _codecs("json", compiled, "rescue")
    waiting = to_wait(_stored(first, _sent(first, *some)), newest)
    # Both versions rescue the same of what is no JSON.
    assert writers_of(waiting).to_pylist() == [11, 11, 12, None]
    came = arrived(waiting, newest)
    assert str(came.column("rescued").to_pylist()) == str(first.decode(waiting.column("body")).rescued.to_pylist())
    first, newest = _codecs("json", compiled)
    waiting = to_wait(_stored(first, _sent(first, *some)), newest)
    assert writers_of(waiting).to_pylist() == [11, 11, 11, None]
    came = arrived(waiting, newest).column("invalid").to_pylist()
    assert [why and why["code"] for why in came] == ["wrong_type", None, "not_json", None]
