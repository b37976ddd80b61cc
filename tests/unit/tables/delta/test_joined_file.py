"""Files are joined by copying their row groups: every reader finds the same rows, and every byte is still checked."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deltamq.mq.errors import Corrupt
from deltamq.mq.limits import MIB
from deltamq.mq.producer import Part
from deltamq.tables.delta.encode import Encoded, encode_file, footer_start
from deltamq.tables.delta.joined_file import join_files
from deltamq.tables.delta.large_file import GROUP_BYTES_MAX, encode_large_file
from deltamq.tables.delta.moved_groups import read_footer
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.stamped import RowsPart, Stamped
from deltamq.tables.schema import INTERNAL_SCHEMA, MESSAGE_SCHEMA
from deltamq.tables.store.store import MemoryStore

GROUP = 16
BORN = datetime.datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=datetime.UTC)
PARTS = [Part(producer_id="p", seq=4, base_offset=3, count=2, total=2, time_ms=1)]


def rows(start: int, count: int, *, is_plain: bool) -> pa.Table:
    """Rows with values and nulls in every column; plain ones are written by the compiled function, if there is one."""
    numbers = range(start, start + count)
    columns: dict[str, list[object]] = {
        "key": [None if i % 4 == 0 else f"k{i % 5}" for i in numbers],
        "body": [bytes([i % 256]) * (i % 40) for i in numbers],
        "born_time": [BORN + datetime.timedelta(microseconds=i % 10_007) for i in numbers],
        "deliver_time": [BORN + datetime.timedelta(seconds=i % 10_007) for i in numbers],
    }
    if not is_plain:
        columns["headers"] = [None if i % 3 == 0 else [("a", "x" * (i % 9))] for i in numbers]
        columns["origin"] = [{"topic": "t", "partition": "t@a", "offset": i} if i % 3 else None for i in numbers]
    fields = [INTERNAL_SCHEMA.field(name) for name in columns]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in fields], schema=pa.schema(fields)
    )
    append_us = 1_700_000_000_000_000 + start % 10_007 * 1_000
    return Stamped(batch, [RowsPart(count)], batch_id=f"{start:032x}", append_us=append_us, start=start).table()


class Files:
    """Files of adjacent rows in a store, and their joiner."""

    def __init__(self, shapes: Sequence[tuple[int, bool]], start: int = 0) -> None:
        self.store = MemoryStore()
        self.reader = FileReader(self.store, "t", RowCache(1))
        starts = accumulate((count for count, _ in shapes), initial=start)
        self.tables = [rows(at, count, is_plain=plain) for at, (count, plain) in zip(starts, shapes, strict=False)]
        self.files = [self.put(self.encoded(table, f"{at:032x}")).file for at, table in enumerate(self.tables)]
        #: How many files were encoded again, run by run.
        self.encoded_again: list[int] = []

    def encoded(self, table: pa.Table, batch_id: str) -> Encoded:
        return encode_file(table, [], batch_id=batch_id, now_ms=1, row_group_rows=GROUP)

    def put(self, encoded: Encoded) -> Encoded:
        self.store.put(f"t/{encoded.file.path}", encoded.data, durable=True)
        return encoded

    def join(self) -> Encoded | None:
        def encode(some: Sequence[object]) -> Encoded:
            self.encoded_again.append(len(some))
            tables = [self.tables[self.files.index(file)] for file in some]
            return self.encoded(pa.concat_tables(tables), "e" * 32)

        return join_files(
            self.files, self.reader.whole, encode, PARTS, batch_id="j" * 32, now_ms=7, row_group_rows=GROUP
        )


_SHAPES = st.lists(st.tuples(st.integers(1, 3 * GROUP), st.booleans()), min_size=1, max_size=6)


@given(_SHAPES, st.sampled_from([0, 2**40]))
def test_a_joined_file_holds_the_rows_of_all_files_in_their_row_groups(
    shapes: list[tuple[int, bool]], start: int
) -> None:
    files = Files(shapes, start)
    found = files.join()
    small = [file.count * 2 < file.crc.count(",") * GROUP for file in files.files]
    if all(small):
        assert found is None
        return
    assert found is not None and sum(files.encoded_again) == sum(small)
    files.put(found)
    whole = pa.concat_tables(files.tables)
    with pq.ParquetFile(pa.BufferReader(found.data), page_checksum_verification=True) as parquet:
        assert parquet.read().cast(MESSAGE_SCHEMA).equals(whole)
    files.reader.verify(found.file)
    assert files.reader.rows(found.file, found.file.start, found.file.end).equals(whole)
    assert files.reader.parts(found.file) == tuple(PARTS)
    again = encode_large_file([whole], PARTS, batch_id="j" * 32, now_ms=7, row_group_rows=GROUP).file
    said = ("path", "start", "count", "modified_ms", "append_min_us", "append_max_us", "stats")
    assert [getattr(found.file, name) for name in said] == [getattr(again, name) for name in said]
    assert found.file.size == len(memoryview(found.data))


def test_rely_8_a_row_group_of_a_large_file_is_closed_by_its_bytes_also_within_one_table() -> None:
    count = GROUP_BYTES_MAX // MIB + 6
    fields = [INTERNAL_SCHEMA.field("body")]
    bodies = pa.RecordBatch.from_arrays([pa.array([bytes(MIB)] * count, pa.binary())], schema=pa.schema(fields))
    table = Stamped(bodies, [RowsPart(count)], batch_id="a" * 32, append_us=1, start=7).table()
    found = encode_large_file([table.slice(0, 3), table.slice(3)], [], batch_id="b" * 32, now_ms=1, row_group_rows=1024)
    footer = pq.read_metadata(pa.BufferReader(found.data))
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [count - 6, 6]
    assert (found.file.start, found.file.count) == (7, count)


def test_a_joined_file_is_joined_again() -> None:
    files = Files([(20, False), (40, True)])
    once = files.join()
    assert once is not None
    files.put(once)
    more = Files([(33, False)], start=60)
    files.files, files.tables = [once.file, *more.files], [pa.concat_tables(files.tables), *more.tables]
    for name in more.store.names("t"):
        files.store.put(f"t/{name}", more.store.read(f"t/{name}"), durable=True)
    twice = files.join()
    assert twice is not None and not files.encoded_again
    files.put(twice)
    assert files.reader.rows(twice.file, 0, 93).equals(pa.concat_tables(files.tables))
    footer = pq.read_metadata(pa.BufferReader(twice.data))
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [16, 4, 16, 16, 8, 16, 16, 1]
    assert footer.row_group(3).column(0).statistics.min == 36, "statistics are those of the group"


def test_each_byte_of_a_joined_file_is_covered_by_a_checksum() -> None:
    files = Files([(20, False), (18, True), (5, True)])
    found = files.join()
    assert found is not None
    data = bytes(memoryview(found.data))
    for at in range(0, len(data), 7):
        altered = bytearray(data)
        altered[at] ^= 1
        files.store.replace(f"t/{found.file.path}", bytes(altered))
        with pytest.raises(Corrupt):
            FileReader(files.store, "t", RowCache(1)).whole(found.file)


def test_a_file_that_was_altered_is_not_joined() -> None:
    files = Files([(20, False), (40, False)])
    data = bytearray(memoryview(files.store.read(f"t/{files.files[1].path}")))
    data[len(data) // 2] ^= 1
    files.store.replace(f"t/{files.files[1].path}", bytes(data))
    with pytest.raises(Corrupt, match="checksum"):
        files.join()


def test_files_with_statistics_that_are_not_ours_are_encoded_again() -> None:
    files = Files([(20, False), (40, False)])
    files.files[1] = replace(files.files[1], stats="{}")
    assert files.join() is None


def _footer() -> bytes:
    encoded = encode_file(rows(0, 40, is_plain=False), [], batch_id="0" * 32, now_ms=1, row_group_rows=GROUP)
    data = memoryview(encoded.data)
    return bytes(data[footer_start(data) : -8])


FOOTER = _footer()


def test_a_footer_that_does_not_move_is_written_as_it_was() -> None:
    footer = read_footer(FOOTER)
    assert footer.moved(0, 0) == list(footer.groups) and footer.rows == 40


@given(st.integers(0, len(FOOTER) - 1), st.integers(1, 255), st.integers(0, len(FOOTER)))
def test_a_footer_that_is_none_is_refused(at: int, mask: int, end: int) -> None:
    altered = bytearray(FOOTER)
    altered[at] ^= mask
    for data in (bytes(altered), FOOTER[:end]):
        with contextlib.suppress(ValueError):
            read_footer(data).moved(1_000, 3)
