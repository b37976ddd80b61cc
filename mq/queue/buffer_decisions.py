"""Decisions of the in-memory match that the caller carries out, and the limits that they depend on (SPEC POP-13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from deltamq.mq.limits import (
    ACK_SETTLE_MS,
    BUCKET_MS,
    BUFFER_CHECKPOINTS_MAX,
    PARTITION_CHECKPOINTS_MAX,
    STAY_BUFFER_MS,
    STAY_BUFFER_TIMEOUT_MS,
    STRAIGHT_TO_LOG_MS,
)
from deltamq.mq.queue.checkpoint import Checkpoint, LaneKey
from deltamq.mq.queue.lane import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSettings:
    """The limits of SPEC POP-13."""

    #: If false, every checkpoint and acknowledgement is stored.
    enabled: bool = True
    stay_ms: int = STAY_BUFFER_MS
    stay_timeout_ms: int = STAY_BUFFER_TIMEOUT_MS
    straight_to_log_ms: int = STRAIGHT_TO_LOG_MS
    checkpoints_max: int = BUFFER_CHECKPOINTS_MAX
    partition_checkpoints_max: int = PARTITION_CHECKPOINTS_MAX
    #: Time after the revive time in which an acknowledgement may still be stored; the revive job waits that long.
    settle_ms: int = ACK_SETTLE_MS

    def __post_init__(self) -> None:
        if self.stay_timeout_ms + BUCKET_MS > self.straight_to_log_ms:
            raise ValueError("straight_to_log_ms is too short: a checkpoint must be able to leave memory in time")


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Append this record to the revive log; then call `stored`, or `store_failed` if it certainly was not stored.

    While the outcome is unknown, repeat the append: a record that is in the log twice counts once.
    """

    held: Held
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Change:
    """Append the checkpoint that takes over one message; then call `changed`, or `change_failed`."""

    held: Held
    bit: int
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """Commit the group's offset in the partition; a later commit of the same lane supersedes an earlier one."""

    lane: LaneKey
    epoch: int
    offset: int


class AckResult(NamedTuple):
    """The result of an acknowledgement: the bits that are in neither field are acknowledged."""

    #: Bits to append as an `Ack` record; then call `ack_stored`, or `ack_failed`.
    store: int
    #: Bits to answer with `handle_expired`.
    refused: int
    held: Held | None
