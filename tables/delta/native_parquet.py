"""Few rows as a parquet file by a compiled function (`small_parquet.c`), where it could be compiled."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from deltamq.mq.limits import KIB, MIB
from deltamq.tables.compiled import library_path

_SOURCE: Final = Path(__file__).with_name("small_parquet.c")
#: Bytes of the memory that each thread writes files to: of the largest file, and its footer.
_ROOM: Final = 3 * MIB + 256 * KIB
#: Rows from which on writing releases the interpreter's lock: with fewer, getting it back would take longer.
_MANY_ROWS: Final = 256
#: Numbers in `struct leaf`, and the first one about what the column holds.
_LEAF_NUMBERS: Final = 16
_COLUMN_AT: Final = 6
#: What a column holds, as `enum kind` numbers it; nulls are 0.
_COLUMN: Final = 1
_GROWING: Final = 2
_REPEATED: Final = 3
_NUMBERED: Final = 4


class NativeLeaf(NamedTuple):
    """A leaf column, by the number of rows: its page if all are null, and the start of its chunk in the footer."""

    column: int  #: position of its top-level column
    null_page: bytes
    chunk_start: bytes
    width: int  #: bytes of a value; 0 for texts
    levels: int  #: the definition level of a value: structs around it, none of them null, and its own


class WholePage(NamedTuple):
    """A page with its header, and the start of its chunk in the footer."""

    page: bytes
    chunk_start: bytes


class WrittenFile(NamedTuple):
    """A file, and the checksums of its pages and of its footer."""

    data: bytes
    pages_crc: int
    footer_crc: int
    #: The least and the greatest value of the column that was asked for.
    bounds: tuple[int, int] = (0, 0)


class NativeShape:
    """What is the same in all files with the same number of rows, as the function takes it."""

    __slots__ = ("_kept", "columns", "leaves", "page_end", "schema")

    def __init__(self, leaves: Sequence[NativeLeaf], page_end: bytes, schema: pa.Buffer) -> None:
        pieces = [piece for leaf in leaves for piece in (leaf.null_page, leaf.chunk_start)]
        #: All bytes whose addresses are noted, in one piece.
        self._kept = pa.py_buffer(b"".join((*pieces, page_end))), schema
        at = self._kept[0].address
        self.leaves = array("q")
        for leaf in leaves:
            chunk_start_at = at + len(leaf.null_page)
            pages = at, len(leaf.null_page), chunk_start_at, len(leaf.chunk_start)
            self.leaves.extend((*pages, leaf.width, leaf.levels, *[0] * (_LEAF_NUMBERS - _COLUMN_AT)))
            at = chunk_start_at + len(leaf.chunk_start)
        self.page_end = at, len(page_end)
        self.schema = schema.address, schema.size
        #: The column of each leaf.
        self.columns = tuple(leaf.column for leaf in leaves)


class Leaves:
    """What the leaf columns of one file hold; columns that are not set hold nulls."""

    __slots__ = ("_kept", "numbers")

    def __init__(self, shape: NativeShape) -> None:
        self.numbers = array("q", shape.leaves)
        #: Keeps the memory behind the addresses alive.
        self._kept: list[object] = []

    def column(self, leaf: int, column: pa.Array) -> None:
        """Set an Arrow column that is not all null."""
        at, numbers = leaf * _LEAF_NUMBERS + _COLUMN_AT, self.numbers
        valid, values, *text = buffers = column.buffers()
        self._kept.append(buffers)
        numbers[at] = _COLUMN
        numbers[at + 1], numbers[at + 2] = values.address, values.size
        if text and text[0] is not None:
            numbers[at + 3], numbers[at + 4] = text[0].address, text[0].size
        if column.null_count:
            numbers[at + 5], numbers[at + 6] = valid.address, valid.size
        numbers[at + 9] = column.offset

    def page(self, leaf: int, page: bytes, chunk_start: bytes) -> None:
        """Set a page that is copied as it is, in place of the one of nulls."""
        at, numbers = leaf * _LEAF_NUMBERS, self.numbers
        for offset, data in ((0, page), (2, chunk_start)):
            kept = pa.py_buffer(data)
            self._kept.append(kept)
            numbers[at + offset], numbers[at + offset + 1] = kept.address, len(data)

    def growing(self, leaf: int, first: int) -> None:
        """Set numbers that grow by one, from `first` on."""
        at = leaf * _LEAF_NUMBERS + _COLUMN_AT
        self.numbers[at] = _GROWING
        self.numbers[at + 9] = first

    def repeated(self, leaf: int, values: array[int], counts: array[int]) -> None:
        """Set numbers of 64 bits or less, each repeated as its count says; both arrays have 64 bits."""
        at, numbers = leaf * _LEAF_NUMBERS + _COLUMN_AT, self.numbers
        self._kept += (values, counts)
        numbers[at] = _REPEATED
        numbers[at + 1], numbers[at + 2] = values.buffer_info()[0], 8 * len(values)
        numbers[at + 7], numbers[at + 8] = counts.buffer_info()[0], 8 * len(counts)

    def repeated_texts(self, leaf: int, ends: array[int], text: bytes, counts: array[int]) -> None:
        """Set texts, each repeated as its count says; `ends` are 0 and where each text ends, of 32 bits."""
        at, numbers = leaf * _LEAF_NUMBERS + _COLUMN_AT, self.numbers
        kept = pa.py_buffer(text)
        self._kept += (ends, kept, counts)
        numbers[at] = _REPEATED
        numbers[at + 1], numbers[at + 2] = ends.buffer_info()[0], 4 * len(ends)
        numbers[at + 3], numbers[at + 4] = kept.address, len(text)
        numbers[at + 7], numbers[at + 8] = counts.buffer_info()[0], 8 * len(counts)

    def numbered(self, leaf: int, prefix: bytes) -> None:
        """Set texts that begin with `prefix` (16 bytes) and end with the row's number in eight hexadecimal digits."""
        at, numbers = leaf * _LEAF_NUMBERS + _COLUMN_AT, self.numbers
        kept = pa.py_buffer(prefix)
        self._kept.append(kept)
        numbers[at] = _NUMBERED
        numbers[at + 3], numbers[at + 4] = kept.address, len(prefix)


