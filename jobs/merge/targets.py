"""The state tables that are merged from logs: for each, the source of its MERGE and the MERGE itself.

A row of the source is a batch's addition to a row of the table, or, with `forget`, a row that may go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from pyspark.sql import DataFrame

from deltamq.jobs.merge import checkpoint_batch, losses, statistics
from deltamq.jobs.merge.batch import MergeInput
from deltamq.jobs.merge.checkpoint_source import checkpoint_source
from deltamq.jobs.merge.offsets import offset_source
from deltamq.tables.queue.refs import LOST, OFFSETS, REVIVE_LOG, STATISTICS
from deltamq.tables.state.schema import (
    CHECKPOINT_KEY,
    CONSUMER_OFFSETS,
    CONSUMER_OFFSETS_SCHEMA,
    GROUP_STATISTICS,
    GROUP_STATISTICS_SCHEMA,
    LANE_KEY,
    LOST_KEY,
    LOST_MESSAGES,
    POP_CHECKPOINTS,
    STATISTICS_KEY,
)


class MergeTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One state table that is merged from logs."""

    table: str
    #: The kind of log (`tables.queue.refs`).
    logs: str
    key: tuple[str, ...]
    #: Returns the rows of `source` in `merge` as a DataFrame that has not run yet, with one row for each key if the
    #: batch is `mixed`, or if each log has all records about its keys.
    source: Callable[[MergeInput], DataFrame]
    #: The SQL of the MERGE, without the table.
    merge: str
    #: A column of times; its bounds in the source make the MERGE skip Delta files of the table.
    bounded_by: str | None = None
    #: Whether the table has rows that may be forgotten.
    forgets: bool = True

    @property
    def shard(self) -> str:
        """The shard of the job."""
        return self.table.rpartition("/")[2]


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


OFFSETS_OF_GROUPS: Final = MergeTarget(
    table=CONSUMER_OFFSETS,
    logs=OFFSETS,
    key=LANE_KEY,
    source=offset_source,
    merge=f"""
        ON {_on(LANE_KEY)}
        WHEN MATCHED AND s.forget THEN DELETE
        WHEN MATCHED THEN UPDATE SET
            epoch = s.epoch, committed_offset = s.committed_offset, done = s.done, delivered = s.delivered,
            metadata = s.metadata, metadata_number = s.metadata_number, merged_at = s.merged_at
        {_insert(CONSUMER_OFFSETS_SCHEMA.names)}
    """,
)

CHECKPOINTS: Final = MergeTarget(
    table=POP_CHECKPOINTS,
    logs=REVIVE_LOG,
    key=CHECKPOINT_KEY,
    source=checkpoint_source,
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

LOSSES: Final = MergeTarget(
    table=LOST_MESSAGES,
    logs=LOST,
    key=LOST_KEY,
    source=losses.loss_source,
    merge=f"""
        ON {_on(LOST_KEY)}
        WHEN MATCHED AND s.lost_time < t.lost_time THEN UPDATE SET lost_time = s.lost_time
        {_insert([*losses.BATCH_SCHEMA.names, "merged_at"], broker=_BROKER)}
    """,
    forgets=False,
)

STATISTICS_OF_GROUPS: Final = MergeTarget(
    table=GROUP_STATISTICS,
    logs=STATISTICS,
    key=STATISTICS_KEY,
    source=statistics.statistics_source,
    merge=f"""
        ON {_on(STATISTICS_KEY)}
        WHEN MATCHED AND s.forget THEN DELETE
        WHEN MATCHED THEN UPDATE SET
            {", ".join(f"{name} = greatest(t.{name}, s.{name})" for name in statistics.COUNTS)},
            merged_at = s.merged_at
        {_insert(GROUP_STATISTICS_SCHEMA.names)}
    """,
    bounded_by="minute",
    # Old minutes are forgotten with the next news.
    forgets=False,
)

#: The targets in order: which checkpoints may be forgotten depends on the progress of groups.
TARGETS: Final = (OFFSETS_OF_GROUPS, CHECKPOINTS, LOSSES, STATISTICS_OF_GROUPS)
