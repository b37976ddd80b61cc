"""Bytes made of other bytes: what a fuzzer does to the files of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

__all__ = ["INPUT_BYTES_MAX", "mutated"]

#: Inputs grow no longer than this: what is wrong with a decoder shows in small inputs, and those are quick.
INPUT_BYTES_MAX: Final = 64 * 1024
#: Values that are often special: ends of ranges of numbers, in the sizes that formats have.
_NUMBERS: Final = tuple(
    value.to_bytes(size, order, signed=value < 0)
    for size in (1, 2, 4, 8)
    for value in (0, 1, -1, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1)), 2 ** (8 * size - 2))
    for order in ("little", "big")
)
#: Pieces of the texts that decoders read.
_TOKENS: Final = tuple(
    b'null|true|-1|1e999|{}|[]|""|0.0|\\u0000|\\ud800|%00|%2e%2e|%ff|\xff\xfe|\xef\xbb\xbf|@|#|..|/|~|(|)|\'|--|NOT |'
    b' LIKE | IN (| ESCAPE |&|=|\n|\r\n|\0|[[[[|{"a":|9999999999999999999999|PAR1|ARROW1'.split(b"|")
)


def mutated(random: Random, pool: Sequence[bytes]) -> bytes:
    """Return an input of the pool with one to eight changes."""
    data = bytearray(random.choice(pool))
    for _ in range(1 << random.randrange(4)):
        random.choice(_CHANGES)(random, data, pool)
    return bytes(data[:INPUT_BYTES_MAX])


def _place(random: Random, data: bytearray) -> int:
    return random.randrange(len(data) + 1)


def _flip(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def _number(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    value = random.choice(_NUMBERS)
    at = _place(random, data) & ~(len(value) - 1)
    data[at : at + len(value)] = value


def _token(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _place(random, data)
    token = random.choice(_TOKENS)
    data[at : at + random.choice((0, len(token)))] = token


def _delete(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _place(random, data)
    del data[at : at + (1 << random.randrange(8))]


def _cut(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[_place(random, data) :]


def _repeat(random: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = _place(random, data)
    piece = data[at : at + (1 << random.randrange(6))]
    data[at:at] = piece * (1 << random.randrange(8))


def _splice(random: Random, data: bytearray, pool: Sequence[bytes]) -> None:
    other = random.choice(pool)
    low = random.randrange(len(other) + 1)
    data[_place(random, data) :] = other[low:]


def _borrow(random: Random, data: bytearray, pool: Sequence[bytes]) -> None:
    other = random.choice(pool)
    low, at = random.randrange(len(other) + 1), _place(random, data)
    piece = other[low : low + (1 << random.randrange(7))]
    data[at : at + len(piece)] = piece


_CHANGES: Final[tuple[Callable[[Random, bytearray, Sequence[bytes]], None], ...]] = (
    _flip,
    _set,
    _number,
    _token,
    _delete,
    _cut,
    _repeat,
    _splice,
    _borrow,
)
