"""Few rows as a parquet file by a compiled function (`small_parquet.c`), where `make setup` could compile it."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tables.compiled import library_path

__all__ = ["NativeLeaf", "NativeShape", "NativeWriter", "WrittenFile", "native_writer"]

_SOURCE: Final = Path(__file__).with_name("small_parquet.c")
#: Bytes of the memory that each thread writes files to.
_ROOM: Final = 512 * 1024
#: Rows from which on writing gives the interpreter's lock away: with fewer, getting it back would take longer.
_MANY_ROWS: Final = 256
#: Numbers of `struct leaf`, and where those of the column itself begin.
_LEAF_NUMBERS: Final = 13
_COLUMN_AT: Final = 6


class NativeLeaf(NamedTuple):
    """A leaf column, by the number of rows: its page if all are null, and the start of its chunk in the footer."""

    column: int  #: position of its top-level column
    null_page: bytes
    chunk_start: bytes
    width: int  #: bytes of a value; 0 for texts
    has_levels: bool


class WrittenFile(NamedTuple):
    """A file, and the checksums of its pages and of its footer."""

    data: bytes
    pages_crc: int
    footer_crc: int


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
            self.leaves.extend((*pages, leaf.width, leaf.has_levels, *[0] * (_LEAF_NUMBERS - _COLUMN_AT)))
            at = chunk_start_at + len(leaf.chunk_start)
        self.page_end = at, len(page_end)
        self.schema = schema.address, schema.size
        #: The column of each leaf.
        self.columns = tuple(leaf.column for leaf in leaves)


class NativeWriter:
    """The compiled function. Safe for threads."""

    def __init__(self, path: Path) -> None:
        """Load the library; raises `OSError` if this machine cannot."""
        self._holding_lock = _function(ctypes.PyDLL(str(path)))
        self._without_lock = _function(ctypes.CDLL(str(path)))
        self._memory = threading.local()

    def write(
        self, shape: NativeShape, columns: Sequence[pa.Array], rows: int, tail: bytes, pages_end_max: int
    ) -> WrittenFile | None:
        """Return the file; None if its pages would end behind `pages_end_max`, or a column names what it has not.

        `columns` are the schema's, in one chunk each; `tail` is the footer's end.
        """
        leaves = array("q", shape.leaves)
        for leaf, number in enumerate(shape.columns):
            column = columns[number]
            if column.null_count == rows:
                continue
            at = leaf * _LEAF_NUMBERS + _COLUMN_AT
            valid, values, *text = column.buffers()
            leaves[at] = values.address
            leaves[at + 1] = values.size
            if text and text[0] is not None:
                leaves[at + 2] = text[0].address
                leaves[at + 3] = text[0].size
            if column.null_count:
                leaves[at + 4] = valid.address
                leaves[at + 5] = valid.size
            leaves[at + 6] = column.offset
        kept_tail = pa.py_buffer(tail)
        file = array("q", (*shape.page_end, *shape.schema, kept_tail.address, kept_tail.size, pages_end_max))
        found = array("q", (0, 0, 0))
        out = self._room()
        write = self._without_lock if rows >= _MANY_ROWS else self._holding_lock
        size: int = write(
            file.buffer_info()[0],
            leaves.buffer_info()[0],
            len(shape.columns),
            rows,
            out,
            out + _ROOM,
            _ROOM,
            found.buffer_info()[0],
        )
        return None if size < 0 else WrittenFile(ctypes.string_at(out, size), found[1], found[2])

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
    function.argtypes = [memory, memory, number, number, memory, memory, number, memory]
    function.restype = number
    return function