class NativeWriter:
    """The compiled function. Safe for threads."""

    def __init__(self, path: Path) -> None:
        """Load the library; raises `OSError` if this machine cannot."""
        self._holding_lock = _function(ctypes.PyDLL(str(path)))
        self._without_lock = _function(ctypes.CDLL(str(path)))
        self._memory = threading.local()

    def write(
        self, shape: NativeShape, leaves: Leaves, rows: int, tail: bytes, pages_end_max: int, *, timed: int = -1
    ) -> WrittenFile | None:
        """Return the file; None if its pages would end behind `pages_end_max`, or a column's buffers are too short.

        `tail` is the footer's end. The bounds of leaf `timed`, which has 64 bits and no nulls, are returned unless it
        is negative.
        """
        kept_tail = pa.py_buffer(tail)
        file = array("q", (*shape.page_end, *shape.schema, kept_tail.address, kept_tail.size, pages_end_max))
        results = array("q", (0, 0, 0, 0, 0))
        out = self._room()
        write = self._without_lock if rows >= _MANY_ROWS else self._holding_lock
        size: int = write(
            file.buffer_info()[0],
            leaves.numbers.buffer_info()[0],
            len(shape.columns),
            rows,
            timed,
            out,
            out + _ROOM,
            _ROOM,
            results.buffer_info()[0],
        )
        if size < 0:
            return None
        return WrittenFile(ctypes.string_at(out, size), results[1], results[2], (results[3], results[4]))

    def _room(self) -> int:
        """Return the address of this thread's memory: twice `_ROOM`."""
        try:
            address: int = self._memory.address
        except AttributeError:
            self._memory.kept = kept = pa.allocate_buffer(2 * _ROOM)
            self._memory.address = address = kept.address
        return address


@cache
def native_writer() -> NativeWriter | None:
    """Return the compiled function; None where there is none, or none that this machine can load."""
    try:
        return NativeWriter(library_path(_SOURCE))
    except OSError:
        return None


def _function(library: ctypes.CDLL) -> Any:
    function = library.deltamq_small_parquet
    memory, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [memory, memory, number, number, number, memory, memory, number, memory]
    function.restype = number
    return function
