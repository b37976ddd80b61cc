"""Kafka's Murmur2: published values, and both of our forms against each other (SPEC KAFKA-12)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from deltamq.mq.partitioners import hash_bytes, hash_pieces

# From `UtilsTest.testMurmur2` of Kafka, and from `unittest_murmur2` of librdkafka, which come from Java as well.
KAFKA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"kafka": 0xD067CF64 - 2**32,
    b"giberish123456789": 0x8F552B0C - 2**32,
    b"1234": 0x9FC97B14 - 2**32,
    b"234": 0xE7C009CA - 2**32,
    b"34": 0x873930DA - 2**32,
    b"4": 0x5A4B5CA1,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x78424F1C,
    b"": 0x106E08D9,
}

keys = st.binary(max_size=40)

Buffers = tuple[NDArray[np.int32] | NDArray[np.int64], NDArray[np.uint8]]


def buffers(column: pa.Array) -> Buffers:
    """The offsets and data of a column, as a producer's record batch holds them."""
    _, offsets, data = column.buffers()
    kind = np.int64 if column.type in (pa.large_binary(), pa.large_string()) else np.int32
    edges = np.frombuffer(offsets or bytes(8), dtype=kind)
    return edges[column.offset : column.offset + len(column) + 1], np.frombuffer(data or b"", dtype=np.uint8)


@pytest.mark.parametrize("key", KAFKA_HASHES)
def test_kafka_12_one_key_hashes_as_in_kafka(key: bytes) -> None:
    assert hash_bytes(key) == KAFKA_HASHES[key]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_kafka_12_a_column_hashes_as_in_kafka(kind: pa.DataType) -> None:
    column = pa.array(list(KAFKA_HASHES), type=kind)
    assert hash_pieces(*buffers(column)).tolist() == list(KAFKA_HASHES.values())


@given(st.lists(keys, max_size=60))
@example([b"", b"", b""])
@example([b"abc", b"a", b"", b"abcdefg"])
def test_both_forms_agree(pieces: list[bytes]) -> None:
    assert hash_pieces(*buffers(pa.array(pieces, pa.binary()))).tolist() == [hash_bytes(key) for key in pieces]


@given(st.lists(keys, min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_slice_whose_offsets_do_not_start_at_zero_hashes_the_same(pieces: list[bytes], low: int, size: int) -> None:
    column = pa.array(pieces, pa.binary()).slice(low, size)
    assert hash_pieces(*buffers(column)).tolist() == [hash_bytes(key) for key in column.to_pylist()]


def test_more_keys_than_one_block_of_every_length_come_back_in_their_order() -> None:
    pieces = [bytes([number & 0xFF]) * (number % 67) for number in range(40_000)]
    assert hash_pieces(*buffers(pa.array(pieces, pa.binary()))).tolist() == [hash_bytes(key) for key in pieces]
