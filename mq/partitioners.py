"""From a key to its slot in a topic's table, which names the partition (SPEC ROUTE-4, KAFKA-12).

    lp       key -> logical partition                             of 1,024, as Spark SQL computes it; a route maps them
    kafka    key -> Kafka's hash, modulo the size of the table    the i-th of n slots is the i-th partition of the route

A table of `kafka` has a multiple of n slots while partitions are closed (`tables.queue.placement`): the hash modulo n
follows from the hash modulo any multiple of n, so no other key moves.

Both hashes are Murmur's, over the UTF-8 bytes in whole 4-byte little-endian words. They differ in the 0 to 3 bytes that
are left over:

    bytes              6F 72 64 65   72 73 2D 31   C3      A9
    lp, Murmur3        0x6564726F    0x312D7372    -61     -87     each mixed as a word of its own, sign-extended
    kafka, Murmur2     0x6564726F    0x312D7372    0xA9C3          mixed together, at the end

Each hash has two implementations, which tests hold equal: one key in plain Python, and all keys of an Arrow column at
once in numpy, where keys of about equal length are hashed together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deltamq.mq.limits import LOGICAL_PARTITIONS

#: The hash by which the keys of a topic go to its partitions: Spark's, or the one of Kafka's clients.
Partitioner: TypeAlias = Literal["lp", "kafka"]
#: For each slot the index of a partition.
Table: TypeAlias = NDArray[np.int16]
Slots: TypeAlias = NDArray[np.int16] | NDArray[np.int32]
Offsets: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

#: Kafka's partitioner takes the lower 31 bits, because Java's remainder of a negative number is negative.
_POSITIVE: Final = 0x7FFF_FFFF


def logical_partition(key: str) -> int:
    """Return the LP of `key`: `pmod(hash(key), 1024)` in Spark SQL (SPEC ROUTE-4)."""
    return hash_string(key) % LOGICAL_PARTITIONS


def logical_partitions(offsets: Offsets, data: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Return the LP of every key of an Arrow string column, from its buffers (see `hash_column`)."""
    # The number of LPs is a power of two, so the low bits are the positive remainder.
    return (hash_strings(offsets, data) & (LOGICAL_PARTITIONS - 1)).astype(np.int16)


def kafka_hash(key: str) -> int:
    """Return the number that Kafka's default partitioner divides by the number of partitions; never negative."""
    return hash_bytes(key.encode()) & _POSITIVE


def kafka_hashes(offsets: Offsets, data: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the same number of every key of an Arrow column of strings or bytes, from its buffers."""
    return hash_pieces(offsets, data) & np.int32(_POSITIVE)


def kafka_table(partitions: int) -> Table:
    """Return the table of a topic with this many partitions, whose keys go by Kafka's hash; read only."""
    table = np.arange(partitions, dtype=np.int16)
    table.flags.writeable = False
    return table


def slot_of(key: str, partitioner: Partitioner, slots: int) -> int:
    """Return the slot of `key` in a table of this size."""
    return kafka_hash(key) % slots if partitioner == "kafka" else logical_partition(key)


def slots_of(offsets: Offsets, data: NDArray[np.uint8], partitioner: Partitioner, slots: int) -> Slots:
    """Return the slot of every key of an Arrow column in a table of this size, from the column's buffers."""
    if partitioner == "kafka":
        return kafka_hashes(offsets, data) % np.int32(slots)
    return logical_partitions(offsets, data)


# Keys hashed together: the working arrays of one block stay in the second-level cache.
_BLOCK_KEYS: Final = 16_384
_UINT16_MAX: Final = 0xFFFF

Words: TypeAlias = NDArray[np.uint32]
#: Returns the hashes of keys at `starts`, of ascending `lengths`, in `data`.
HashBlock: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]], Words]


class TextColumn(Protocol):
    """What a column of Arrow's strings or bytes has; this package knows Arrow's memory, and not its library."""

    @property
    def offset(self) -> int: ...
    def __len__(self) -> int: ...
    def buffers(self) -> list[Any]: ...


