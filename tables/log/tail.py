"""The newest rows of a partition in memory, as Arrow: most readers ask for them, and roll-ups merge them.

Columns that an append fills are made when they are read, for several small appends together (`Stamped`).

Each tail is bounded, and so are all tails of a process together: the one that was idle longest gives way.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from deltamq.tables.delta.stamped import Stamped, table_of
from deltamq.tables.log.fetch import weight_of, weight_of_batch
from deltamq.tables.schema import MESSAGE_SCHEMA
from deltamq.tables.typed_row import conformed_rows

#: Memory of a table besides its buffers: thirteen columns of objects. Measured with tracemalloc, rounded up.
_TABLE_BYTES: Final = 6 * 1024


class _Piece(msgspec.Struct, frozen=True):
    start: int
    end: int
    rows: pa.Table | Stamped
    bytes: int

    def table(self) -> pa.Table:
        return self.rows.table() if isinstance(self.rows, Stamped) else self.rows

    def weight(self, start: int) -> int:
        """Return the approximate size of the rows from offset `start` on in an answer."""
        skipped = max(start - self.start, 0)
        if isinstance(self.rows, Stamped):
            return weight_of_batch(self.rows.rows.slice(skipped))
        return weight_of(self.rows.slice(skipped))


class TailBudget:
    """The memory bound of all tails of one process. Safe for threads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        #: Bytes of each tail that holds any; the tail that was idle longest comes first.
        self._held: OrderedDict[Tail, int] = OrderedDict()

    @property
    def bytes(self) -> int:
        """The estimated bytes of all tails."""
        return self._bytes

    def grew(self, tail: Tail) -> None:
        """Note that `tail` has grown, and make others give way to it. The caller must not hold a tail's lock."""
        with self._lock:
            self._note(tail)
            if tail in self._held:
                self._held.move_to_end(tail)
            victims = self._victims(tail)
        for victim, excess in victims:
            victim.give_way(excess)

    def shrank(self, tail: Tail) -> None:
        """Note that `tail` holds less."""
        with self._lock:
            self._note(tail)

    def _note(self, tail: Tail) -> None:
        # Read under the lock, so that if two threads changed the tail, the later call notes its present size.
        nbytes = tail.bytes
        self._bytes += nbytes - self._held.get(tail, 0)
        assert self._bytes >= 0, "a tail gives back more than it took"
        if nbytes:
            self._held[tail] = nbytes
        else:
            self._held.pop(tail, None)

    def _victims(self, but: Tail) -> list[tuple[Tail, int]]:
        """Return the tails that have to give way, each with the number of bytes."""
        excess = self._bytes - self._bytes_max
        victims = []
        for tail, nbytes in self._held.items():
            if excess <= 0:
                break
            if tail is not but:
                victims.append((tail, min(excess, nbytes)))
                excess -= nbytes
        return victims


