"""Decides in columns which checkpoints may be deleted (`mq.queue.revive_log.CheckpointState.may_forget`).

A row goes when its group, topic or epoch has ended; or when no record about it can come any more and the group's
committed offset says the same: all its messages are dealt with, and are below that offset.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deltamq.jobs.merge.checkpoint_batch import is_open
from deltamq.jobs.merge.record_columns import lists_of
from deltamq.mq.limits import STAY_BUFFER_MS
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import GroupsState
from deltamq.mq.names import CONSUMER_OFFSETS_ID
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.tables.state.rows import Progress
from deltamq.tables.state.schema import CHECKPOINT_KEY, LANE_KEY

#: The needed columns of `state/pop_checkpoints`.
COLUMNS: Final = (*CHECKPOINT_KEY, "num", "diffs", "acked", "replaced", "done", "revive_time")
#: How long after its revive time records about a checkpoint may still come, in milliseconds: acknowledgements that were
#: being stored then, appends that were repeated because their answer was lost. (An open checkpoint waits for the revive
#: job, however long that takes.)
RECORD_LATE_MS: Final = 60_000

Ints = NDArray[np.int64]


class Lives(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the metadata that shows ended topics, groups and epochs; small enough to go to every task."""

    groups: GroupsState
    topic_ids: frozenset[str]

    @classmethod
    def of(cls, meta: Meta) -> Lives:
        """`meta` must not be older than the records that it judges."""
        ids = frozenset(topic.id for topic in meta.topics.topics.values())
        return cls(groups=meta.groups, topic_ids=ids | {CONSUMER_OFFSETS_ID})

    def over(self, lane: LaneKey, epoch: int) -> bool:
        """Return whether the group's state in this epoch is void: topic, group or epoch has ended (POP-12)."""
        present = self.groups.epoch_of(lane)
        return present is None or epoch < present or lane.topic_id not in self.topic_ids


def forgettable(
    rows: pa.Table, lives: Lives, progress: Progress, now_ms: int, *, stay_buffer_ms: int = STAY_BUFFER_MS
) -> pa.Array:
    """Return for each row of `COLUMNS` whether it may be forgotten.

    Parameters
    ----------
    lives
        Must not be older than the records that the rows came from.
    progress
        The groups' progress by the offsets logs so far.
    stay_buffer_ms
        The longest time for which a checkpoint with a message taken over may be only in the service's memory.
    """
    if not rows.num_rows:
        return pa.array([], pa.bool_())
    over, committed = _of_lanes(rows, lives, progress)
    nums = pc.fill_null(rows.column("num"), 0).to_numpy().astype(np.int64)
    finished = (nums == 0) | (~is_open(rows) & (_last_offsets(rows, nums) < committed))
    revive_ms = pc.fill_null(rows.column("revive_time").cast(pa.int64()), 0).to_numpy() // 1_000
    stored_ms = rows.column("pop_time").cast(pa.int64()).to_numpy() // 1_000 + stay_buffer_ms
    return pa.array(over | (finished & (now_ms >= np.maximum(revive_ms, stored_ms) + RECORD_LATE_MS)))


def _of_lanes(rows: pa.Table, lives: Lives, progress: Progress) -> tuple[NDArray[np.bool_], Ints]:
    """For each row: whether its lane's epoch has ended, and the group's committed offset."""
    keyed = rows.select([*LANE_KEY, "epoch"]).append_column("row", pa.array(np.arange(rows.num_rows)))
    groups = keyed.group_by([*LANE_KEY, "epoch"], use_threads=False).aggregate([("row", "list")])
    lists = lists_of(groups.column("row_list"))
    order, counts = lists.flatten().to_numpy(), np.diff(lists.offsets.to_numpy())
    over, committed = [], []
    for *key, epoch in zip(*(groups.column(name).to_pylist() for name in (*LANE_KEY, "epoch")), strict=True):
        lane = LaneKey(*key)
        over.append(lives.over(lane, epoch))
        known = lives.groups.committed_in(lane, progress[lane][1] if lane in progress else None)
        committed.append(0 if known is None or known.epoch != epoch else known.offset)
    row_over = np.empty(rows.num_rows, dtype=bool)
    row_committed = np.empty(rows.num_rows, dtype=np.int64)
    row_over[order] = np.repeat(over, counts)
    row_committed[order] = np.repeat(committed, counts)
    return row_over, row_committed


def _last_offsets(rows: pa.Table, nums: Ints) -> Ints:
    starts = rows.column("start_offset").to_numpy()
    last = starts + nums - 1
    there = pc.is_valid(rows.column("diffs")).to_numpy()
    if there.any():
        lists = lists_of(rows.column("diffs").drop_null())
        last[there] = starts[there] + lists.flatten().to_numpy()[np.cumsum(pc.list_value_length(lists).to_numpy()) - 1]
    offsets: Ints = last
    return offsets
