"""Spark SQL's `hash` of a string: Murmur3 with Spark's own treatment of the tail (SPEC ROUTE-4).

Spark hashes the UTF-8 bytes with `Murmur3_x86_32.hashUnsafeBytes`, seed 42. Whole 4-byte little-endian
words are mixed as in Austin Appleby's Murmur3; each of the 0 to 3 bytes left over is then mixed as a whole
word of its own, sign-extended (the reference algorithm mixes them together, without the round's second half):

    bytes     6F 72 64 65   72 73 2D 31   C3      A9
    mixed     0x6564726F    0x312D7372    -61     -87     then the length, then the final avalanche

There are two implementations, and tests hold them equal: one key in plain Python, and all keys of an Arrow string
column at once in numpy.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from deltamq.mq.hashed_columns import Words, hash_column, words_of

# Spark's seed for the first (here the only) column of `hash(...)`.
_SEED: Final = 42
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_ADD: Final = 0xE6546B64
_MASK: Final = 0xFFFF_FFFF


def hash_string(key: str) -> int:
    """Return the signed 32-bit value of Spark SQL's `hash(key)`."""
    raw = key.encode()
    tail = len(raw) & ~3
    state = _SEED
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
    return hash_column(offsets, data, _hash_block)


def _hash_block(starts: NDArray[np.int64], lengths: NDArray[np.int64], data: NDArray[np.uint8]) -> Words:
    """Hash keys whose lengths ascend: the keys that have a further word are always at the end of the block."""
    states = np.full(starts.size, _SEED, dtype=np.uint32)
    counts = lengths >> 2
    words = words_of(data)
    for column in range(int(counts[-1])):
        first = int(np.searchsorted(counts, column, side="right"))
        _mix_words(states[first:], words[starts[first:] + 4 * column])
    _mix_tails(states, starts + 4 * counts, lengths & 3, data)
    states ^= lengths.astype(np.uint32)
    _avalanche_words(states)
    return states


def _mix_tails(states: Words, tails: NDArray[np.int64], counts: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
    """Mix the 0 to 3 bytes left over at `tails`, each as a sign-extended word."""
    signed = data.view(np.int8)
    for column in range(int(counts.max())):
        rows = np.flatnonzero(counts > column)
        part = states[rows]
        _mix_words(part, signed[tails[rows] + column].astype(np.int32).view(np.uint32))
        states[rows] = part


def _mix_words(states: Words, words: Words) -> None:
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
    """Do the final avalanche of `_avalanche` in place."""
    states ^= states >> np.uint32(16)
    states *= np.uint32(0x85EBCA6B)
    states ^= states >> np.uint32(13)
    states *= np.uint32(0xC2B2AE35)
    states ^= states >> np.uint32(16)
