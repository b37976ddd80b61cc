"""What administrators did and what was refused, as records for `sys/audit` (SPEC SEC-40 to SEC-42)."""

from __future__ import annotations

from deltamq.mq.audit.records import (
    ANONYMOUS,
    BY_FILES,
    ActBegun,
    ActEnded,
    AuditRecord,
    Outcome,
    RefusalCount,
    record_from_json,
    record_to_json,
)
from deltamq.mq.audit.refusals import Refusals
from deltamq.mq.audit.shown import MetadataChange, bounded, outcome_of, states_of

__all__ = [
    "ANONYMOUS",
    "BY_FILES",
    "ActBegun",
    "ActEnded",
    "AuditRecord",
    "MetadataChange",
    "Outcome",
    "RefusalCount",
    "Refusals",
    "bounded",
    "outcome_of",
    "record_from_json",
    "record_to_json",
    "states_of",
]
