"""The aircraft that the group `repairs` cannot deal with: about 1 in 1,000, by a checksum of the tail number."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["failing", "fails"]

ONE_IN: Final = 1_000
REMAINDER: Final = 13


def fails(tail: str | None) -> bool:
    """Whether the repair of this aircraft fails, at every attempt; what has no tail number is never repaired."""
    return tail is not None and zlib.crc32(tail.encode()) % ONE_IN == REMAINDER


def failing(tails: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return for each row whether its aircraft is one of these; each tail is looked at once."""
    coded = tails.combine_chunks().dictionary_encode()
    # one more, which the index -1 of rows without a tail number finds
    known = _verdicts([*coded.dictionary.to_pylist(), None])
    codes: NDArray[np.int32] = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return known[codes]


def _verdicts(tails: Iterable[str | None]) -> NDArray[np.bool_]:
    return np.array([fails(tail) for tail in tails], dtype=np.bool_)
