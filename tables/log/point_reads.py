"""Reads of single messages of a partition: close offsets in one run, unreadable messages reported one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import MIB
from deltamq.tables.log.fetch import FetchStatus, one_record_batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.schema import MESSAGE_SCHEMA
from deltamq.tables.typed_row import conformed_rows

Int64s = npt.NDArray[np.int64]

#: Largest distance of offsets that are read in one run: the rows between them cost less than another read.
_GAP_MAX: Final = 64
_READ_BYTES: Final = 16 * MIB


class TooMuch(Exception):
    """The messages take more bytes than the caller allows; the caller should ask for fewer."""


class Picked(msgspec.Struct):
    """The messages that were read, by offset, and why the others were not."""

    rows: pa.RecordBatch
    offsets: Int64s
    #: Offsets that are no longer there: below the partition's minimum.
    gone: set[int] = msgspec.field(default_factory=set)
    #: The error of each offset that could not be read.
    unreadable: dict[int, str] = msgspec.field(default_factory=dict)

    def places(self, offsets: Int64s) -> Int64s:
        """Return the positions of these offsets in `rows`; each of them must have been read."""
        return np.searchsorted(self.offsets, offsets)


def pick(log: PartitionLog, offsets: Int64s, *, bytes_max: int | None, columns: Sequence[str] | None = None) -> Picked:
    """Return the messages at `offsets` (ascending, without repeats); each is in memory once.

    With `columns`, rows have only these, without typed ones that the partition lacks.

    Raises
    ------
    TooMuch
        The messages take more than `bytes_max`.
    """
    picker = _Picker(log, bytes_max, columns)
    for run in np.split(offsets, np.flatnonzero(np.diff(offsets) > _GAP_MAX) + 1):
        picker.run(run)
    # The partition may have got columns between two reads.
    schema = MESSAGE_SCHEMA if columns is None else log.state.picked(columns)
    pieces = [conformed_rows(piece, schema) for piece in picker.pieces]
    rows = one_record_batch(pa.concat_tables([schema.empty_table(), *pieces]))
    return Picked(rows, rows.column("offset").to_numpy(), picker.gone, picker.unreadable)


class _Picker:
    def __init__(self, log: PartitionLog, bytes_max: int | None, columns: Sequence[str] | None) -> None:
        self._log = log
        self._columns = columns
        self._left = bytes_max
        self.pieces: list[pa.Table] = []
        self.gone: set[int] = set()
        self.unreadable: dict[int, str] = {}

    def run(self, wanted: Int64s) -> None:
        """Read offsets that lie close together; where a read fails, halve its length down to the unreadable message."""
        step = int(wanted[-1]) - int(wanted[0]) + 1 if len(wanted) else 0
        while len(wanted):
            at = int(wanted[0])
            try:
                most = min(step, int(wanted[-1]) - at + 1)
                fetched = self._log.read(at, max_messages=most, max_bytes=_READ_BYTES, columns=self._columns)
            except (DeltaMQError, OSError, pa.ArrowException) as error:
                if step > 1:
                    step //= 2
                else:
                    self.unreadable[at] = f"{type(error).__name__}: {error}"
                    wanted = wanted[1:]
                continue
            if fetched.status is FetchStatus.FOUND:
                wanted = self._keep(fetched.rows, wanted, fetched.next_offset)
                step *= 2
            elif fetched.status is FetchStatus.OFFSET_TOO_SMALL:
                here = int(np.searchsorted(wanted, fetched.min_offset))
                self.gone.update(wanted[:here].tolist())
                wanted = wanted[here:]
            else:
                self.unreadable.update(dict.fromkeys(wanted.tolist(), f"behind the end offset {fetched.max_offset}"))
                return

    def _keep(self, rows: pa.Table, wanted: Int64s, next_offset: int) -> Int64s:
        """Keep the wanted rows of a read that starts at the first wanted offset; return the offsets still wanted."""
        here = int(np.searchsorted(wanted, next_offset))
        positions = wanted[:here] - wanted[0]
        kept = rows if len(positions) == rows.num_rows else rows.take(pa.array(positions))
        if self._left is not None:
            self._left -= kept.nbytes
            if self._left < 0:
                raise TooMuch
        self.pieces.append(kept)
        return wanted[here:]
