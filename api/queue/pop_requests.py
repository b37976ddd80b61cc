"""What a pop asks for, of a topic and of one lane of it, and what it gets there."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from mq.errors import Conflict
from mq.meta import Group, Ordering, Topic
from mq.queue import Attempts, LaneKey, Pop
from tables.log import PartitionLog

__all__ = ["Empty", "LanePopRequest", "Taken", "TopicPopRequest", "mixed_orders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPopRequest:
    """A checked request for messages of a topic, with the group's settings where it has none of its own."""

    topic: Topic
    group: Group
    max_messages: int
    invisible_ms: int
    wait_ms: int
    #: None takes every message (SPEC CONS-3).
    tags: pa.Array | None
    #: None takes from all.
    partition: str | None
    order: Ordering
    #: Nothing but messages that are delivered again.
    retries_only: bool = False


class LanePopRequest(NamedTuple):
    """The part of it that one lane answers: as many messages as the lanes before left room for."""

    whole: TopicPopRequest
    lane: LaneKey
    log: PartitionLog
    max_messages: int
    max_bytes: int

    @property
    def topic(self) -> Topic:
        return self.whole.topic

    @property
    def group(self) -> Group:
        return self.whole.group

    @property
    def order(self) -> Ordering:
        """Retried messages have lost their place: whatever the order, they come without one."""
        return False if self.lane.retry else self.whole.order

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
            invisible_ms=self.whole.invisible_ms,
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


class Empty(enum.Enum):
    """Why a lane has no message for a pop."""

    NOTHING = "nothing is there for the group now"
    PASSED_OVER = "the lane moved on over messages that do not pass the filter"
    HELD_BACK = "keys must wait until the group is done with another partition (SPEC ROUTE-6)"


def mixed_orders() -> Conflict:
    """The answer to a pop in another order than that of the messages in flight."""
    return Conflict(
        "messages of this partition are in flight that were popped in another order",
        code="order_conflict",
        field="order",
    )
