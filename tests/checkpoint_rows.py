"""Rows of `state/pop_checkpoints`, as the merge job writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from deltamq.mq.queue.checkpoint import CheckpointKey
from deltamq.mq.queue.revive_log import CheckpointState
from deltamq.tables.state.rows import CHECKPOINT_COLUMNS
from deltamq.tables.state.schema import POP_CHECKPOINTS_SCHEMA

__all__ = ["rows_of_states"]

_SCHEMA = pa.schema([POP_CHECKPOINTS_SCHEMA.field(name) for name in CHECKPOINT_COLUMNS])


def rows_of_states(states: Mapping[CheckpointKey, CheckpointState]) -> pa.Table:
    """Return a row for each state."""
    return pa.Table.from_pylist([_row(key, state) for key, state in states.items()], schema=_SCHEMA)


def _row(key: CheckpointKey, state: CheckpointState) -> dict[str, object]:
    row: dict[str, Any] = {
        **key._asdict(),
        "acked": state.acked,
        "replaced": state.replaced,
        "done": state.done,
        "revive_time": state.revive_time_ms * 1_000,
    }
    row["pop_time"] = row.pop("pop_time_ms") * 1_000
    checkpoint = state.checkpoint
    if checkpoint is not None:
        span, pop = checkpoint.span, checkpoint.pop
        attempts = [span.attempts] * span.num if isinstance(span.attempts, int) else list(span.attempts)
        row |= {
            "topic": pop.topic,
            "num": span.num,
            "diffs": None if span.diffs is None else list(span.diffs),
            "attempts": attempts,
            "invisible_ms": pop.invisible_ms,
            "dead_reason": checkpoint.dead_reason,
            "given_back": pop.given_back,
            "revive_queue": pop.revive_queue,
            "revive_offset": checkpoint.revive_offset,
        }
    return row
