"""The aircraft for which the group `repairs` fails: about 1 in 1,000, by a checksum of the tail number."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ONE_IN: Final = 1_000
REMAINDER: Final = 13


def fails(tail: str | None) -> bool:
    """Return whether the repair of this aircraft fails, at every attempt; without a tail number it never does."""
    return tail is not None and zlib.crc32(tail.encode()) % ONE_IN == REMAINDER


def failing(tails: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return for each row whether the repair of its aircraft fails; each tail is computed once."""
    coded = tails.combine_chunks().dictionary_encode()
    # the additional last item is for rows without a tail number, whose index is -1
    known = _verdicts([*coded.dictionary.to_pylist(), None])
    codes: NDArray[np.int32] = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return known[codes]


def _verdicts(tails: Iterable[str | None]) -> NDArray[np.bool_]:
    return np.array([fails(tail) for tail in tails], dtype=np.bool_)
