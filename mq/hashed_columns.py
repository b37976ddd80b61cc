"""What the hashes of Arrow columns share: keys of about equal length are hashed together, in numpy (SPEC ROUTE-4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
