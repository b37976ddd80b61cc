"""The hash by which Kafka's default partitioner places a key: Murmur2, seed 0x9747b28c (SPEC KAFKA-12).

Whole 4-byte little-endian words are mixed one by one; the 0 to 3 bytes left over are mixed together, at the end
(Spark's Murmur3 mixes each of them alone, see `mq.murmur3`):

    bytes     6F 72 64 65   72 73 2D 31   C3 A9
    mixed     0x6564726F    0x312D7372    0xA9C3     then the final avalanche; the length is in the first state

As in `mq.murmur3` there are two implementations, and tests hold them equal: one key in plain Python, and all keys of an
Arrow column at once in numpy.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from deltamq.mq.hashed_columns import Words, hash_column, words_of

# The seed in `org.apache.kafka.common.utils.Utils.murmur2`.
_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFF_FFFF


def hash_bytes(key: bytes) -> int:
    """Return the signed 32-bit value of Kafka's `Utils.murmur2(key)`."""
    tail = len(key) & ~3
    state = _SEED ^ len(key)
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
    return hash_column(offsets, data, _hash_block)


def _hash_block(starts: NDArray[np.int64], lengths: NDArray[np.int64], data: NDArray[np.uint8]) -> Words:
    """Hash keys whose lengths ascend: the keys that have a further word are always at the end of the block."""
    states = lengths.astype(np.uint32) ^ np.uint32(_SEED)
    counts = lengths >> 2
    words = words_of(data)
    for column in range(int(counts[-1])):
        first = int(np.searchsorted(counts, column, side="right"))
        _mix_words(states[first:], words[starts[first:] + 4 * column])
    _mix_tails(states, starts + 4 * counts, lengths & 3, data)
    states ^= states >> np.uint32(13)
    states *= np.uint32(_M)
    states ^= states >> np.uint32(15)
    return states


def _mix_words(states: Words, words: Words) -> None:
    """Mix one word into each state, in place; `words` is used as scratch space."""
    words *= np.uint32(_M)
    words ^= words >> np.uint32(24)
    words *= np.uint32(_M)
    states *= np.uint32(_M)
    states ^= words


def _mix_tails(states: Words, tails: NDArray[np.int64], counts: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
    """Mix the 0 to 3 bytes left over at `tails`, those of one key together."""
    rows = np.flatnonzero(counts)
    if not rows.size:
        return
    tails, counts = tails[rows], counts[rows]
    words = data[tails].astype(np.uint32)
    for column in (1, 2):
        more = np.flatnonzero(counts > column)
        words[more] |= data[tails[more] + column].astype(np.uint32) << np.uint32(8 * column)
    states[rows] = (states[rows] ^ words) * np.uint32(_M)
