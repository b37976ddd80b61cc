"""The columns in which a task of `revive` or `delay` reports on its shard: counts, and when it needs a task again."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

#: Troubles that a task reports for a shard.
TROUBLES_MAX: Final = 3


def shard_counts(*messages: str) -> pa.Schema:
    """Return the columns of a row; `messages` are the counts of a job, times are in milliseconds."""
    return pa.schema(
        [
            pa.field("broker", pa.string()),
            # The revive queue; a broker has one delay log, number 0.
            pa.field("queue", pa.int32()),
            # The shard's records could not be read, or the task was interrupted: it must be looked at again.
            pa.field("held", pa.bool_()),
            *(pa.field(name, pa.int64()) for name in messages),
            *(pa.field(name, pa.int64()) for name in ("late_ms", "behind_ms")),
            # Unless the log grows past this end, nothing is due before `next_ms`; 0: look again, null: nothing ever is.
            pa.field("log_end", pa.int64()),
            pa.field("next_ms", pa.int64()),
            pa.field("troubles", pa.list_(pa.string())),
        ]
    )
