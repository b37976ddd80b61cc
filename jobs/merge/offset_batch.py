"""Folds many records of the offsets logs to the progress of each lane.

It is the fold of `mq.queue.progress.committed_of`. Plain commits, which are nearly all, are folded in columns. What
only ordered groups have (offsets done above the committed one, leases) becomes unique in columns, and is then joined by
`mq.queue` once for each lane. Only the metadata texts of each lane's committed offset become objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltamq.jobs.merge.record_columns import Damaged, Ints, checked, columns_of, lists_of, required, tuples_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import CommitNote, Committed, Delivered
from deltamq.tables.queue.records import offset_records_of
from deltamq.tables.state.rows import Progress
from deltamq.tables.state.schema import LANE_KEY

_TUPLES: Final = pa.list_(pa.list_(pa.int64()))
_SCHEMA: Final = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("retry", pa.bool_()),
        ("partition", pa.string()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("done", _TUPLES),
        ("delivered", _TUPLES),
        ("note", pa.struct([("number", pa.int64()), ("text", pa.string())])),
    ]
)
#: The columns of ordered groups, with the length of the tuples in their lists.
_ORDERED: Final = {"done": 2, "delivered": len(Delivered._fields)}


def decode(rows: pa.Table) -> pa.Table:
    """Return the commits in `rows(tag, body, offset)` as columns.

    Raises
    ------
    Corrupt
        A row is not a valid commit; the detail names its offset.
    """
    return checked(rows, _decode, offset_records_of)


def _decode(rows: pa.Table) -> pa.Table:
    fields = columns_of(rows.column("body").combine_chunks(), _SCHEMA)
    required(fields, *(name for name in _SCHEMA.names if name not in {*_ORDERED, "note"}))
    for name, values in zip(
        CommitNote._fields, fields.column("note").drop_null().combine_chunks().flatten(), strict=True
    ):
        if values.null_count:
            raise Damaged(f"a note without {name!r}")
    for name, width in _ORDERED.items():
        tuples_of(fields.column(name), width)
    return fields


def fold(parts: Iterable[pa.Table]) -> dict[LaneKey, tuple[str, Committed]]:
    """Return the progress of every lane in the commits."""
    table = pa.concat_tables([_SCHEMA.empty_table(), *parts]).combine_chunks()
    if not table.num_rows:
        return {}
    keyed = table.select([*LANE_KEY, "topic"]).append_column("row", pa.array(np.arange(table.num_rows)))
    groups = keyed.group_by(list(LANE_KEY), use_threads=False).aggregate([("topic", "min"), ("row", "list")])
    lists = lists_of(groups.column("row_list"))
    order, starts = lists.flatten().to_numpy(), lists.offsets.to_numpy()
    lanes = np.repeat(np.arange(groups.num_rows), np.diff(starts))
    epochs = table.column("epoch").to_numpy()[order]
    newest = np.maximum.reduceat(epochs, starts[:-1])
    present = epochs == newest[lanes]
    offsets = np.where(present, table.column("offset").to_numpy()[order], np.iinfo(np.int64).min)
    highest = np.maximum.reduceat(offsets, starts[:-1])
    lane_of_row = np.full(table.num_rows, -1)
    lane_of_row[order[present]] = lanes[present]
    done, delivered = (_tuples_of_lanes(table.column(name), lane_of_row, width) for name, width in _ORDERED.items())
    notes = _notes_of_lanes(table.column("note"), lane_of_row, table.column("offset").to_numpy(), highest)
    keys = zip(*(groups.column(name).to_pylist() for name in (*LANE_KEY, "topic_min")), strict=True)
    folded = {}
    for at, (*key, topic) in enumerate(keys):
        ranges = tuple((low, high) for low, high in done.get(at, ()))
        leases = tuple(Delivered(*lease) for lease in delivered.get(at, ()))
        committed = Committed(int(newest[at]), int(highest[at]), ranges, leases, notes.get(at))
        folded[LaneKey(*key)] = (topic, committed.join(committed) if ranges or leases else committed)
    return folded


def _tuples_of_lanes(column: pa.ChunkedArray, lane_of_row: Ints, width: int) -> dict[int, list[list[int]]]:
    """The distinct tuples of each lane that has any; a row with lane -1 is skipped."""
    rows, tuples = tuples_of(column, width)
    lanes = lane_of_row[rows]
    unique = np.unique(np.column_stack([lanes, tuples])[lanes >= 0], axis=0)
    by_lane: dict[int, list[list[int]]] = {}
    for lane, *values in unique.tolist():
        by_lane.setdefault(lane, []).append(values)
    return by_lane


def _notes_of_lanes(column: pa.ChunkedArray, lane_of_row: Ints, offsets: Ints, highest: Ints) -> dict[int, CommitNote]:
    """The newest note of the highest offset of each lane that has any; a row with lane -1 is skipped."""
    rows = pc.indices_nonzero(pc.is_valid(column)).to_numpy().astype(np.int64)
    lanes = lane_of_row[rows]
    rows = rows[(lanes >= 0) & (offsets[rows] == highest[lanes])]
    by_lane: dict[int, CommitNote] = {}
    for lane, stored in zip(lane_of_row[rows].tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
        note = CommitNote(**stored)
        by_lane[lane] = max(note, by_lane.get(lane, note))
    return by_lane


def joined(known: Progress, new: Progress) -> dict[LaneKey, tuple[str, Committed]]:
    """Return the lanes of `new` whose progress differs from `known`, each with the join of both."""
    changed = {}
    for lane, (topic, committed) in new.items():
        before = known.get(lane)
        after = committed if before is None else before[1].join(committed)
        if before is None or after != before[1]:
            changed[lane] = (topic, after)
    return changed
