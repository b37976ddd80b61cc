"""What is due in one queue of a revive log: the merged table joined with the log behind its watermark, in columns.

    state/pop_checkpoints   --rows of the queue that are due-->  \\
                                                                  fold --> open and due --> the checkpoints
    the queue's revive log  --records behind the watermark---->  /

All records about a checkpoint are in one queue (`api.queue.handle_calls`), so queues are matched separately. Nothing is
followed: a process that looks for the first time sees the same as one that looked a second ago. The cache between looks
only saves reading again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.jobs.merge.checkpoint_batch import BATCH_SCHEMA, decode, fold, is_open
from deltamq.mq.errors import Unavailable
from deltamq.mq.limits import ACK_SETTLE_MS
from deltamq.tables.delta.reader import RowCache
from deltamq.tables.log.paging import NotStored
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.open_checkpoints import CheckpointTable, OpenCheckpoints
from deltamq.tables.queue.recovery import LogCursor
from deltamq.tables.queue.refs import revive_ref
from deltamq.tables.state.schema import CHECKPOINT_KEY
from deltamq.tables.store.store import FileMissing

#: Tries of a look, since a merge and a clean-up may overtake it; each further try sees a newer table.
_LOOKS: Final = 5
_RECORD: Final = ["tag", "body", "offset"]
_ORDER: Final = [("revive_time", "ascending"), ("partition", "ascending"), ("start_offset", "ascending")]


class _Folded(msgspec.Struct, frozen=True):
    """Folded records of a log from `start` up to `stop`."""

    start: int
    stop: int
    rows: pa.Table


class DueFound(NamedTuple):
    """The result of a look at a queue."""

    #: The checkpoints with messages to deliver again, the oldest first, in BATCH_SCHEMA.
    rows: pa.Table
    #: The offset up to which the log was read.
    log_end: int
    #: Unless something is appended, nothing falls due before this time; None: nothing ever; 0: look again.
    next_ms: int | None


class DueShard:
    """One queue of one broker. For one thread."""

    def __init__(self, warehouse: Warehouse, table: OpenCheckpoints, cache: RowCache) -> None:
        self._warehouse = warehouse
        self._table = table
        self._cache = cache

    def due(self, cluster: str, broker: str, queue: int, now_ms: int) -> DueFound:
        """Return what must be delivered again at `now_ms`, and when to look again.

        Raises
        ------
        Corrupt
            The log or the table holds an invalid record, so it is not known which messages were acknowledged.
        """
        ref = revive_ref(cluster, queue, broker)
        for _ in range(_LOOKS):
            try:
                return self._due(ref, broker, queue, now_ms - ACK_SETTLE_MS)
            except (FileMissing, NotStored) as error:
                # Since the table was read, its files were merged and removed, or replaced and swept.
                overtaken = error
                self._table.forget()
        raise Unavailable(f"{ref.name}: its files are replaced faster than they can be read", code="contention") from (
            overtaken
        )

    def _due(self, ref: PartitionRef, broker: str, queue: int, until_ms: int) -> DueFound:
        table = self._table.look()
        newer = self._newer(ref, table.stops.get(ref, 0))
        merged = table.due(broker, queue, until_ms)
        if not merged.num_rows and not _is_due(newer.rows, until_ms).any():
            times = [table.next_due_ms(broker, queue, until_ms), _next_ms(newer.rows, until_ms)]
            next_ms = min((time + ACK_SETTLE_MS for time in times if time is not None), default=None)
            return DueFound(BATCH_SCHEMA.empty_table(), newer.stop, next_ms)
        due_rows = _only_due(fold([_as_batch(merged), newer.rows]), until_ms)
        return DueFound(_confirmed(table, due_rows, merged, until_ms).sort_by(_ORDER), newer.stop, 0)

    def _newer(self, ref: PartitionRef, start: int) -> _Folded:
        """The records up to the last look are cached."""
        kept = self._cache.get(ref)
        known = kept if isinstance(kept, _Folded) and kept.start == start else _Folded(start, start, fold([]))
        cursor = LogCursor(self._warehouse, ref, known.stop)
        parts = [decode(rows.select(_RECORD)) for rows in cursor.new_rows()]
        if parts:
            known = _Folded(start, cursor.offset, fold([known.rows, *parts]))
        self._cache.put(ref, known, known.rows.nbytes + 1_024)
        return known


def _confirmed(table: CheckpointTable, candidates: pa.Table, merged: pa.Table, until_ms: int) -> pa.Table:
    """Keep the rows that are due by all records in the table, not only by the records that it lists as due."""
    seen = merged.select(CHECKPOINT_KEY)
    keys = candidates.select(CHECKPOINT_KEY)
    if seen.num_rows:
        keys = keys.join(seen, keys=list(CHECKPOINT_KEY), join_type="left anti")
    more = table.named(keys)
    return _only_due(fold([candidates, _as_batch(more)]), until_ms) if more.num_rows else candidates


def _as_batch(rows: pa.Table) -> pa.Table:
    return rows.select(BATCH_SCHEMA.names).cast(BATCH_SCHEMA)


def _only_due(folded: pa.Table, until_ms: int) -> pa.Table:
    return folded.filter(pa.array(_is_due(folded, until_ms)))


def _is_due(folded: pa.Table, until_ms: int) -> NDArray[np.bool_]:
    """Compute `CheckpointState.due` in columns."""
    due: NDArray[np.bool_] = is_open(folded) & (_revive_us(folded) <= until_ms * 1_000)
    return due


def _next_ms(folded: pa.Table, after_ms: int) -> int | None:
    times = _revive_us(folded)[is_open(folded)]
    later = times[times > after_ms * 1_000]
    return int(later.min()) // 1_000 if len(later) else None


def _revive_us(folded: pa.Table) -> NDArray[np.int64]:
    times: NDArray[np.int64] = pc.fill_null(folded.column("revive_time").cast(pa.int64()), 0).to_numpy()
    return times
