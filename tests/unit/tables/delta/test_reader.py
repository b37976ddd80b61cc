"""Stored files: every byte checked before it is believed, and no more of it read than is asked (SPEC RELY-4)."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltamq.mq.errors import Corrupt
from deltamq.mq.producer import Part
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.delta.encode import Encoded, encode_file
from deltamq.tables.delta.reader import FileReader, RowCache
from deltamq.tables.delta.stamped import RowsPart, Stamped
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import numbered_bodies, rows

FOLDER = "topics/t/t@a"
PARTS = (Part(producer_id="p", seq=3, base_offset=100, count=20, total=20, time_ms=1),)


def encoded(count: int, *, row_group_rows: int = 1_000, start: int = 100, padding: int = 0) -> Encoded:
    drawn = random.Random(0)
    batch = rows([body + drawn.randbytes(padding) for body in numbered_bodies("b" * 50, count)])
    batch_id, append_us = "0123456789abcdef" * 2, 1_700_000_000_000_000
    stamped = Stamped(batch, [RowsPart(count)], batch_id=batch_id, append_us=append_us, start=start)
    return encode_file(stamped.table(), PARTS, batch_id="b" * 32, now_ms=1, row_group_rows=row_group_rows)


def reader_of(found: Encoded, data: bytes | None = None, cache_bytes: int = 1 << 20) -> tuple[FileReader, FaultyStore]:
    """A reader of the file, which holds `data` instead of what it should if that is given."""
    store = FaultyStore(MemoryStore())
    store.put(f"{FOLDER}/{found.file.path}", found.data if data is None else data, durable=True)
    return FileReader(store, FOLDER, RowCache(cache_bytes)), store


def bodies(found: pa.Table) -> list[bytes]:
    return found.column("body").to_pylist()


@pytest.mark.parametrize("count", [1, 20, 200])
@pytest.mark.parametrize("row_group_rows", [7, 1_000])
def test_every_range_is_read_back(count: int, row_group_rows: int) -> None:
    found = encoded(count, row_group_rows=row_group_rows)
    reader, _ = reader_of(found)
    sent = numbered_bodies("b" * 50, count)
    step = max(1, count // 10)
    for start in range(0, count, step):
        for stop in range(start + 1, count + 1, step):
            rows_ = reader.rows(found.file, 100 + start, 100 + stop)
            assert bodies(rows_) == sent[start:stop]
            assert rows_.column("offset").to_pylist() == list(range(100 + start, 100 + stop))


def test_only_the_row_groups_that_are_asked_are_read() -> None:
    """A file whose other half is gone still serves the first."""
    found = encoded(400, row_group_rows=100, padding=500)
    reader, store = reader_of(found)
    reader.rows(found.file, 200, 201)  # the footer, and the second group
    whole = store.read(f"{FOLDER}/{found.file.path}").to_pybytes()
    store.replace(f"{FOLDER}/{found.file.path}", whole[: len(whole) // 2])
    assert len(bodies(reader.rows(found.file, 100, 150))) == 50
    with pytest.raises(Corrupt):
        reader.rows(found.file, 450, 460)


def test_the_requests_of_producers_travel_in_the_footer() -> None:
    found = encoded(20)
    assert reader_of(found)[0].parts(found.file) == PARTS


@pytest.mark.parametrize("count", [20, 200])
def test_rely_4_every_byte_is_covered(count: int) -> None:
    """Flip one bit in each byte of the file, plain and compressed: reading all of it never serves the result."""
    found = encoded(count, row_group_rows=64)
    raw = bytes(found.data)
    step = 1 if len(raw) < 4_000 else 13
    for at in range(0, len(raw), step):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << at % 8
        reader, _ = reader_of(found, bytes(damaged), cache_bytes=1)
        with pytest.raises(Corrupt, match=found.file.path):
            reader.verify(found.file)


def test_rely_4_every_cut_is_found() -> None:
    found = encoded(20)
    raw = bytes(found.data)
    for length in range(0, len(raw), 7):
        reader, _ = reader_of(found, raw[:length], cache_bytes=1)
        with pytest.raises(Corrupt):
            reader.verify(found.file)


def with_facts(file: DataFile, **facts: Any) -> DataFile:
    from msgspec.structs import replace

    return replace(file, **facts)


@pytest.mark.parametrize("facts", [{"start": 99}, {"start": 101}, {"count": 19}, {"count": 21}])
def test_rely_4_a_file_that_holds_other_offsets_than_its_commit_says_is_found(facts: dict[str, object]) -> None:
    found = encoded(20)
    reader, _ = reader_of(found)
    lying = with_facts(found.file, **facts)
    with pytest.raises(Corrupt):
        reader.verify(lying)
    with pytest.raises(Corrupt):
        reader.rows(lying, lying.start, lying.end)


def test_rely_4_a_missing_file_is_named() -> None:
    found = encoded(20)
    reader, store = reader_of(found)
    store.delete(f"{FOLDER}/{found.file.path}")
    with pytest.raises(Corrupt, match=f"{found.file.path}.*missing"):
        reader.rows(found.file, 100, 101)


def test_a_scan_yields_row_groups_of_the_columns_that_are_asked() -> None:
    found = encoded(250, row_group_rows=100)
    reader, _ = reader_of(found)
    groups = list(reader.groups(found.file, 150, 320, ["offset", "body"]))
    assert [g.num_rows for g in groups] == [50, 100, 20]
    assert groups[0].column_names == ["offset", "body"]
    assert [o for g in groups for o in g.column("offset").to_pylist()] == list(range(150, 320))


SMALL = ["message_id", "key", "tag", "headers", "append_time"]


def test_a_scan_of_few_columns_reads_their_bytes_alone() -> None:
    found = encoded(400, padding=2_000)
    whole = pa.concat_tables(reader_of(found)[0].groups(found.file, 100, 500))
    damaged = bytearray(found.data)
    damaged[damaged.index(whole.column("body")[7].as_py()[-100:])] ^= 1
    reader, _ = reader_of(found, bytes(damaged))
    small = pa.concat_tables(reader.groups(found.file, 110, 490, SMALL, by_page=True))
    assert small.equals(whole.slice(10, 380).select(small.column_names))
    with pytest.raises(Corrupt):
        list(reader.groups(found.file, 110, 490, [*SMALL, "body"], by_page=True))
    with pytest.raises(Corrupt):
        list(reader.groups(found.file, 110, 490, SMALL))


def test_rely_4_every_byte_of_a_page_is_covered() -> None:
    """Flip a bit of each byte of the small columns, headers of pages included: no other row is ever served."""
    found = encoded(400, padding=2_000)
    whole = pa.concat_tables(reader_of(found)[0].groups(found.file, 100, 500)).select(SMALL)
    raw = bytes(found.data)
    group = pq.read_metadata(io.BytesIO(raw)).row_group(0)
    chunks = [group.column(index).to_dict() for index in range(group.num_columns)]
    ranges = [
        (start := chunk["dictionary_page_offset"] or chunk["data_page_offset"], start + chunk["total_compressed_size"])
        for chunk in chunks
        if chunk["path_in_schema"].split(".")[0] in SMALL
    ]
    assert sum(stop - start for start, stop in ranges) > 500
    refused = 0
    for at in (at for start, stop in ranges for at in range(start, stop)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << at % 8
        reader, _ = reader_of(found, bytes(damaged))
        try:
            read = pa.concat_tables(reader.groups(found.file, 100, 500, SMALL, by_page=True))
        except Corrupt:
            refused += 1
        else:
            assert read.select(SMALL).equals(whole), f"byte {at}"
    assert refused > 500


def test_a_row_group_that_was_read_is_not_read_again_while_it_is_kept() -> None:
    found = encoded(300, row_group_rows=100, padding=500)
    reader, store = reader_of(found)
    for _ in range(5):
        reader.rows(found.file, 110, 120)
    assert len(store.keys("read_parts")) == 2, "the footer and one row group"


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize(
    "read",
    [
        lambda reader, file: reader.rows(file, file.start, file.end),
        lambda reader, file: reader.rows_of_group(file, file.start, file.end),
        lambda reader, file: list(reader.groups(file, file.start, file.end, ["key"], by_page=True)),
        lambda reader, file: list(reader.scan(file, ["key"])),
        lambda reader, file: reader.verify(file),
    ],
)
def test_a_small_file_is_read_by_one_call(cache_bytes: int, read: Callable[[FileReader, DataFile], object]) -> None:
    """A store is paid for each call, and answers each after a round trip."""
    small, large = encoded(300, row_group_rows=100), encoded(300, row_group_rows=300, padding=500)
    assert small.file.size < 64 << 10 < large.file.size
    for found, calls in ((small, 1), (large, 2)):
        reader, store = reader_of(found, cache_bytes=cache_bytes)
        read(reader, found.file)
        assert len(store.keys("read_parts")) == calls


def test_rows_of_a_group_end_where_it_does() -> None:
    found = encoded(300, row_group_rows=100)
    reader, _ = reader_of(found)
    for start, stop, end in ((100, 400, 200), (150, 160, 160), (150, 400, 200), (200, 201, 201), (399, 400, 400)):
        read = reader.rows_of_group(found.file, start, stop)
        assert read.column("offset").to_pylist() == list(range(start, end))


# The cache.


def test_the_cache_stays_within_its_bytes_and_drops_what_was_not_used_longest() -> None:
    cache = RowCache(100)
    for i in range(10):
        cache.put(i, f"value {i}", 30)
        assert cache.bytes <= 100
        cache.get(0)
    assert cache.get(0) == "value 0", "used all the time"
    assert cache.get(5) is None
    assert cache.get(9) == "value 9"


def test_the_cache_counts_a_replaced_value_once() -> None:
    cache = RowCache(100)
    for size in (10, 50, 20):
        cache.put("key", size, size)
    assert cache.bytes == 20


def test_the_cache_does_not_keep_what_would_fill_it_alone() -> None:
    cache = RowCache(100)
    cache.put("small", 1, 10)
    cache.put("large", 2, 101)
    assert cache.get("large") is None
    assert cache.get("small") == 1


def test_what_is_kept_of_a_file_goes_with_the_file() -> None:
    found = encoded(10, row_group_rows=4)
    cache = RowCache(1 << 20)
    store = MemoryStore()
    store.put(f"{FOLDER}/{found.file.path}", found.data, durable=True)
    reader, other = FileReader(store, FOLDER, cache), FileReader(store, "elsewhere", cache)
    reader.rows(found.file, 101, 107)
    kept = cache.bytes
    assert kept > 0
    other.forget([found.file.path])
    reader.forget(["another.parquet"])
    assert cache.bytes == kept
    reader.forget([found.file.path])
    assert cache.bytes == 0
    assert reader.rows(found.file, 101, 107).num_rows == 6