def hash_column(
    offsets: NDArray[np.int32] | NDArray[np.int64], data: NDArray[np.uint8], hash_block: HashBlock
) -> NDArray[np.int32]:
    """Return the hash of every value of an Arrow column, block by block.

    `offsets` (one more than there are values; need not start at 0) and `data` are the buffers of a valid Arrow array
    of strings or bytes. Time grows with the bytes hashed and with the length of the longest key, so the caller must
    keep keys under `limits.KEY_BYTES_MAX`.
    """
    assert offsets.ndim == 1 and data.ndim == 1 and data.dtype == np.uint8
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    order = _by_length(lengths)
    hashes = np.empty(starts.size, dtype=np.uint32)
    for low in range(0, starts.size, _BLOCK_KEYS):
        block = order[low : low + _BLOCK_KEYS] if order is not None else slice(low, low + _BLOCK_KEYS)
        hashes[block] = hash_block(starts[block], lengths[block], data)
    return hashes.view(np.int32)


def column_buffers(column: TextColumn) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return the offsets and the data of an Arrow column, as `hash_column` takes them; a null has the empty value."""
    _, offsets, data = column.buffers()
    # A foreign buffer may be longer than its column, by any number of bytes.
    ends = np.frombuffer(offsets, dtype=np.int32, count=column.offset + len(column) + 1)[column.offset :]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.empty(0, dtype=np.uint8)
    return ends, raw


def _by_length(lengths: NDArray[np.int64]) -> NDArray[np.intp] | None:
    """Return the order in which lengths ascend; None when the keys are in such an order already."""
    if lengths.size < 2 or not (lengths[1:] < lengths[:-1]).any():
        return None
    # numpy sorts 16-bit integers by radix, several times as fast as wider ones.
    narrow = lengths.astype(np.uint16) if lengths.max() <= _UINT16_MAX else lengths
    return np.argsort(narrow, kind="stable")


def words_of(data: NDArray[np.uint8]) -> Words:
    """Return a view of `data` that holds, for each byte, the little-endian word that starts there."""
    size = max(0, data.size - 3)
    return np.ndarray((size,), dtype="<u4", buffer=np.ascontiguousarray(data) if size else b"", strides=(1,))


# Spark's `Murmur3_x86_32.hashUnsafeBytes`, seed 42: words as in Austin Appleby's Murmur3, the tail in Spark's own way.

# Spark's seed for the first (here the only) column of `hash(...)`.
_SPARK_SEED: Final = 42
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_ADD: Final = 0xE6546B64
_MASK: Final = 0xFFFF_FFFF


def hash_string(key: str) -> int:
    """Return the signed 32-bit value of Spark SQL's `hash(key)`."""
    raw = key.encode()
    tail = len(raw) & ~3
    state = _SPARK_SEED
    for at in range(0, tail, 4):
        state = _mix(state, int.from_bytes(raw[at : at + 4], "little"))
    for byte in raw[tail:]:
        state = _mix(state, byte if byte < 0x80 else byte | 0xFFFF_FF00)
    state = _avalanche(state ^ len(raw))
    return state - (1 << 32) if state >> 31 else state


def _mix(state: int, word: int) -> int:
    word = word * _C1 & _MASK
    word = (word << 15 | word >> 17) * _C2 & _MASK
    state ^= word
    return ((state << 13 | state >> 19) * 5 + _ADD) & _MASK


