"""The source of the MERGE into `state/consumer_offsets`: the whole progress of lanes that moved.

A task has the logs of some brokers, and all lanes there: it folds their records to the progress of each lane, joins it
with the progress in the table, and yields the lanes whose progress differs. (`mq.queue` joins leases and ranges, not
SQL.) A reset counts as progress, although it is in the metadata log: the table shows it before the group goes on from
there.

The fold is that of `mq.queue.progress.committed_of`. Plain commits, which are nearly all, are folded in columns. What
only ordered groups have (offsets done above the committed one, leases) becomes unique in columns, and is then joined by
`mq.queue` once for each lane. Only the metadata texts of each lane's committed offset become objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyspark.sql import DataFrame

from deltamq.jobs.merge.batch import MergeInput
from deltamq.jobs.merge.forget import Lives
from deltamq.jobs.merge.log_spans import LogSpan, decoded, shares
from deltamq.jobs.merge.record_columns import Damaged, Ints, checked, columns_of, lists_of, required, tuples_of
from deltamq.jobs.tasks.tasks import frame_of_tasks
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.meta.group import NO_OFFSET
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import CommitNote, Committed, Delivered
from deltamq.tables.queue.records import offset_records_of
from deltamq.tables.state.rows import OFFSET_COLUMNS, Progress, committed_of_rows, rows_of_committed
from deltamq.tables.state.schema import CONSUMER_OFFSETS, CONSUMER_OFFSETS_SCHEMA, LANE_KEY
from deltamq.tables.state.table import read_state
from deltamq.tables.store.store import Store

SOURCE_SCHEMA: Final = CONSUMER_OFFSETS_SCHEMA.append(pa.field("forget", pa.bool_(), nullable=False))
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
    """Return the commits in `rows(tag, body, offset)` as columns; raise `Corrupt`, with the offset, for another row."""
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


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a task: the logs of some brokers."""

    warehouse: str
    spans: tuple[LogSpan, ...]
    #: Brokers whose lanes other tasks process.
    elsewhere: frozenset[str]
    #: The brokers whose lanes this task processes; None: all brokers that are not in `elsewhere`.
    brokers: frozenset[str] | None
    lives: Lives
    #: The resets in existing topics.
    resets: Progress
    now: datetime
    clean: bool

    def has(self, lane: LaneKey) -> bool:
        broker = broker_of(lane.partition)
        return broker not in self.elsewhere if self.brokers is None else broker in self.brokers


def known_progress(store: Store) -> dict[LaneKey, tuple[str, Committed]]:
    """Return the progress in `state/consumer_offsets`."""
    state = read_state(store, CONSUMER_OFFSETS, CONSUMER_OFFSETS_SCHEMA, OFFSET_COLUMNS)
    return {} if state is None else committed_of_rows(state.rows)


def offset_source(batch: MergeInput) -> DataFrame:
    """Return the source's rows, not evaluated yet."""
    # A log is not divided: a task folds it piece by piece to one row for each lane.
    divided = shares(batch.spans, share_records=batch.share_records)
    tasks = [
        _Task(
            warehouse=batch.warehouse,
            spans=spans,
            elsewhere=frozenset(),
            brokers=frozenset(broker_of(span.ref.name) for span in spans),
            lives=Lives.of(batch.meta),
            resets=_resets(batch),
            now=batch.now,
            clean=batch.clean,
        )
        for spans in divided or [()]
    ]
    elsewhere = frozenset(broker for task in tasks[1:] for broker in task.brokers or ())
    tasks[0] = replace(tasks[0], brokers=None, elsewhere=elsewhere)
    return frame_of_tasks(batch.session, tasks, _moved, SOURCE_SCHEMA)


def _resets(batch: MergeInput) -> Progress:
    names = {topic.id: topic.name for topic in batch.meta.topics.topics.values()}
    resets = batch.meta.groups.resets
    return {lane: (names[lane.topic_id], at) for lane, at in resets.items() if lane.topic_id in names}


def _moved(task: _Task) -> Iterator[pa.RecordBatch]:
    """Yield also the lanes that have ended or have no offset any more."""
    store = storage(task.warehouse)
    folded = _folded(decoded(store, task.spans, decode))
    resets = {lane: at for lane, at in task.resets.items() if task.has(lane)}
    known = {lane: at for lane, at in known_progress(store).items() if task.has(lane) or lane in folded}
    new = joined(known, folded | joined(folded, resets))
    over = {lane for lane, (_, at) in (known | new).items() if task.lives.over(lane, at.epoch)}
    over |= {lane for lane, (_, at) in new.items() if at.offset == NO_OFFSET}
    yield from _rows({lane: at for lane, at in new.items() if lane not in over}, task.now, forget=False)
    yield from _rows({lane: at for lane, at in known.items() if lane in over}, task.now, forget=True)


def _folded(parts: Iterable[pa.Table]) -> dict[LaneKey, tuple[str, Committed]]:
    """Only one part is in memory at a time."""
    progress: dict[LaneKey, tuple[str, Committed]] = {}
    for part in parts:
        progress |= joined(progress, fold([part]))
    return progress


def _rows(
    progress: Mapping[LaneKey, tuple[str, Committed]], now: datetime, *, forget: bool
) -> Iterator[pa.RecordBatch]:
    if progress:
        rows = rows_of_committed(progress, now)
        yield from rows.append_column(SOURCE_SCHEMA.field("forget"), pa.array([forget] * rows.num_rows)).to_batches()
