"""The newest rows of a partition in memory, as Arrow: what most readers ask for, and what roll-ups merge."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

__all__ = ["Tail"]

#: What a table costs beside its buffers: thirteen columns of objects. Measured with tracemalloc, rounded up.
_TABLE_BYTES: Final = 6 * 1024


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    rows: pa.Table
    bytes: int

    @property
    def end(self) -> int:
        return self.start + int(self.rows.num_rows)


class Tail:
    """Adjacent pieces of rows up to the end of the log, bounded by bytes.

    Writers hold the partition's lock. Readers need none: they take `pieces` once, a tuple that is replaced, never
    changed.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self.pieces: tuple[_Piece, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes held, estimated."""
        return self._bytes

    def clear(self) -> None:
        """Forget all: the log went on without us."""
        self.pieces = ()
        self._bytes = 0

    def add(self, start: int, rows: pa.Table, nbytes: int) -> None:
        """Add the rows of a commit, which hold `nbytes`; a gap before them makes the tail start anew."""
        if self.pieces and self.pieces[-1].end != start:
            self.clear()
        piece = _Piece(start, rows, nbytes + _TABLE_BYTES)
        self._bytes += piece.bytes
        self.pieces = (*self.pieces, piece)
        self._shrink()

    def merge(self, start: int, rows: pa.Table) -> None:
        """Replace the pieces that `rows` covers by this one piece, if they are all here."""
        end = start + rows.num_rows
        low = bisect_left(self.pieces, start, key=lambda p: p.start)
        high = bisect_left(self.pieces, end, key=lambda p: p.start)
        inside = self.pieces[low:high]
        if not inside or inside[0].start != start or inside[-1].end != end:
            return
        merged = _Piece(start, rows, rows.nbytes + _TABLE_BYTES)
        self._bytes += merged.bytes - sum(p.bytes for p in inside)
        self.pieces = (*self.pieces[:low], merged, *self.pieces[high:])
        self._shrink()

    def _shrink(self) -> None:
        """Drop the oldest pieces over the bound; the newest stays: waiting readers are about to ask for it."""
        drop = 0
        while drop < len(self.pieces) - 1 and self._bytes > self._bytes_max:
            self._bytes -= self.pieces[drop].bytes
            drop += 1
        if drop:
            self.pieces = self.pieces[drop:]

    def rows(self, start: int, stop: int) -> pa.Table | None:
        """Rows `[start, stop)`, or None when the tail does not hold them all."""
        pieces = self.pieces
        if not pieces or start < pieces[0].start or stop > pieces[-1].end:
            return None
        at = bisect_right(pieces, start, key=lambda p: p.start) - 1
        found = []
        while at < len(pieces) and pieces[at].start < stop:
            piece = pieces[at]
            low = max(start - piece.start, 0)
            found.append(piece.rows.slice(low, min(stop, piece.end) - piece.start - low))
            at += 1
        return found[0] if len(found) == 1 else pa.concat_tables(found)
