"""What the in-memory match decides and the caller carries out, and the limits by which it decides (SPEC POP-13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mq.queue.checkpoint import Checkpoint, LaneKey
from mq.queue.lane import Held
from mq.queue_limits import (
    ACK_SETTLE_MS,
    BUCKET_MS,
    BUFFER_CHECKPOINTS_MAX,
    PARTITION_CHECKPOINTS_MAX,
    STAY_BUFFER_MS,
    STAY_BUFFER_TIMEOUT_MS,
    STRAIGHT_TO_LOG_MS,
)

__all__ = ["AckResult", "BufferSettings", "Change", "CommitOffset", "StoreCheckpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSettings:
    """The limits of SPEC POP-13."""

    #: Off: every checkpoint and acknowledgement is stored.
    enabled: bool = True
    stay_ms: int = STAY_BUFFER_MS
    stay_timeout_ms: int = STAY_BUFFER_TIMEOUT_MS
    straight_to_log_ms: int = STRAIGHT_TO_LOG_MS
    checkpoints_max: int = BUFFER_CHECKPOINTS_MAX
    partition_checkpoints_max: int = PARTITION_CHECKPOINTS_MAX
    #: An acknowledgement may be stored so long after the revive time; the revive job waits for it.
    settle_ms: int = ACK_SETTLE_MS

    def __post_init__(self) -> None:
        if self.stay_timeout_ms + BUCKET_MS > self.straight_to_log_ms:
            raise ValueError("a checkpoint that enters the memory must be able to leave it in time")


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Append this record to the revive log; then call `stored`, or `store_failed` when it certainly is not there.

    While nobody knows whether it is there, repeat the append: a record that stands twice in the log counts once.
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
    """The group's offset in the partition is now this; commits of one lane may be left out for later ones."""

    lane: LaneKey
    epoch: int
    offset: int


class AckResult(NamedTuple):
    """What became of an acknowledgement: the bits that are in neither field are acknowledged."""

    #: Append an `Ack` record with these bits; then call `ack_stored`, or `ack_failed`.
    store: int
    #: Answer `handle_expired` for these.
    refused: int
    held: Held | None
