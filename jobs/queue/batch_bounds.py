"""How much `revive` and `delay` do at a time; no settings: nobody has a reason for other values but a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq.limits import MIB
from mq.queue_limits import JOB_BATCH_MESSAGES_MAX, REVIVE_QUEUES

__all__ = ["BOUNDS", "BatchBounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBounds:
    """Bounds of the memory that a run takes."""

    #: Messages of one batch.
    messages: int = JOB_BATCH_MESSAGES_MAX
    #: The same of a task that has one queue of a broker. All queues of a broker may append to one destination at once:
    #: together they have as many messages under way as one run of the local engine.
    queue_messages: int = JOB_BATCH_MESSAGES_MAX // REVIVE_QUEUES
    #: Checkpoints of a task that are Python objects at a time.
    checkpoints: int = 8_192
    #: Bytes of rows in memory before they are sent: a storm passes through in pieces of this size.
    outbox_bytes: int = 32 * MIB


#: Those of every run.
BOUNDS: Final = BatchBounds()
