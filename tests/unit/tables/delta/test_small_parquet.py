"""Files of a few rows are written by hand: pyarrow must read from them what it reads from its own."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltamq.mq.producer import Part
from deltamq.tables.compiled import find_compiler
from deltamq.tables.delta.encode import PARTS_KEY, encode_file, encode_stamped
from deltamq.tables.delta.native_parquet import Leaves, WrittenFile, native_writer
from deltamq.tables.delta.small_parquet import (
    SMALL_FILE_ROWS_MAX,
    all_nested_pages,
    encode_few_rows,
    encode_in_pieces,
    leaves_of,
    message_template,
    native_shape,
)
from deltamq.tables.delta.stamped import ProducerStamp, RowsPart, Stamped, table_of
from deltamq.tables.schema import INTERNAL_SCHEMA, MESSAGE_SCHEMA

_APPEND_US = 1_700_000_000_123_000
_BYTES_MAX = 1 << 20
#: Rows are drawn one by one.
_DRAWN_MAX = 40
_TIMES = st.integers(0, 4_000_000_000_000_000)


def _rows(batch: pa.RecordBatch, base: int = 0, producer: ProducerStamp | None = None) -> pa.Table:
    return _stamped(batch, [RowsPart(batch.num_rows, producer)], base).table()


def _stamped(batch: pa.RecordBatch, parts: Sequence[RowsPart], base: int = 0) -> Stamped:
    return Stamped(batch, parts, batch_id="0123456789abcdef" * 2, append_us=_APPEND_US, start=base)


def _batch(**columns: list[object]) -> pa.RecordBatch:
    fields = [INTERNAL_SCHEMA.field(name) for name in columns]
    arrays = [pa.array(values, f.type) for values, f in zip(columns.values(), fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _read(data: bytes) -> pa.Table:
    with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
        return file.read().cast(MESSAGE_SCHEMA)


def _by_hand(rows: pa.Table) -> bytes:
    found = encode_few_rows(rows, [], _BYTES_MAX)
    assert found is not None
    assert found == _in_pieces(rows), "the compiled function writes the same bytes"
    return found.data


def _in_pieces(rows: pa.Table, key_values: Sequence[tuple[bytes, bytes]] = ()) -> WrittenFile | None:
    columns = [column.chunk(0) for column in rows.columns]
    return encode_in_pieces(columns, rows.num_rows, key_values, _BYTES_MAX, all_nested_pages(columns))


@st.composite
def _batches(draw: st.DrawFn) -> pa.RecordBatch:
    count = draw(st.integers(1, _DRAWN_MAX))

    def column(values: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(values, min_size=count, max_size=count))

    columns: dict[str, list[object]] = {"body": column(st.binary(max_size=300))}
    texts = st.text(max_size=20)
    for name, values in (("key", texts), ("tag", texts), ("message_id", texts), ("born_time", _TIMES)):
        if draw(st.booleans()):
            columns[name] = column(st.none() | values)
    if draw(st.booleans()):
        columns["headers"] = column(st.none() | st.lists(st.tuples(texts, st.none() | texts), max_size=3))
    if draw(st.booleans()):
        place = {"topic": texts, "partition": st.none() | texts, "offset": st.none() | st.integers(0, 2**62)}
        columns["origin"] = column(st.none() | st.fixed_dictionaries(place))
    return _batch(**columns)


@settings(max_examples=settings.default.max_examples // 2)
@given(_batches(), st.integers(0, 2**62))
def test_few_rows_are_read_back_whatever_their_columns_hold(batch: pa.RecordBatch, base: int) -> None:
    rows = _rows(batch, base, ProducerStamp("p", base, None, batch.num_rows))
    assert _read(_by_hand(rows)).equals(rows)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 127, 128, 400, 1_024, SMALL_FILE_ROWS_MAX])
def test_few_rows_of_a_slice_hold_the_slice(count: int) -> None:
    whole = _batch(
        body=[b"%d" % i for i in range(SMALL_FILE_ROWS_MAX + 10)],
        key=[None if i % 3 else f"k{i}" for i in range(SMALL_FILE_ROWS_MAX + 10)],
        born_time=list(range(SMALL_FILE_ROWS_MAX + 10)),
        headers=[
            None if i % 5 == 4 else [(f"h{j}", f"{i}") for j in range(i % 5)] for i in range(SMALL_FILE_ROWS_MAX + 10)
        ],
    )
    rows = _rows(whole.slice(7, count))
    found = _read(_by_hand(rows))
    assert found.equals(rows)
    assert found.column("body").to_pylist() == [b"%d" % i for i in range(7, 7 + count)]


def test_few_rows_file_has_the_schema_that_pyarrow_writes() -> None:
    rows = _rows(_batch(body=[b"a"]))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, store_schema=False)
    theirs = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    ours = pq.read_metadata(pa.BufferReader(_by_hand(rows)))
    assert ours.schema.equals(theirs.schema)
    assert ours.num_rows == 1 and ours.num_row_groups == 1


def test_few_rows_leaves_more_rows_to_pyarrow() -> None:
    rows = _rows(_batch(body=[b"a"] * (SMALL_FILE_ROWS_MAX + 1)))
    assert encode_few_rows(rows, [], _BYTES_MAX) is None
    encoded = encode_file(rows, [], batch_id="ab" * 16, now_ms=1, row_group_rows=32)
    assert _read(bytes(encoded.data)).equals(rows)


def test_few_rows_over_the_limit_of_bytes_are_left_to_pyarrow() -> None:
    rows = _rows(_batch(body=[b"a" * 500] * 10))
    assert encode_few_rows(rows, [], 4_000) is None
    assert encode_few_rows(rows, [], 8_000) is not None


def test_few_rows_file_carries_the_producers_parts() -> None:
    parts = [
        Part(producer_id=f"producer-{i}" * 9, seq=i, base_offset=i, count=1, total=1, time_ms=1) for i in range(40)
    ]
    rows = _rows(_batch(body=[b"x"] * 40))
    encoded = encode_file(rows, parts, batch_id="ab" * 16, now_ms=1, row_group_rows=1_000)
    metadata = pq.read_metadata(pa.BufferReader(encoded.data)).metadata
    assert metadata[PARTS_KEY].count(b"producer-39") == 9 and encoded.file.crc.count(",") == 1


def test_few_rows_flipped_byte_of_a_page_is_noticed_by_any_reader() -> None:
    data = bytearray(_by_hand(_rows(_batch(body=[b"needle"]))))
    data[data.index(b"needle")] ^= 1
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        _read(bytes(data))


def test_large_bodies_of_few_rows_are_compressed_and_counted_in_full() -> None:
    rows = _rows(_batch(body=[b"a" * 1_000_000]))
    encoded = encode_file(rows, [], batch_id="ab" * 16, now_ms=1, row_group_rows=32)
    assert encoded.file.size < 10_000
    assert encoded.rows_bytes > 1_000_000


# The compiled function ------------------------------------------------------------------------------------------------


def test_the_compiled_function_is_there_where_there_is_a_compiler() -> None:
    assert (native_writer() is not None) == (find_compiler() is not None)


@settings(max_examples=settings.default.max_examples // 2)
@given(_batches(), st.integers(0, 20), st.binary(max_size=200))
def test_the_compiled_function_writes_the_same_bytes_for_any_slice(
    batch: pa.RecordBatch, skip: int, value: bytes
) -> None:
    rows = _rows(batch.slice(min(skip, batch.num_rows - 1)))
    key_values = [(b"key", value)]
    assert encode_few_rows(rows, key_values, _BYTES_MAX) == _in_pieces(rows, key_values)


_PRODUCERS = st.builds(
    ProducerStamp, st.text(max_size=9), st.integers(-(2**63), 2**63 - 1), st.none(), st.integers(1, 9)
)


@st.composite
def _appends(draw: st.DrawFn) -> Stamped:
    batch, parts = draw(_batches()), []
    while (left := batch.num_rows - sum(part.count for part in parts)) > 0:
        parts.append(RowsPart(draw(st.integers(1, left)), draw(st.none() | _PRODUCERS)))
    whole = [RowsPart(part.count, part.producer or ProducerStamp("", 7, None, 1)) for part in parts]
    return _stamped(batch, whole if draw(st.booleans()) else parts, draw(st.integers(0, 2**62)))


@given(_appends(), st.sampled_from([1_000, 20]))
def test_the_file_of_an_append_is_that_of_its_columns(rows: Stamped, row_group_rows: int) -> None:
    parts = [Part(producer_id="p", seq=1, base_offset=rows.start, count=rows.count, total=rows.count, time_ms=1)]
    found = encode_stamped(rows, parts, now_ms=5, row_group_rows=row_group_rows)
    made = encode_file(rows.table(), parts, batch_id=rows.batch_id, now_ms=5, row_group_rows=row_group_rows)
    assert found == made if isinstance(made.data, bytes) else found.file == made.file


def _large_append(count: int, size: int) -> Stamped:
    batch = _batch(body=[b"%08d" % i + b"." * (size - 8) for i in range(count)], key=[f"k{i}" for i in range(count)])
    halves = [RowsPart(count // 2, _producer(7)), RowsPart(count - count // 2, _producer(8))]
    return _stamped(batch, halves, 5)


def _producer(seq: int) -> ProducerStamp:
    return ProducerStamp("p", seq, None, 1)


@pytest.mark.parametrize(
    ("count", "size", "is_plain"), [(5_000, 100, True), (16_383, 100, True), (16_384, 100, False), (100, 10_000, False)]
)
def test_the_file_of_an_append_of_less_than_half_a_row_group_is_written_without_compression(
    count: int, size: int, is_plain: bool
) -> None:
    rows = _large_append(count, size)
    found = encode_stamped(rows, [], now_ms=5, row_group_rows=32_768)
    assert _read(bytes(found.data)).equals(rows.table())
    assert found.file.count == count and found.file.size == len(found.data)
    metadata = pq.read_metadata(pa.BufferReader(found.data))
    body = metadata.row_group(0).column(metadata.schema.names.index("body"))
    assert (body.compression == "UNCOMPRESSED") == (is_plain and native_writer() is not None)


def test_columns_of_an_append_are_not_made_to_write_its_file() -> None:
    rows = _stamped(_batch(body=[b"a", b"b"]), [RowsPart(2, ProducerStamp("p", 7, None, 2))])
    encode_stamped(rows, [], now_ms=5, row_group_rows=1_000)
    assert rows.is_made == (native_writer() is None)


@settings(
    max_examples=settings.default.max_examples // 2,
    # an append is large as it is, and it takes two
    suppress_health_check=[*settings.default.suppress_health_check, HealthCheck.data_too_large],
)
@given(st.lists(_appends(), min_size=1, max_size=3))
def test_columns_of_several_appends_are_made_as_those_of_each(appends: list[Stamped]) -> None:
    start, adjacent = 5, []
    for one in appends:
        adjacent.append(_stamped(one.rows, one.parts, start))
        start += one.count
    whole = table_of(adjacent)
    assert whole.equals(pa.concat_tables([one.table() for one in adjacent]))
    assert table_of(adjacent, ["offset", "key", "body"]).equals(whole.select(["offset", "key", "body"]))
    for one in adjacent:
        ids = one.table().column("message_id").to_pylist()
        assert one.message_ids(0, one.count) == ids
        assert one.message_ids(one.count // 2, one.count - one.count // 2) == ids[one.count // 2 :]


@pytest.mark.parametrize(
    ("values", "counts"),
    [([1, 2], [1, 2]), ([1, 2], [3, -1]), ([1], [1, 1]), ([1, 2], [2**63 - 1, 3])],
    ids=["too many", "negative", "no value", "overflow"],
)
def test_the_compiled_function_refuses_counts_that_are_not_those_of_the_rows(
    values: list[int], counts: list[int]
) -> None:
    writer = native_writer()
    if writer is None:
        pytest.skip("there is no C compiler here")
    shape = native_shape(message_template(), 2)
    leaves = Leaves(shape)
    leaves.repeated(_leaf("append_time"), array("q", values), array("q", counts))
    assert writer.write(shape, leaves, 2, b"", _BYTES_MAX) is None


@pytest.mark.parametrize("ends", [[0, 9], [0, 2, 1], [-1, 2], [0]])
def test_the_compiled_function_reads_nothing_behind_repeated_texts(ends: list[int]) -> None:
    writer = native_writer()
    if writer is None:
        pytest.skip("there is no C compiler here")
    counts = array("q", [1] * max(len(ends) - 1, 1))
    shape = native_shape(message_template(), len(counts))
    leaves = Leaves(shape)
    leaves.repeated_texts(_leaf("producer_id"), array("i", ends), b"abc", counts)
    assert writer.write(shape, leaves, len(counts), b"", _BYTES_MAX) is None


def test_the_compiled_function_refuses_a_prefix_of_another_length() -> None:
    writer = native_writer()
    if writer is None:
        pytest.skip("there is no C compiler here")
    shape = native_shape(message_template(), 2)
    leaves = Leaves(shape)
    leaves.numbered(_leaf("message_id"), b"short")
    assert writer.write(shape, leaves, 2, b"", _BYTES_MAX) is None


def _leaf(name: str) -> int:
    return native_shape(message_template(), 1).columns.index(MESSAGE_SCHEMA.get_field_index(name))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4_095, 65_536, 200_000])
def test_the_compiled_function_computes_the_checksums_of_bodies_of_all_sizes(size: int) -> None:
    rows = _rows(_batch(body=[bytes(at * 7 % 251 for at in range(size))]))
    assert _read(_by_hand(rows)).equals(rows)


@pytest.mark.parametrize("middle", [-1, 6, 2**31 - 1, -(2**31)])
def test_the_compiled_function_reads_nothing_behind_a_column(middle: int) -> None:
    """Arrow checks the first and the last end of texts when a column is made, and not those between."""
    writer = native_writer()
    if writer is None:
        pytest.skip("there is no C compiler here")
    columns = [column.chunk(0) for column in _rows(_batch(body=[b"abc", b"de"])).columns]
    buffers = [None, pa.py_buffer(np.array([0, middle, 5], np.int32)), pa.py_buffer(b"abcde")]
    body = pa.Array.from_buffers(pa.binary(), 2, buffers, null_count=0)
    columns[MESSAGE_SCHEMA.get_field_index("body")] = body
    shape = native_shape(message_template(), 2)
    assert writer.write(shape, leaves_of(columns, shape, {}), 2, b"", _BYTES_MAX) is None
