"""Makes the source of the MERGE into `state/consumer_offsets` from commits: the whole progress of lanes that moved.

A task has the logs of some brokers, and all lanes there: it reads the progress in the table, joins it with the new one,
and yields the lanes whose progress differs. (`mq.queue` joins leases and ranges, not SQL.)

A reset counts as progress, although it is in the metadata log: the table shows it before the group goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from deltamq.jobs.merge import offset_batch
from deltamq.jobs.merge.batch import MergeInput
from deltamq.jobs.merge.forget import Lives
from deltamq.jobs.merge.log_spans import LogSpan, decoded, shares
from deltamq.jobs.tasks.tasks import frame_of_tasks
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.meta.group import NO_OFFSET
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed
from deltamq.tables.state.rows import OFFSET_COLUMNS, Progress, committed_of_rows, rows_of_committed
from deltamq.tables.state.schema import CONSUMER_OFFSETS, CONSUMER_OFFSETS_SCHEMA
from deltamq.tables.state.table import read_state
from deltamq.tables.store.store import Store

SOURCE_SCHEMA: Final = CONSUMER_OFFSETS_SCHEMA.append(pa.field("forget", pa.bool_(), nullable=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
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
    folded = _folded(decoded(store, task.spans, offset_batch.decode))
    resets = {lane: at for lane, at in task.resets.items() if task.has(lane)}
    known = {lane: at for lane, at in known_progress(store).items() if task.has(lane) or lane in folded}
    new = offset_batch.joined(known, folded | offset_batch.joined(folded, resets))
    over = {lane for lane, (_, at) in (known | new).items() if task.lives.over(lane, at.epoch)}
    over |= {lane for lane, (_, at) in new.items() if at.offset == NO_OFFSET}
    yield from _rows({lane: at for lane, at in new.items() if lane not in over}, task.now, forget=False)
    yield from _rows({lane: at for lane, at in known.items() if lane in over}, task.now, forget=True)


def _folded(parts: Iterable[pa.Table]) -> dict[LaneKey, tuple[str, Committed]]:
    """Only one part is in memory at a time."""
    progress: dict[LaneKey, tuple[str, Committed]] = {}
    for part in parts:
        progress |= offset_batch.joined(progress, offset_batch.fold([part]))
    return progress


def _rows(
    progress: Mapping[LaneKey, tuple[str, Committed]], now: datetime, *, forget: bool
) -> Iterator[pa.RecordBatch]:
    if progress:
        rows = rows_of_committed(progress, now)
        yield from rows.append_column(SOURCE_SCHEMA.field("forget"), pa.array([forget] * rows.num_rows)).to_batches()
