"""The queue's own logs and tables: records, checkpoints, delays, metadata, retention, recovery at a start."""

from __future__ import annotations

from deltamq.tables.queue.dead_marks import LETTER_STATES, DeadMarks, add_marks, mark_ranges, states_at, states_between
from deltamq.tables.queue.delay_marks import DelayMarks, LogTail
from deltamq.tables.queue.delay_targets import DelayTargets
from deltamq.tables.queue.delay_times import DeliverTimes
from deltamq.tables.queue.delayed_rows import producer_in_delay, with_destination
from deltamq.tables.queue.deliver_times import AT_ONCE, Times, times_of_columns, times_of_lists
from deltamq.tables.queue.lane_states import LaneStates
from deltamq.tables.queue.lost_fences import put_up_fences
from deltamq.tables.queue.merge_plan import (
    MERGED_TABLES,
    MergePlan,
    PlannedRange,
    app_id,
    forget_plans,
    last_planned,
    merged_stops,
    merged_to,
    put_plan,
    read_plan,
    watermark,
)
from deltamq.tables.queue.metadata import MetaFollower, MetaLog, read_meta
from deltamq.tables.queue.open_checkpoints import CheckpointTable, OpenCheckpoints
from deltamq.tables.queue.placement import FenceEpochs, Placement, fence_epochs_of
from deltamq.tables.queue.records import (
    audit_records_of,
    lost_records_of,
    offset_records_of,
    records_of,
    rows_of_audit,
    rows_of_dead_marks,
    rows_of_delay_marks,
    rows_of_lost_records,
    rows_of_offset_records,
    rows_of_records,
    rows_of_statistics,
    statistics_of,
)
from deltamq.tables.queue.recovery import Follower, LogCursor, ProgressFollower, Recovered, recover, recover_progress
from deltamq.tables.queue.redelivery_rows import again, forwarded, sent_back, with_reason
from deltamq.tables.queue.refs import (
    AUDIT,
    DELAY,
    DELAY_MARKS,
    LOST,
    OFFSETS,
    REVIVE_LOG,
    STATISTICS,
    TOPIC_LIVES_MAX,
    dead_marks_ref,
    dead_ref,
    is_dead_marks,
    lives_of_retry,
    retry_life,
    retry_ref,
    revive_ref,
    revive_refs,
    system_ref,
)
from deltamq.tables.queue.retention import Retained, Retention
from deltamq.tables.queue.sealing import seal_moves
from deltamq.tables.queue.segment_retention import drop_segments
from deltamq.tables.queue.waiting import WaitingIndex

__all__ = [
    "AT_ONCE",
    "AUDIT",
    "DELAY",
    "DELAY_MARKS",
    "LETTER_STATES",
    "LOST",
    "MERGED_TABLES",
    "OFFSETS",
    "REVIVE_LOG",
    "STATISTICS",
    "TOPIC_LIVES_MAX",
    "CheckpointTable",
    "DeadMarks",
    "DelayMarks",
    "DelayTargets",
    "DeliverTimes",
    "FenceEpochs",
    "Follower",
    "LaneStates",
    "LogCursor",
    "LogTail",
    "MergePlan",
    "MetaFollower",
    "MetaLog",
    "OpenCheckpoints",
    "Placement",
    "PlannedRange",
    "ProgressFollower",
    "Recovered",
    "Retained",
    "Retention",
    "Times",
    "WaitingIndex",
    "add_marks",
    "again",
    "app_id",
    "audit_records_of",
    "dead_marks_ref",
    "dead_ref",
    "drop_segments",
    "fence_epochs_of",
    "forget_plans",
    "forwarded",
    "is_dead_marks",
    "last_planned",
    "lives_of_retry",
    "lost_records_of",
    "mark_ranges",
    "merged_stops",
    "merged_to",
    "offset_records_of",
    "producer_in_delay",
    "put_plan",
    "put_up_fences",
    "read_meta",
    "read_plan",
    "records_of",
    "recover",
    "recover_progress",
    "retry_life",
    "retry_ref",
    "revive_ref",
    "revive_refs",
    "rows_of_audit",
    "rows_of_dead_marks",
    "rows_of_delay_marks",
    "rows_of_lost_records",
    "rows_of_offset_records",
    "rows_of_records",
    "rows_of_statistics",
    "seal_moves",
    "sent_back",
    "states_at",
    "states_between",
    "statistics_of",
    "system_ref",
    "times_of_columns",
    "times_of_lists",
    "watermark",
    "with_destination",
    "with_reason",
]
