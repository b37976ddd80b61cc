"""Record batches against aiokafka's codec, which knows nothing of ours (SPEC KAFKA-2)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.api.kafka.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    batches_of,
    compressed,
    expanded,
    pack_header,
)
from deltamq.api.kafka.records.columns import Records, read_varints, varint_sizes, write_varints
from deltamq.api.kafka.records.decode import decode_batches, decode_in_columns, expanded_batch
from deltamq.api.kafka.records.encode import encode_records
from deltamq.api.kafka.records.few import decode_few
from deltamq.api.kafka.rows import native_decoder, native_encoder
from deltamq.mq.errors import DeltaMQError, TooLarge
from deltamq.mq.limits import HEADERS_MAX

#: The compiled decoder and encoder, if there was a C compiler.
NATIVE, ENCODER = native_decoder(), native_encoder()
needs_native = pytest.mark.skipif(NATIVE is None, reason="there was no C compiler")
MIB = 1 << 20
TIME_MS = 1_700_000_000_000

names = st.text(max_size=5)
some_bytes = st.one_of(st.none(), st.binary(max_size=20), st.just(b"x" * 300))
record = st.tuples(
    st.integers(0, 2**41),
    some_bytes,
    some_bytes,
    st.lists(st.tuples(names, st.none() | st.binary(max_size=9)), max_size=3),
)
lists = st.lists(record, min_size=1, max_size=20)


def _columns(rows) -> Records:
    pairs = [[(name.encode(), value) for name, value in headers] for _, _, _, headers in rows]
    return Records(
        key=pa.array([key for _, key, _, _ in rows], pa.binary()),
        value=pa.array([value for _, _, value, _ in rows], pa.binary()),
        headers=pa.array(pairs, pa.map_(pa.binary(), pa.binary())) if any(pairs) else None,
        time_ms=np.array([time for time, *_ in rows], dtype=np.int64),
    )


def _rows(records: Records):
    headers = [[]] * records.count if records.headers is None else records.headers.to_pylist()
    # Whether a name is text is checked later, where rows are made.
    named = [[(name.decode(errors="surrogateescape"), value) for name, value in one] for one in headers]
    return list(zip(records.time_ms.tolist(), records.key.to_pylist(), records.value.to_pylist(), named, strict=True))


def _theirs(rows, compression=0, producer=(-1, -1, -1)) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=False,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1 << 30,
    )
    for at, (time, key, value, headers) in enumerate(rows):
        builder.append(at, timestamp=time, key=key, value=value, headers=headers)
    return bytes(builder.build())


def _decoded(data: bytes, bytes_max: int = MIB) -> Records:
    (batch,) = batches_of(data)
    return _both([expanded_batch(batch, bytes_max)])


def _both(batches: list[BatchHeader]) -> Records:
    """Decode with and without the compiled decoder: records and errors are the same."""
    assert _outcome(decode_batches, batches) == _outcome(lambda some: decode_batches(some, NATIVE), batches)
    return decode_batches(batches, NATIVE)


@given(lists, st.sampled_from([Compression.NONE, Compression.GZIP]))
def test_kafka_02_what_another_codec_writes_is_read_with_all_nulls_headers_and_times(rows, compression) -> None:
    assert _rows(_decoded(_theirs(rows, compression))) == rows


#: Records without headers whose lengths stay the same for a while, as those of most producers.
runs = st.lists(
    st.tuples(st.integers(1, 90), st.integers(0, 150), st.none() | st.binary(max_size=3), st.integers(0, 70)),
    min_size=1,
    max_size=5,
)


def _of_runs(found):
    rows, time = [], TIME_MS
    for count, size, key, step in found:
        for _ in range(count):
            time += step
            rows.append((time, key, bytes([len(rows) % 251]) * size, []))
    return rows


@given(runs)
def test_kafka_02_runs_of_records_of_one_length_are_read_and_written_as_others(found) -> None:
    rows = _of_runs(found)
    assert _rows(_decoded(_theirs(rows))) == rows
    batch = DefaultRecordBatch(encode_records(_columns(rows), base_offset=3))
    assert batch.validate_crc()
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in batch] == rows


@given(st.lists(lists | runs.map(_of_runs), min_size=1, max_size=5), st.booleans())
def test_kafka_02_batches_are_read_together_as_alone(several, alike) -> None:
    several = [several[0]] * len(several) if alike else several
    batches = [one for rows in several for one in batches_of(_theirs(rows))]
    assert _rows(_both(batches)) == [row for rows in several for row in rows]


@given(lists, st.data())
def test_kafka_02_a_few_records_are_read_one_by_one_as_in_columns(rows, data) -> None:
    raw = bytearray(_theirs(rows))
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(HEADER_BYTES, len(raw) - 1))] = data.draw(st.integers(0, 255))
    batches = list(batches_of(_sealed(bytes(raw))))
    alone, together = _outcome(decode_few, batches), _outcome(decode_in_columns, batches)
    assert alone in (None, together)


@needs_native
@given(st.lists(lists, min_size=1, max_size=3), st.data())
def test_kafka_02_the_compiled_decoder_takes_what_has_neither_headers_nor_faults_and_nothing_else(
    several, data
) -> None:
    plain = [[(*row[:3], []) for row in rows] for rows in several]
    batches = [one for rows in plain for one in batches_of(_theirs(rows))]
    found = NATIVE.decode(batches)
    assert found is not None and _rows(found) == [row for rows in plain for row in rows]
    found.key.validate(full=True)
    found.value.validate(full=True)
    at = data.draw(st.integers(0, len(batches) - 1))
    raw = bytearray(batches[at].records)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    batches[at] = replace(batches[at], records=memoryview(bytes(raw)))
    found = NATIVE.decode(batches)
    assert found is None or _rows(found) == _outcome(decode_in_columns, batches)


@needs_native
def test_kafka_02_the_compiled_decoder_reads_nothing_behind_its_batches() -> None:
    """Each batch is cut in turn, in front of bytes that would complete it."""
    rows = [(TIME_MS + at, b"k" * (at % 3), b"v" * at, []) for at in range(70)]
    (batch,) = batches_of(_theirs(rows))
    for cut in range(1, len(batch.records)):
        short = replace(batch, records=batch.records[:cut])
        assert NATIVE.decode([short]) is None
        assert NATIVE.decode([short, batch]) is None


@needs_native
def test_kafka_02_the_compiled_decoder_takes_large_batches_without_the_interpreters_lock() -> None:
    rows = [(TIME_MS + at, None if at % 7 else b"key", b"%d" % at * 100, []) for at in range(3_000)]
    (batch,) = batches_of(_theirs(rows))
    assert len(batch.records) > 128 * 1024
    found = NATIVE.decode([batch])
    assert found is not None and _rows(found) == rows


def _outcome(decode, batches):
    try:
        found = decode(batches)
    except DeltaMQError as error:
        return error.code
    return None if found is None else _rows(found)


@needs_native
@given(lists, st.integers(0, 5), st.integers(-(2**62), 2**62))
def test_kafka_02_the_compiled_encoder_writes_what_the_other_one_writes(rows, skip, time) -> None:
    whole = _columns([(time + at, key, value, []) for at, (_, key, value, _) in enumerate(rows)])
    skip = min(skip, whole.count - 1)
    some = replace(whole, key=whole.key[skip:], value=whole.value[skip:], time_ms=whole.time_ms[skip:])
    assert encode_records(some, base_offset=7, native=ENCODER) == encode_records(some, base_offset=7)


@needs_native
@pytest.mark.parametrize("count", [11, 127, 128, 8_191, 8_192, 20_000])
def test_kafka_02_the_compiled_encoder_writes_many_records_of_all_sizes(count) -> None:
    rows = [(TIME_MS + at, None if at % 7 else b"k" * (at % 200), b"v" * (at % 300), []) for at in range(count)]
    columns = _columns(rows)
    assert encode_records(columns, base_offset=0, native=ENCODER) == encode_records(columns, base_offset=0)


@needs_native
@pytest.mark.parametrize("middle", [-1, 6, 2**31 - 1, -(2**31)])
def test_kafka_02_the_compiled_encoder_reads_nothing_behind_a_column(middle) -> None:
    """Arrow checks the first and the last end of texts when a column is made, and not those between."""
    buffers = [None, pa.py_buffer(np.array([0, middle, 5], np.int32)), pa.py_buffer(b"abcde")]
    value = pa.Array.from_buffers(pa.binary(), 2, buffers, null_count=0)
    columns = Records(key=pa.nulls(2, pa.binary()), value=value, headers=None, time_ms=np.zeros(2, np.int64))
    assert ENCODER.encode(columns) is None


@given(lists, st.sampled_from([Compression.NONE, Compression.GZIP]), st.integers(0, 2**60), st.booleans())
def test_kafka_02_what_is_written_another_codec_reads(rows, compression, base, natively) -> None:
    native = ENCODER if natively else None
    batch = DefaultRecordBatch(encode_records(_columns(rows), base_offset=base, compression=compression, native=native))
    assert batch.validate_crc()
    found = [(r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    assert found == rows
    assert batch.base_offset == base


@given(lists, st.sampled_from(Compression))
def test_kafka_02_each_compression_brings_everything_back(rows, compression) -> None:
    data = encode_records(_columns(rows), base_offset=0, compression=compression, producer=(7, 1, 5))
    (batch,) = batches_of(data)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.count) == (7, 1, 5, len(rows))
    assert _rows(_both([expanded_batch(batch, MIB)])) == rows


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30))
def test_kafka_02_numbers_of_every_length_come_back(values) -> None:
    column = np.array(values, dtype=np.int64)
    data, starts = write_varints([column])
    assert np.array_equal(np.diff(starts), varint_sizes(column))
    read, ends = read_varints(data, starts[:-1])
    assert np.array_equal(read, column) and np.array_equal(ends, starts[1:])


def test_kafka_02_snappy_is_read_with_and_without_the_framing_of_java_clients() -> None:
    data = bytes(range(256)) * 1_000
    for xerial in (True, False):
        packed = memoryview(compressed(data, Compression.SNAPPY, xerial=xerial))
        assert bytes(expanded(packed, Compression.SNAPPY, MIB)) == data


@pytest.mark.parametrize("compression", [one for one in Compression if one])
@pytest.mark.parametrize("xerial", [True, False])
def test_kafka_02_a_compression_bomb_is_refused_at_the_bound(compression, xerial) -> None:
    bomb = memoryview(compressed(bytes(64 * MIB), compression, xerial=xerial))
    with pytest.raises(TooLarge) as error:
        expanded(bomb, compression, MIB)
    assert error.value.code == "message_too_large"


def test_kafka_02_records_that_are_not_compressed_obey_the_same_bound() -> None:
    with pytest.raises(TooLarge):
        _decoded(_theirs([(TIME_MS, None, bytes(2 * MIB), [])]))


@pytest.mark.promise("PORT-2")
@given(lists, st.data())
def test_kafka_02_a_changed_byte_is_found_by_the_checksum(rows, data) -> None:
    raw = bytearray(_theirs(rows))
    at = data.draw(st.integers(HEADER_BYTES - 40, len(raw) - 1))  # what stands before is not part of the checksum
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DeltaMQError) as error:
        list(batches_of(bytes(raw)))
    assert error.value.code == "corrupt_records"


def _sealed(data: bytes) -> bytes:
    """Return a batch with the checksum of what it now holds."""
    import google_crc32c

    return data[:17] + google_crc32c.value(data[21:]).to_bytes(4, "big") + data[21:]


@given(lists, st.data())
def test_kafka_02_lies_below_a_right_checksum_are_refused_or_harmless(rows, data) -> None:
    """Whatever the bytes of records are, there is an answer in bounded time, and never an unexpected error."""
    raw = bytearray(_theirs(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(HEADER_BYTES, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (batch,) = batches_of(_sealed(bytes(raw)))
    try:
        found = _both([expanded_batch(batch, MIB)])
    except DeltaMQError as error:
        assert error.code in {"corrupt_records", "invalid_record"}
    else:
        assert found.count == len(rows) == len(found.key) == len(found.value)
        found.key.validate(full=True)
        found.value.validate(full=True)


@given(st.binary(max_size=300))
def test_kafka_02_any_bytes_are_refused_or_empty(data) -> None:
    try:
        assert not list(batches_of(data))
    except DeltaMQError as error:
        assert error.code in {"corrupt_records", "unsupported_records"}


@pytest.mark.parametrize(
    ("at", "change", "code"),
    [
        (16, b"\x00", "unsupported_records"),  # magic 0
        (16, b"\x01", "unsupported_records"),  # magic 1
        (16, b"\x07", "corrupt_records"),
        (8, b"\x7f\xff\xff\xff", "corrupt_records"),  # a length of 2 GiB
        (8, b"\xff\xff\xff\xff", "corrupt_records"),  # a negative length
        (21, b"\x00\x20", "unsupported_records"),  # control records
        (21, b"\x00\x10", "unsupported_records"),  # a transaction
        (21, b"\x00\x07", "unsupported_records"),  # no known compression
        (57, b"\x7f\xff\xff\xff", "corrupt_records"),  # a count of 2**31 - 1
        (57, b"\x00\x00\x00\x00", "corrupt_records"),
        (57, b"\xff\xff\xff\xff", "corrupt_records"),
    ],
)
def test_kafka_02_headers_that_lie_are_refused(at, change, code) -> None:
    raw = bytearray(_theirs([(TIME_MS, b"k", b"v", [])]))
    raw[at : at + len(change)] = change
    with pytest.raises(DeltaMQError) as error:
        list(batches_of(_sealed(bytes(raw))))
    assert error.value.code == code


def test_kafka_02_a_count_that_compression_hides_is_refused_when_it_is_expanded() -> None:
    raw = bytearray(_theirs([(TIME_MS, b"k", b"v", [])], Compression.GZIP))
    raw[57:61] = raw[23:27] = (2**31 - 1).to_bytes(4, "big")
    raw[23:27] = (2**31 - 2).to_bytes(4, "big")
    with pytest.raises(DeltaMQError) as error:
        _decoded(_sealed(bytes(raw)))
    assert error.value.code == "corrupt_records"


def test_kafka_02_a_record_without_bytes_is_refused_also_behind_a_batch_of_the_same_shape() -> None:
    records = b"".join(bytes([14, 0, 0, 2 * number, 1, 2, ord("x"), 0]) for number in range(10)) + b"\0"
    batch = pack_header(records, base_offset=0, count=11, times_ms=(0, 0)) + records
    with pytest.raises(DeltaMQError) as error:
        _both(list(batches_of(batch + batch)))
    assert error.value.code == "corrupt_records"


def test_kafka_02_too_many_headers_are_refused() -> None:
    with pytest.raises(DeltaMQError) as error:
        _decoded(_theirs([(TIME_MS, b"k", b"v", [("h", b"")] * (HEADERS_MAX + 1))]))
    assert error.value.code == "invalid_record"


def test_kafka_02_batches_that_stand_one_after_another_are_all_read() -> None:
    one, two = ([(TIME_MS, None, text, [])] for text in (b"one", b"two"))
    found = [_both([expanded_batch(batch, MIB)]) for batch in batches_of(_theirs(one) + _theirs(two))]
    assert [_rows(records) for records in found] == [one, two]
