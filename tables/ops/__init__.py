"""What an operator runs over stored tables: verification, counting, repair."""

from __future__ import annotations

from tables.ops.offset_counts import Counted, count_offsets, finding_of
from tables.ops.repairs import find_repair, repair
from tables.ops.verification import Finding, Gravity, inspect, verify

__all__ = [
    "Counted",
    "Finding",
    "Gravity",
    "count_offsets",
    "find_repair",
    "finding_of",
    "inspect",
    "repair",
    "verify",
]