class Tail:
    """Adjacent pieces of rows up to the end of the log, bounded by bytes.

    Writers hold the partition's lock; the tail's own lock is for other partitions, to which it may have to give way.
    Readers need no lock: they take `pieces` once, a tuple that is replaced, never changed.
    """

    def __init__(self, bytes_max: int, budget: TailBudget) -> None:
        self._bytes_max = bytes_max
        self._budget = budget
        self._bytes = 0
        self._lock = threading.Lock()
        self.pieces: tuple[_Piece, ...] = ()

    @property
    def bytes(self) -> int:
        """The estimated number of bytes held."""
        return self._bytes

    def clear(self) -> None:
        """Drop all pieces: the log continued without this tail."""
        with self._lock:
            self._drop(len(self.pieces))
        self._budget.shrank(self)

    def add(self, rows: Stamped, nbytes: int) -> None:
        """Add the rows of a commit, which take `nbytes`; if there is a gap before them, drop all earlier pieces."""
        start = rows.start
        with self._lock:
            if self.pieces and self.pieces[-1].end != start:
                self._drop(len(self.pieces))
            piece = _Piece(start, start + rows.count, rows, nbytes + _TABLE_BYTES)
            self._bytes += piece.bytes
            self.pieces = (*self.pieces, piece)
            self._shrink(self._bytes_max)
        self._budget.grew(self)

    def drop_below(self, offset: int) -> None:
        """Drop pieces that end at or below `offset`: their rows were removed."""
        with self._lock:
            self._drop(bisect_right(self.pieces, offset, key=lambda p: p.end))
        self._budget.shrank(self)

    def merge(self, rows: pa.Table) -> None:
        """Replace the pieces that `rows` covers by this one piece, if the tail holds all of them."""
        assert rows.num_rows > 0, "no piece is empty"
        start = int(rows.column("offset")[0].as_py())
        end = start + rows.num_rows
        with self._lock:
            low = bisect_left(self.pieces, start, key=lambda p: p.start)
            high = bisect_left(self.pieces, end, key=lambda p: p.start)
            inside = self.pieces[low:high]
            if not inside or inside[0].start != start or inside[-1].end != end:
                return
            merged = _Piece(start, end, rows, rows.nbytes + _TABLE_BYTES)
            self._bytes += merged.bytes - sum(p.bytes for p in inside)
            self.pieces = (*self.pieces[:low], merged, *self.pieces[high:])
            self._shrink(self._bytes_max)
        self._budget.grew(self)

    def give_way(self, nbytes: int) -> None:
        """Drop the oldest pieces, `nbytes` or more: another partition needs the memory more."""
        with self._lock:
            wanted = max(0, self._bytes - nbytes)
            self._shrink(wanted)
            if self._bytes > wanted:
                self._drop(len(self.pieces))
        self._budget.shrank(self)

    def _shrink(self, bytes_max: int) -> None:
        """Drop the oldest pieces beyond the bound; the newest stays: waiting readers are about to ask for it."""
        drop, held = 0, self._bytes
        while drop < len(self.pieces) - 1 and held > bytes_max:
            held -= self.pieces[drop].bytes
            drop += 1
        self._drop(drop)

    def _drop(self, count: int) -> None:
        if count:
            self._bytes -= sum(p.bytes for p in self.pieces[:count])
            assert self._bytes >= 0, "a tail drops more than it holds"
            self.pieces = self.pieces[count:]

    def unmade(self, offset: int, rows_max: int) -> int:
        """Return how many rows have columns that are made by a read of at most `rows_max` rows from `offset` on."""
        pieces, stop, unmade = self.pieces, offset + rows_max, 0
        for piece in pieces[bisect_right(pieces, offset, key=lambda p: p.end) :]:
            if piece.start >= stop:
                break
            if isinstance(piece.rows, Stamped) and not piece.rows.is_made:
                unmade += piece.rows.count
        return unmade

    def rows(
        self, start: int, stop: int, bytes_max: int | None = None, wanted: pa.Schema = MESSAGE_SCHEMA
    ) -> pa.Table | None:
        """Return the rows `[start, stop)` with the columns of `wanted`; None if the tail does not hold them all.

        With `bytes_max`, pieces after the one that exceeds it are left out.
        """
        pieces = self.pieces
        if not pieces or start < pieces[0].start or stop > pieces[-1].end:
            return None
        at = bisect_right(pieces, start, key=lambda p: p.start) - 1
        if wanted is MESSAGE_SCHEMA and stop <= pieces[at].end:  # most pops
            return conformed_rows(pieces[at].table(), wanted).slice(start - pieces[at].start, stop - start)
        taken: list[_Piece] = []
        weight = 0
        while at < len(pieces) and pieces[at].start < stop:
            if bytes_max is not None and taken:
                weight += taken[-1].weight(start)
                if weight > bytes_max:
                    break
            taken.append(pieces[at])
            at += 1
        tables = _tables(taken, start, stop, wanted)
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def _tables(pieces: Sequence[_Piece], start: int, stop: int, wanted: pa.Schema) -> list[pa.Table]:
    """Return the rows `[start, stop)` of pieces; columns that were not made are made for adjacent ones together."""
    tables: list[pa.Table] = []
    unmade: list[Stamped] = []
    for piece in pieces:
        low, high = max(start - piece.start, 0), min(stop, piece.end) - piece.start
        is_whole = high - low == piece.end - piece.start
        if is_whole and isinstance(piece.rows, Stamped) and not piece.rows.is_made:
            unmade.append(piece.rows)
            continue
        tables += _made(unmade, wanted)
        unmade = []
        tables.append(conformed_rows(piece.table(), wanted).slice(low, high - low))
    return tables + _made(unmade, wanted)


def _made(unmade: Sequence[Stamped], wanted: pa.Schema) -> list[pa.Table]:
    """Return the rows of adjacent appends as a table; a single append keeps its table if that has all columns."""
    if not unmade:
        return []
    is_kept = len(unmade) == 1 and len(wanted) >= len(MESSAGE_SCHEMA)
    return [conformed_rows(unmade[0].table() if is_kept else table_of(unmade, wanted.names), wanted)]
