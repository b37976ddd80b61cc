"""Spark's `hash`: fixed vectors from Spark 4.2, and both of our forms against each other (SPEC ROUTE-4)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from deltamq.mq.partitioners import hash_string, hash_strings

# SELECT hash(key) in Spark 4.2.0; tests/spark/test_routing_spark.py asks Spark again.
SPARK_HASHES = {
    "": 142593372,
    "a": 1485273170,
    "ab": -97053317,
    "abc": 1322437556,
    "abcd": -396302900,
    "orders": 1175203872,
    "order-1": 1597693919,
    "order-12": 2028555670,
    "order-123": -1605624261,
    "é": 2119106806,
    "naïve": -950767612,
    "订单": 800399840,
    "订单-42": -1532013864,
    "🚚": 234102490,
    "a\0b": -1008589700,
    "\0": -783713497,
    "ÿ": 1533202516,
    "k" * 63: -903435287,
    "0123456789abcdef": -1729524877,
    "\t\n": 814816639,
    "\u07ff": 1853284359,
    "€uro": -1829438951,
}

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)

Buffers = tuple[NDArray[np.int32] | NDArray[np.int64], NDArray[np.uint8]]


def buffers(strings: pa.Array) -> Buffers:
    """The offsets and data of a string array, as a producer's record batch holds them."""
    _, offsets, data = strings.buffers()
    window = slice(strings.offset, strings.offset + len(strings) + 1)
    chars = np.frombuffer(data or b"", dtype=np.uint8)
    if strings.type == pa.large_string():
        return np.frombuffer(offsets or bytes(8), dtype=np.int64)[window], chars
    return np.frombuffer(offsets or bytes(4), dtype=np.int32)[window], chars


@pytest.mark.parametrize("key", SPARK_HASHES)
def test_route_4_one_key_hashes_as_in_spark(key: str) -> None:
    assert hash_string(key) == SPARK_HASHES[key]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_route_4_a_column_hashes_as_in_spark(kind: pa.DataType) -> None:
    column = pa.array(list(SPARK_HASHES), type=kind)
    assert hash_strings(*buffers(column)).tolist() == list(SPARK_HASHES.values())


@given(st.lists(keys, max_size=60), st.sampled_from([pa.string(), pa.large_string()]))
@example(["", "", ""], pa.string())
@example(["abc", "a", "", "abcdefg"], pa.string())
def test_both_forms_agree(strings: list[str], kind: pa.DataType) -> None:
    column = pa.array(strings, type=kind)
    assert hash_strings(*buffers(column)).tolist() == [hash_string(key) for key in strings]


@given(st.lists(keys, min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_slice_whose_offsets_do_not_start_at_zero_hashes_the_same(strings: list[str], low: int, size: int) -> None:
    column = pa.array(strings, type=pa.string()).slice(low, size)
    assert hash_strings(*buffers(column)).tolist() == [hash_string(key) for key in column.to_pylist()]


def test_more_keys_than_one_block_of_every_length_come_back_in_their_order() -> None:
    random = np.random.default_rng(seed=7)
    strings = ["ü" * int(n) + str(i) for i, n in enumerate(random.integers(0, 9, size=40_000))]
    hashes = hash_strings(*buffers(pa.array(strings)))
    sample = random.integers(0, len(strings), size=500)
    assert [int(hashes[i]) for i in sample] == [hash_string(strings[i]) for i in sample]


def test_keys_longer_than_sixteen_bits_count_hash_the_same() -> None:
    strings = ["x" * 70_001, "short", "y" * 65_536]
    assert hash_strings(*buffers(pa.array(strings))).tolist() == [hash_string(key) for key in strings]


def test_unaligned_data_hashes_the_same() -> None:
    offsets, data = buffers(pa.array(["order-1", "order-22", "订单"]))
    shifted = np.frombuffer(b"?" + data.tobytes(), dtype=np.uint8)[1:]
    assert hash_strings(offsets, shifted).tolist() == hash_strings(offsets, data).tolist()


def test_no_keys_give_no_hashes() -> None:
    none = np.empty(0, dtype=np.uint8)
    assert hash_strings(np.zeros(1, dtype=np.int32), none).size == 0
    # Arrow lets an array of length 0 have no offsets at all.
    assert hash_strings(np.empty(0, dtype=np.int32), none).size == 0
