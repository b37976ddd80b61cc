"""What a pop of one lane asks for, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from mq.errors import Conflict
from mq.meta import Blocked, Group, Ordering, Topic
from mq.queue import Attempts, LaneKey, Pop
from tables.log import PartitionLog

__all__ = ["Taken", "Wish", "mixed_orders"]


@dataclass(slots=True, kw_only=True)
class Wish:
    """A pop of one lane."""

    topic: Topic
    group: Group
    lane: LaneKey
    log: PartitionLog
    order: Ordering
    max_messages: int
    max_bytes: int
    invisible_ms: int
    #: None takes every message (SPEC CONS-3).
    tags: pa.Array | None
    #: Set by the pop: it went on over messages that do not pass the filter.
    moved: bool = False
    #: Logical partitions whose messages the group may not have here yet (SPEC ROUTE-6); None when there are none.
    blocked: Blocked | None = None

    def pop(self, epoch: int, pop_time_ms: int, revive_queue: int) -> Pop:
        """What the checkpoints of this pop have in common."""
        lane = self.lane
        return Pop(
            topic=self.topic.name,
            topic_id=lane.topic_id,
            group=lane.group,
            epoch=epoch,
            partition=lane.partition,
            retry=lane.retry,
            pop_time_ms=pop_time_ms,
            invisible_ms=self.invisible_ms,
            revive_queue=revive_queue,
        )


class Taken(NamedTuple):
    """Messages of one lane for a client: rows, and for each its handle and which delivery it is."""

    pop: Pop
    rows: pa.Table
    handles: list[str]
    attempts: Attempts
    #: What the rows weigh, about.
    nbytes: int


def mixed_orders() -> Conflict:
    """The answer to a pop in another order than that of the messages in flight."""
    return Conflict(
        "messages of this partition are in flight that were popped in another order",
        code="order_conflict",
        field="order",
    )
