"""Rows as an Arrow stream in pieces: one record batch each, copied when it is sent.

schema | batch of up to PIECE_BYTES_MAX | batch | ... | end marker
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import pyarrow as pa

#: Bytes of a piece at most: it is copied in less than a millisecond and fits into a processor's cache.
_PIECE_BYTES_MAX: Final = 4 * 1024 * 1024
#: Average rows below which batches are joined: each batch costs the reader about as much as a hundred rows.
_SMALL_BATCH_ROWS: Final = 256
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowPieces:
    """The body of an Arrow answer."""

    def __init__(self, rows: pa.Table) -> None:
        chunks = rows.column(0).num_chunks
        if chunks > 1 and rows.num_rows < chunks * _SMALL_BATCH_ROWS:
            rows = rows.combine_chunks()
        self._schema = memoryview(rows.schema.serialize())
        self._batches = _batches(rows)
        sizes = map(pa.ipc.get_record_batch_size, self._batches)
        self.size: int = len(self._schema) + sum(sizes) + len(_END)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        if self.size <= _PIECE_BYTES_MAX:
            yield b"".join(chain((self._schema,), map(_copied, self._batches), (_END,)))
            return
        yield self._schema
        yield from map(_copied, self._batches)
        yield _END


def _batches(rows: pa.Table) -> list[pa.RecordBatch]:
    """Return the rows in batches of about the size of a piece."""
    pieces = -(-rows.nbytes // _PIECE_BYTES_MAX)
    batches: list[pa.RecordBatch] = rows.to_batches(max_chunksize=max(1, -(-rows.num_rows // max(1, pieces))))
    return batches


def _copied(batch: pa.RecordBatch) -> memoryview:
    return memoryview(batch.serialize())
