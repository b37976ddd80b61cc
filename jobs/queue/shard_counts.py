"""What a task of `revive` or `delay` tells of its shard: a row of counts, and when the shard needs a task again."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["TROUBLES_MAX", "shard_counts"]

#: Troubles that a shard tells of.
TROUBLES_MAX: Final = 3


def shard_counts(*messages: str) -> pa.Schema:
    """Return the columns of a row; `messages` are what a job counts, times are milliseconds."""
    return pa.schema(
        [
            pa.field("broker", pa.string()),
            # The revive queue; a broker has one delay log, number 0.
            pa.field("queue", pa.int32()),
            # Nobody knows what the shard's records say, or how far the task came: it must be looked at again.
            pa.field("held", pa.bool_()),
            *(pa.field(name, pa.int64()) for name in messages),
            *(pa.field(name, pa.int64()) for name in ("late_ms", "behind_ms")),
            # As long as the log ends here, nothing is due before that time; 0: look again, null: nothing will be.
            pa.field("log_end", pa.int64()),
            pa.field("next_ms", pa.int64()),
            pa.field("troubles", pa.list_(pa.string())),
        ]
    )
