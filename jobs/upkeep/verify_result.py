"""A row of the state table `state/verify_results`: the result for one partition."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa

from deltamq.tables.delta.snapshot import Snapshot
from deltamq.tables.ops.offset_counts import RowCount, finding_of
from deltamq.tables.paths import PartitionRef
from deltamq.tables.schema import TIME

_FINDING_LENGTH_MAX: Final = 500

RESULT_ROW: Final = pa.schema(
    [
        ("space", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.string()),
        ("reader", pa.string()),
        ("min_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("messages", pa.int64()),
        ("distinct_offsets", pa.int64()),
        ("ok", pa.bool_()),
        ("finding", pa.string()),
        ("verified_at", TIME),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """The result for a partition; an empty `finding` means that it is sound."""

    ref: PartitionRef
    snapshot: Snapshot | None = None
    counted: RowCount | None = None
    finding: str = ""

    @classmethod
    def of(cls, ref: PartitionRef, snapshot: Snapshot, counted: RowCount) -> VerifyResult:
        """Return the result of a count."""
        finding = finding_of(snapshot.min_offset, snapshot.end_offset, counted)
        return cls(ref=ref, snapshot=snapshot, counted=counted, finding=finding)

    def row(self, reader: str, now: datetime) -> tuple[object, ...]:
        """Return the result as a row of the state table."""
        low, end = (self.snapshot.min_offset, self.snapshot.end_offset) if self.snapshot else (None, None)
        messages, distinct = (self.counted.messages, self.counted.distinct) if self.counted else (None, None)
        where = (self.ref.space.value, self.ref.topic, self.ref.name, reader)
        return (*where, low, end, messages, distinct, not self.finding, self.finding or None, now)


def short(text: str) -> str:
    """Cut a finding to its greatest length."""
    return text if len(text) <= _FINDING_LENGTH_MAX else text[: _FINDING_LENGTH_MAX - 3] + "..."