def _avalanche(state: int) -> int:
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def hash_strings(offsets: NDArray[np.int32] | NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return Spark SQL's `hash` of every string of an Arrow column, from its buffers; see `hash_column`."""
    return hash_column(offsets, data, _spark_block)


def _spark_block(starts: NDArray[np.int64], lengths: NDArray[np.int64], data: NDArray[np.uint8]) -> Words:
    """Hash keys whose lengths ascend: the keys that have a further word are always at the end of the block."""
    states = np.full(starts.size, _SPARK_SEED, dtype=np.uint32)
    counts = lengths >> 2
    words = words_of(data)
    for column in range(int(counts[-1])):
        first = int(np.searchsorted(counts, column, side="right"))
        _spark_words(states[first:], words[starts[first:] + 4 * column])
    _spark_tails(states, starts + 4 * counts, lengths & 3, data)
    states ^= lengths.astype(np.uint32)
    _avalanche_words(states)
    return states


def _spark_tails(states: Words, tails: NDArray[np.int64], counts: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
    """Mix the 0 to 3 bytes left over at `tails`, each as a sign-extended word."""
    signed = data.view(np.int8)
    for column in range(int(counts.max())):
        rows = np.flatnonzero(counts > column)
        part = states[rows]
        _spark_words(part, signed[tails[rows] + column].astype(np.int32).view(np.uint32))
        states[rows] = part


def _spark_words(states: Words, words: Words) -> None:
    """Do one round of `_mix` in place; `words` is used as scratch space."""
    words *= np.uint32(_C1)
    _rotate(words, 15)
    words *= np.uint32(_C2)
    states ^= words
    _rotate(states, 13)
    states *= np.uint32(5)
    states += np.uint32(_ADD)


def _rotate(words: Words, bits: int) -> None:
    low = words >> np.uint32(32 - bits)
    words <<= np.uint32(bits)
    words |= low


def _avalanche_words(states: Words) -> None:
    states ^= states >> np.uint32(16)
    states *= np.uint32(0x85EBCA6B)
    states ^= states >> np.uint32(13)
    states *= np.uint32(0xC2B2AE35)
    states ^= states >> np.uint32(16)


# Kafka's Murmur2, seed 0x9747b28c; the length is in the first state.
# The seed in `org.apache.kafka.common.utils.Utils.murmur2`.
_KAFKA_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995


def hash_bytes(key: bytes) -> int:
    """Return the signed 32-bit value of Kafka's `Utils.murmur2(key)`."""
    tail = len(key) & ~3
    state = _KAFKA_SEED ^ len(key)
    for at in range(0, tail, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        state = (state * _M & _MASK) ^ ((word ^ word >> 24) * _M & _MASK)
    if tail < len(key):
        state = (state ^ int.from_bytes(key[tail:], "little")) * _M & _MASK
    state = (state ^ state >> 13) * _M & _MASK
    state ^= state >> 15
    return state - (1 << 32) if state >> 31 else state


def hash_pieces(offsets: NDArray[np.int32] | NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return Kafka's `Utils.murmur2` of every value of an Arrow column, from its buffers; see `hash_column`."""
    return hash_column(offsets, data, _kafka_block)


def _kafka_block(starts: NDArray[np.int64], lengths: NDArray[np.int64], data: NDArray[np.uint8]) -> Words:
    states = lengths.astype(np.uint32) ^ np.uint32(_KAFKA_SEED)
    counts = lengths >> 2
    words = words_of(data)
    for column in range(int(counts[-1])):
        first = int(np.searchsorted(counts, column, side="right"))
        _kafka_words(states[first:], words[starts[first:] + 4 * column])
    _kafka_tails(states, starts + 4 * counts, lengths & 3, data)
    states ^= states >> np.uint32(13)
    states *= np.uint32(_M)
    states ^= states >> np.uint32(15)
    return states


def _kafka_words(states: Words, words: Words) -> None:
    """Mix one word into each state, in place; `words` is used as scratch space."""
    words *= np.uint32(_M)
    words ^= words >> np.uint32(24)
    words *= np.uint32(_M)
    states *= np.uint32(_M)
    states ^= words


def _kafka_tails(states: Words, tails: NDArray[np.int64], counts: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
    """Mix the 0 to 3 bytes left over at `tails`, together for each key."""
    rows = np.flatnonzero(counts)
    if not rows.size:
        return
    tails, counts = tails[rows], counts[rows]
    words = data[tails].astype(np.uint32)
    for column in (1, 2):
        more = np.flatnonzero(counts > column)
        words[more] |= data[tails[more] + column].astype(np.uint32) << np.uint32(8 * column)
    states[rows] = (states[rows] ^ words) * np.uint32(_M)
