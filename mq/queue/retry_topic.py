"""System topics of retried and dead messages (SPEC RETRY-1, RETRY-3, POP-11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deltamq.mq.names import broker_of, partition_name
from deltamq.mq.queue.checkpoint import LaneKey

_MARKS: Final = "%DLQ_MARKS%"


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """The messages of one topic that one group retries. The pair is the identity (SPEC POP-11).

    RocketMQ's name `%RETRY%{group}_{topic}` is only for display: group `a_b` of topic `c` and group `a` of topic `b_c`
    share it. No name holds a slash, so `storage_name` is one to one.
    """

    group: str
    topic: str

    @property
    def name(self) -> str:
        return f"%RETRY%{self.group}_{self.topic}"

    @property
    def storage_name(self) -> str:
        """The name from which its folder is made."""
        return f"{self.group}/{self.topic}"

    @classmethod
    def of_storage_name(cls, storage_name: str) -> RetryTopic:
        """Return the retry topic with this `storage_name`."""
        group, _, topic = storage_name.partition("/")
        return cls(group, topic)

    def partition(self, broker: str) -> str:
        """Return the name of its only partition on a broker."""
        return partition_name(self.name, broker)


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """The dead letters of a group, of all its topics (SPEC RETRY-3)."""

    group: str

    @property
    def name(self) -> str:
        return f"%DLQ%{self.group}"

    @property
    def storage_name(self) -> str:
        """The name from which its folder is made."""
        return self.group

    def partition(self, broker: str) -> str:
        """Return the name of its only partition on a broker."""
        return partition_name(self.name, broker)

    def marks(self, broker: str) -> str:
        """Return the name of the partition of the marks of these dead letters (SPEC RETRY-8)."""
        return partition_name(f"{_MARKS}{self.group}", broker)


def holds_marks(partition: str) -> bool:
    """Whether a partition beside dead letters holds their marks."""
    return partition.startswith(_MARKS)


def retry_lane(lane: LaneKey, topic: str) -> LaneKey:
    """Return the lane of the group's retried messages on the broker of `lane`."""
    broker = broker_of(lane.partition)
    return lane._replace(retry=True, partition=RetryTopic(lane.group, topic).partition(broker))
