"""The requests of a pop, for a topic and for one lane of it, and the messages that it gets there."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from deltamq.api.wire.request import Ticket
from deltamq.mq.errors import Conflict
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.group_settings import Ordering
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import Attempts, LaneKey, Pop
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.row_filter import MessageFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPopRequest:
    """A checked request for messages of a topic; the group's settings fill in what it leaves out."""

    topic: Topic
    group: Group
    max_messages: int
    invisible_ms: int
    wait_ms: int
    #: None for every message (SPEC CONS-3, CONS-9).
    filter: MessageFilter | None
    #: The partition to pop, or the logical queue of a static topic; None for all.
    partition: str | None
    order: Ordering
    #: Whether to take only messages that are delivered again.
    retries_only: bool = False
    #: The id of a pop in order that may be repeated (SPEC POP-20).
    attempt_id: str | None = None
    #: Where the bytes of its answer are reserved: before messages are taken, since a refused pop must hide none.
    answer: Ticket

    @property
    def attempt(self) -> tuple[str, str, str] | None:
        """What the repetitions of this pop have in common; None if it cannot be repeated."""
        return None if self.attempt_id is None else (self.group.name, self.topic.id, self.attempt_id)

    @property
    def keeps_order(self) -> bool:
        """Whether messages of a logical queue's segment must wait for those of the segments before it."""
        return self.order is not False or self.topic.settings.order_strategy == "strict"


class LanePopRequest(NamedTuple):
    """The part of a pop that one lane answers; its bounds are what the lanes visited before have left.

    A lane reserves the bytes of messages before it moves past them, or raises `Overloaded` (see `reserve`).
    """

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
        """The order of this lane: a retry lane has none, since retried messages have lost their place."""
        return False if self.lane.retry else self.whole.order

    def reserve(self, count: int) -> None:
        """Reserve bytes of the answer; raise `Overloaded` if there is no room, and then take no messages."""
        self.whole.answer.grow(count)

    def pop(self, epoch: int, pop_time_ms: int, revive_queue: int) -> Pop:
        """Return the `Pop` that this pop's checkpoints share."""
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
    """Messages of one lane for a client: rows, and for each row its handle and the number of its delivery."""

    pop: Pop
    rows: pa.Table
    handles: list[str]
    attempts: Attempts
    #: Approximate bytes of the rows.
    nbytes: int
    #: The logical queue in which a client sees the messages; None for those of the partition that was popped.
    shown_in: str | None = None

    @property
    def partition(self) -> str:
        """The partition as a client sees it."""
        return self.shown_in or self.pop.partition


class Empty(enum.Enum):
    """Why a lane has no message for a pop."""

    NOTHING = "there is nothing for the group now"
    PASSED_OVER = "the lane moved on over messages that do not pass the filter"
    HELD_BACK = "keys must wait until the group is done with another partition (SPEC ROUTE-6)"


def mixed_orders() -> Conflict:
    """Return the error for a pop in another order than that of the messages in flight."""
    return Conflict(
        "messages of this partition are in flight that were popped in another order",
        code="order_conflict",
        field="order",
    )
