"""Occasional work on stored tables: compaction, verification, counting, repair."""

from __future__ import annotations

from tables.ops.compaction_plan import RETENTION_PART, TAIL_FILES_MAX, CompactionTargets, plan_compaction
from tables.ops.compactor import Compacted, Compactor
from tables.ops.offset_counts import RowCount, count_offsets, finding_of
from tables.ops.repairs import find_repair, repair
from tables.ops.verification import Finding, Gravity, inspect, verify

__all__ = [
    "RETENTION_PART",
    "TAIL_FILES_MAX",
    "Compacted",
    "CompactionTargets",
    "Compactor",
    "Finding",
    "Gravity",
    "RowCount",
    "count_offsets",
    "find_repair",
    "finding_of",
    "inspect",
    "plan_compaction",
    "repair",
    "verify",
]
