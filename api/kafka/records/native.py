"""Record batches to columns and back by compiled functions (`decode.c`, `encode.c`), where they could be compiled."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deltamq.api.kafka.records.batch import BatchHeader
from deltamq.api.kafka.records.columns import Records

DECODER_SOURCE: Final = Path(__file__).with_name("decode.c")
ENCODER_SOURCE: Final = Path(__file__).with_name("encode.c")
#: Bytes from which on a function releases the interpreter's lock: with fewer, getting it back would take longer.
_LARGE_BYTES: Final = 128 * 1024
_INT32_MAX: Final = 2**31 - 1
#: As `encode.c` has it: the most bytes of a record besides its key and value.
_RECORD_BYTES_MAX: Final = 48


class NativeDecoder:
    """The compiled function."""

    def __init__(self, path: Path) -> None:
        """Load the library; raises `OSError` if this machine cannot."""
        self._holding_lock = _decoding(ctypes.PyDLL(str(path)))
        self._without_lock = _decoding(ctypes.CDLL(str(path)))

    def decode(self, batches: Sequence[BatchHeader]) -> Records | None:
        """Return the records of batches without compression; None if some have headers or may be corrupt."""
        raw = b"".join([batch.records for batch in batches])
        size, rows = len(raw), sum([batch.count for batch in batches])
        if size > _INT32_MAX:
            return None
        heads = array("q", [n for batch in batches for n in (batch.count, len(batch.records), batch.first_time_ms)])
        # where the columns of a fixed width lie in one piece of memory, as `decode.c` describes it
        ends, bits = 4 * (rows + 1), rows // 8 + 1
        key_ends = 8 * rows + 16
        key_valid = key_ends + 2 * ends
        columns = np.empty(key_valid + 2 * bits, np.uint8)
        keys, values = np.empty(size, np.uint8), np.empty(size, np.uint8)
        decode = self._without_lock if size > _LARGE_BYTES else self._holding_lock
        addresses = _address(columns), _address(keys), _address(values)
        if decode(raw, len(batches), heads.buffer_info()[0], rows, *addresses):
            return None
        numbers = columns[:key_ends].view(np.int64)
        fixed = pa.py_buffer(columns)
        key = value = None
        if numbers[rows] < rows:
            used = int(columns[key_ends + ends - 4 : key_ends + ends].view(np.int32)[0])
            # copied: keys use little of their buffer, which would live as long as they do
            key = [fixed.slice(key_valid, bits), fixed.slice(key_ends, ends), pa.py_buffer(keys[:used].tobytes())]
        if numbers[rows + 1] < rows:
            value = [fixed.slice(key_valid + bits, bits), fixed.slice(key_ends + ends, ends), pa.py_buffer(values)]
        return Records(
            key=_column(rows, key, int(numbers[rows])),
            value=_column(rows, value, int(numbers[rows + 1])),
            headers=None,
            time_ms=numbers[:rows],
        )


class NativeEncoder:
    """The compiled function."""

    def __init__(self, path: Path) -> None:
        """Load the library; raises `OSError` if this machine cannot."""
        self._holding_lock = _encoding(ctypes.PyDLL(str(path)))
        self._without_lock = _encoding(ctypes.CDLL(str(path)))

    def encode(self, records: Records) -> bytes | None:
        """Return records without headers as they stand in a batch; None if a column's ends contradict its bytes."""
        assert records.headers is None, "the compiled function knows no headers"
        rows = records.count
        key, key_bytes = _numbers_of(records.key)
        value, value_bytes = _numbers_of(records.value)
        room = rows * _RECORD_BYTES_MAX + key_bytes + value_bytes
        times = np.ascontiguousarray(records.time_ms, np.int64)
        out = np.empty(room, np.uint8)
        encode = self._without_lock if room > _LARGE_BYTES else self._holding_lock
        memory = key.buffer_info()[0], value.buffer_info()[0]
        size: int = encode(times.__array_interface__["data"][0], *memory, rows, _address(out), room)
        return None if size < 0 else out[:size].tobytes()


def _numbers_of(column: pa.BinaryArray) -> tuple[array[int], int]:
    """Return a column as `encode.c` takes it, and the bytes of its values; the column has to outlive the call."""
    if column.null_count == len(column):
        return array("q", [0] * 7), 0
    valid, ends, data = column.buffers()
    first, last = np.frombuffer(ends, np.int32)[[column.offset, column.offset + len(column)]].tolist()
    bits = (valid.address, valid.size) if column.null_count else (0, 0)
    text = (0, 0) if data is None else (data.address, data.size)
    return array("q", [ends.address, ends.size, *text, *bits, column.offset]), max(0, last - first)


def _encoding(library: ctypes.CDLL) -> Any:
    function = library.deltamq_encode
    memory, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [memory, memory, memory, number, memory, number]
    function.restype = number
    return function


def _decoding(library: ctypes.CDLL) -> Any:
    function = library.deltamq_decode
    memory = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_int, memory, ctypes.c_size_t, memory, memory, memory]
    function.restype = ctypes.c_int
    return function


def _address(memory: NDArray[np.uint8]) -> int:
    address: int = memory.__array_interface__["data"][0]
    return address


def _column(rows: int, buffers: list[pa.Buffer] | None, nulls: int) -> pa.BinaryArray:
    """Return a column; `buffers` are its bits, ends and bytes, or None if all values are null."""
    if buffers is None:
        return pa.nulls(rows, pa.binary())
    return pa.Array.from_buffers(pa.binary(), rows, buffers if nulls else [None, *buffers[1:]], null_count=nulls)
