"""Records as rows and back (SPEC KAFKA-4)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.rows import records_of, rows_of
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import HEADER_BYTES_MAX, KEY_BYTES_MAX, LARGE_MESSAGE_BYTES_MAX
from deltamq.tables.schema import HEADERS, MESSAGE_SCHEMA

TIME_MS = 1_700_000_000_000
BINARY_HEADERS = pa.map_(pa.binary(), pa.binary())

some_bytes = st.one_of(st.none(), st.binary(max_size=8), st.text(max_size=8).map(str.encode))
names = st.one_of(st.text(max_size=3), st.sampled_from(["mq-key", "mq-null-body", "mq-headers", "a"])).map(str.encode)
values = st.one_of(some_bytes, st.sampled_from([b"true", b"base64", b"[]"]))
record = st.tuples(
    some_bytes, some_bytes, st.lists(st.tuples(names, values), max_size=3), st.integers(0, 4_000_000_000_000)
)


def _records(rows) -> Records:
    keys, bodies, headers, times = zip(*rows, strict=True)
    return Records(
        key=pa.array(keys, pa.binary()),
        value=pa.array(bodies, pa.binary()),
        headers=pa.array(headers, BINARY_HEADERS) if any(headers) else None,
        time_ms=np.array(times, dtype=np.int64),
    )


def _stored(batch: pa.RecordBatch) -> pa.Table:
    """Return rows as they are read from a table, in two pieces."""
    columns = {
        field.name: batch.column(field.name) if field.name in batch.schema.names else pa.nulls(len(batch), field.type)
        for field in MESSAGE_SCHEMA
        if field.name != "offset"
    }
    offsets = pa.array(range(len(batch)), pa.int64())
    whole = pa.Table.from_pydict({"offset": offsets, **columns}, schema=MESSAGE_SCHEMA)
    return pa.concat_tables([whole.slice(0, 1), whole.slice(1)])


def _listed(records: Records):
    headers = [[]] * records.count if records.headers is None else records.headers.to_pylist()
    return list(
        zip(
            records.key.to_pylist(),
            records.value.to_pylist(),
            map(list, headers),
            records.time_ms.tolist(),
            strict=True,
        )
    )


@pytest.mark.promise("PORT-3")
@given(st.lists(record, min_size=1, max_size=8))
def test_kafka_04_keys_values_headers_and_times_of_every_kind_come_back(rows) -> None:
    batch = rows_of(_records(rows))
    batch.validate(full=True)
    assert batch.column("body").null_count == 0
    assert _listed(records_of(_stored(batch))) == rows


def test_kafka_04_plain_records_become_plain_columns() -> None:
    batch = rows_of(_records([(b"k", b"v", [(b"a", b"1"), (b"b", b"2")], TIME_MS), (None, b"w", [], TIME_MS)]))
    assert batch.schema.field("headers").type == HEADERS
    assert batch.to_pydict()["headers"] == [[("a", "1"), ("b", "2")], None]
    assert batch.to_pydict()["key"] == ["k", None]
    assert [time.timestamp() * 1000 for time in batch.to_pydict()["born_time"]] == [TIME_MS, TIME_MS]


def test_kafka_04_what_does_not_fit_is_beside_what_does() -> None:
    headers = [(b"a", b"1"), (b"a", b"2"), (b"bin", b"\xff"), (b"none", None)]
    (row,) = rows_of(_records([(b"\xff", None, headers, TIME_MS)])).to_pylist()
    assert row["key"] == "/w==" and row["body"] == b""
    found = dict(row["headers"])
    assert found.pop("mq-headers") == '[["a","MQ=="],["a","Mg=="],["bin","/w=="],["none",null]]'
    assert found == {"a": "1", "mq-key": "base64", "mq-null-body": "true"}


def test_kafka_04_records_without_a_time_get_that_of_their_append() -> None:
    assert "born_time" not in rows_of(_records([(None, b"v", [], -1)])).schema.names


def test_kafka_04_headers_that_others_put_into_reserved_names_are_shown_as_they_are() -> None:
    rows = pa.Table.from_pylist(
        [
            {"offset": 0, "body": b"v", "key": "no base64!", "headers": [("mq-key", "base64"), ("mq-headers", "{")]},
            {"offset": 1, "body": b"v", "headers": [("mq-null-body", "true"), ("mq-headers", "[[1, 2]]")]},
        ],
        schema=MESSAGE_SCHEMA,
    )
    one, two = _listed(records_of(rows))
    assert one[:3] == (b"no base64!", b"v", [(b"mq-key", b"base64"), (b"mq-headers", b"{")])
    assert two[:3] == (None, b"v", [(b"mq-null-body", b"true"), (b"mq-headers", b"[[1, 2]]")])


def test_kafka_04_a_header_that_is_too_deep_to_be_read_is_shown_as_it_is() -> None:
    deep = "[" * (HEADER_BYTES_MAX - len("mq-headers"))
    rows = pa.Table.from_pylist([{"offset": 0, "body": b"v", "headers": [("mq-headers", deep)]}], schema=MESSAGE_SCHEMA)
    assert _listed(records_of(rows))[0][2] == [(b"mq-headers", deep.encode())]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ((b"k" * (KEY_BYTES_MAX + 1), b"", [], TIME_MS), "invalid_record"),
        ((b"\xff" * KEY_BYTES_MAX, b"", [], TIME_MS), "invalid_record"),
        ((None, b"v" * (LARGE_MESSAGE_BYTES_MAX + 1), [], TIME_MS), "message_too_large"),
        ((None, b"", [(b"h", b"x" * HEADER_BYTES_MAX)], TIME_MS), "invalid_record"),
        ((None, b"", [(b"\xff", b"x")], TIME_MS), "invalid_record"),
        ((None, b"", [], 2**62), "invalid_record"),
        ((None, b"", [], -5), "invalid_record"),
    ],
)
def test_kafka_04_what_is_over_a_limit_is_refused(row, code) -> None:
    with pytest.raises(DeltaMQError) as error:
        rows_of(_records([(None, b"", [], TIME_MS), row]))
    assert error.value.code == code
