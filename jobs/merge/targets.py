"""What the merge job does for each state table: how a batch of records becomes the source of a MERGE, and the MERGE.

A row of the source says what a batch adds to a row of the table, or, where `forget` is true, that the row may go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa

from jobs.merge import checkpoint_batch, lost_batch, offset_batch
from jobs.merge.forget import COLUMNS, forgettable, is_over
from tables.metadata import Meta
from tables.queue_refs import LOST, OFFSETS, REVIVE_LOG
from tables.state_rows import OFFSET_COLUMNS, Progress, committed_of_rows, rows_of_committed
from tables.state_schema import (
    CHECKPOINT_KEY,
    CONSUMER_OFFSETS,
    CONSUMER_OFFSETS_SCHEMA,
    LANE_KEY,
    LOST_KEY,
    LOST_MESSAGES,
    POP_CHECKPOINTS,
    POP_CHECKPOINTS_SCHEMA,
)
from tables.state_table import read_state
from tables.store import Store

__all__ = ["CHECKPOINTS", "LOSSES", "OFFSETS_OF_GROUPS", "TARGETS", "Batch", "Target", "known_progress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch and what it is merged into."""

    store: Store
    meta: Meta
    now: datetime
    #: The decoded records.
    parts: Iterable[pa.Table]
    #: Whether rows that may be forgotten are looked for.
    clean: bool
    #: How long a checkpoint may be in the service's memory alone.
    stay_buffer_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One state table that is merged from logs."""

    table: str
    #: The kind of log (`tables.queue_refs`).
    logs: str
    #: Rows of a log to columns; raises `Corrupt` naming the offset of a damaged record.
    decode: Callable[[pa.Table], pa.Table]
    #: A batch to the rows of `source` in `merge`; they have a column `forget`.
    source: Callable[[Batch], pa.Table]
    #: The SQL of the MERGE, without the table.
    merge: str
    #: A column of times whose bounds in the source spare Delta files of the table.
    bounded_by: str | None = None


def known_progress(store: Store) -> Progress:
    """What `state/consumer_offsets` says now."""
    state = read_state(store, CONSUMER_OFFSETS, CONSUMER_OFFSETS_SCHEMA, OFFSET_COLUMNS)
    return {} if state is None else committed_of_rows(state.rows)


def _marked(rows: pa.Table, forget: bool) -> pa.Table:
    return rows.append_column("forget", pa.array([forget]).take(pa.array([0] * rows.num_rows, pa.int32())))


def _offsets_source(batch: Batch) -> pa.Table:
    """The progress of the lanes that moved, all of it; read and written by one driver, in one transaction number.

    A reset is progress, too, though the metadata log has it: it is shown before the group goes on from there.
    """
    known = known_progress(batch.store)
    names = {topic.id: topic.name for topic in batch.meta.topics.topics.values()}
    resets = {
        lane: (names[lane.topic_id], at) for lane, at in batch.meta.groups.resets.items() if lane.topic_id in names
    }
    told = offset_batch.fold(batch.parts)
    new = offset_batch.joined(known, told | offset_batch.joined(told, resets))
    over = {lane for lane, (_, at) in (known | new).items() if is_over(batch.meta, lane, at.epoch)}
    moved = {lane: at for lane, at in new.items() if lane not in over}
    gone = {lane: at for lane, at in known.items() if lane in over}
    rows = [_marked(rows_of_committed(part, batch.now), forget) for part, forget in ((moved, False), (gone, True))]
    return pa.concat_tables(rows)


def _checkpoints_source(batch: Batch) -> pa.Table:
    folded = checkpoint_batch.fold(list(batch.parts))
    gone = _forgotten(batch, folded.select(CHECKPOINT_KEY)) if batch.clean else folded.slice(0, 0)
    source = pa.concat_tables([_marked(folded, False), _marked(gone, True)], promote_options="default")
    return source.append_column("merged_at", _now(batch, source.num_rows))


def _forgotten(batch: Batch, touched: pa.Table) -> pa.Table:
    """The keys of rows that may go and that the batch has nothing about."""
    state = read_state(batch.store, POP_CHECKPOINTS, POP_CHECKPOINTS_SCHEMA, COLUMNS)
    if state is None:
        return touched.slice(0, 0)
    now_ms = int(batch.now.timestamp() * 1000)
    progress = known_progress(batch.store)
    mask = forgettable(state.rows, batch.meta, progress, now_ms, stay_buffer_ms=batch.stay_buffer_ms)
    keys = state.rows.filter(mask).select(CHECKPOINT_KEY)
    if not keys.num_rows or not touched.num_rows:
        return keys
    return keys.join(touched, keys=list(CHECKPOINT_KEY), join_type="left anti")


def _losses_source(batch: Batch) -> pa.Table:
    rows = _marked(lost_batch.fold(batch.parts), False)
    return rows.append_column("merged_at", _now(batch, rows.num_rows))


def _now(batch: Batch, count: int) -> pa.Array:
    return pa.array([batch.now] * count, POP_CHECKPOINTS_SCHEMA.field("merged_at").type)


def _on(key: Iterable[str]) -> str:
    return " AND ".join(f"t.`{name}` = s.`{name}`" for name in key)


def _insert(columns: Iterable[str], **derived: str) -> str:
    values = {name: f"s.`{name}`" for name in columns} | derived
    names = ", ".join(f"`{name}`" for name in values)
    return f"WHEN NOT MATCHED AND NOT s.forget THEN INSERT ({names}) VALUES ({', '.join(values.values())})"


_BROKER: Final = "substring_index(s.partition, '@', -1)"
_BITS: Final = ("acked", "replaced", "done")
_NEWER: Final = "(t.num IS NULL OR (s.num IS NOT NULL AND s.revive_offset < t.revive_offset))"


def _open(num: str, dealt_with: str) -> str:
    return f"coalesce(bit_count((shiftleft(1L, {num}) - 1L) & ~({dealt_with})), 0)"


_OPEN_OF_BATCH: Final = _open("s.num", "s.acked | s.replaced | s.done")


def _checkpoints_update() -> str:
    sets = {name: f"t.{name} | s.{name}" for name in _BITS}
    sets |= {name: f"if({_NEWER}, s.`{name}`, t.`{name}`)" for name in checkpoint_batch.OF_CHECKPOINT}
    sets["revive_time"] = "greatest(t.revive_time, s.revive_time)"
    dealt_with = " | ".join(f"t.{name} | s.{name}" for name in _BITS)
    sets["in_flight"] = _open("coalesce(t.num, s.num)", dealt_with)
    sets["due_time"] = f"if({sets['in_flight']} > 0, {sets['revive_time']}, NULL)"
    sets["merged_at"] = "s.merged_at"
    return ", ".join(f"t.`{name}` = {value}" for name, value in sets.items())


OFFSETS_OF_GROUPS: Final = Target(
    table=CONSUMER_OFFSETS,
    logs=OFFSETS,
    decode=offset_batch.decode,
    source=_offsets_source,
    merge=f"""
        ON {_on(LANE_KEY)}
        WHEN MATCHED AND s.forget THEN DELETE
        WHEN MATCHED THEN UPDATE SET
            epoch = s.epoch, committed_offset = s.committed_offset, done = s.done, delivered = s.delivered,
            merged_at = s.merged_at
        {_insert(CONSUMER_OFFSETS_SCHEMA.names)}
    """,
)

CHECKPOINTS: Final = Target(
    table=POP_CHECKPOINTS,
    logs=REVIVE_LOG,
    decode=checkpoint_batch.decode,
    source=_checkpoints_source,
    merge=f"""
        ON {_on(CHECKPOINT_KEY)}
        WHEN MATCHED AND s.forget THEN DELETE
        WHEN MATCHED THEN UPDATE SET {_checkpoints_update()}
        {
        _insert(
            [*checkpoint_batch.BATCH_SCHEMA.names, "merged_at"],
            broker=_BROKER,
            in_flight=_OPEN_OF_BATCH,
            due_time=f"if({_OPEN_OF_BATCH} > 0, s.revive_time, NULL)",
        )
    }
    """,
    bounded_by="pop_time",
)

LOSSES: Final = Target(
    table=LOST_MESSAGES,
    logs=LOST,
    decode=lost_batch.decode,
    source=_losses_source,
    merge=f"""
        ON {_on(LOST_KEY)}
        WHEN MATCHED AND s.lost_time < t.lost_time THEN UPDATE SET lost_time = s.lost_time
        {_insert([*lost_batch.BATCH_SCHEMA.names, "merged_at"], broker=_BROKER)}
    """,
)

#: In this order: what may be forgotten of checkpoints depends on the progress of groups.
TARGETS: Final = (OFFSETS_OF_GROUPS, CHECKPOINTS, LOSSES)
