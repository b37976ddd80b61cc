"""How much `revive` and `delay` process at a time; not settings, since only tests need other values."""

from __future__ import annotations

from typing import Final

import msgspec

from deltamq.mq.limits import JOB_BATCH_MESSAGES_MAX, MIB, REVIVE_QUEUES


class BatchBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the memory of a run."""

    #: Messages in one batch.
    messages: int = JOB_BATCH_MESSAGES_MAX
    #: Messages in one batch of a task that processes one queue of a broker. All queues of a broker may append to one
    #: destination at once: together they have as many messages under way as one run of the local engine.
    queue_messages: int = JOB_BATCH_MESSAGES_MAX // REVIVE_QUEUES
    #: Checkpoints that a task holds as Python objects at a time.
    checkpoints: int = 8_192
    #: Bytes of rows in memory before they are sent; a burst of due messages is sent in pieces of this size.
    outbox_bytes: int = 32 * MIB


#: The bounds of every run outside tests.
BOUNDS: Final = BatchBounds()
