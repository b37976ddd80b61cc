"""Occasional work on stored tables: compaction, verification, counting, repair."""

from __future__ import annotations

from deltamq.tables.ops.compaction_plan import RETENTION_PART, TAIL_FILES_MAX, CompactionTargets, plan_compaction
from deltamq.tables.ops.compactor import Compacted, Compactor
from deltamq.tables.ops.job_runs import (
    IDLE_RECORD_S,
    LastRun,
    RunningRun,
    newest_run,
    read_running,
    read_runs,
    runs_folder,
    seconds_behind,
)
from deltamq.tables.ops.offset_counts import RowCount, count_offsets, finding_of
from deltamq.tables.ops.repairs import RepairKind, find_repair, repair
from deltamq.tables.ops.verification import Finding, Gravity, inspect, verify

__all__ = [
    "IDLE_RECORD_S",
    "RETENTION_PART",
    "TAIL_FILES_MAX",
    "Compacted",
    "CompactionTargets",
    "Compactor",
    "Finding",
    "Gravity",
    "LastRun",
    "RepairKind",
    "RowCount",
    "RunningRun",
    "count_offsets",
    "find_repair",
    "finding_of",
    "inspect",
    "newest_run",
    "plan_compaction",
    "read_running",
    "read_runs",
    "repair",
    "runs_folder",
    "seconds_behind",
    "verify",
]
