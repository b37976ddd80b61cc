"""Where retried and dead messages lie: the system's own topics, one for each group (SPEC RETRY-1, RETRY-3, POP-11)."""

from __future__ import annotations

from dataclasses import dataclass

from mq.names import broker_of, partition_name
from mq.queue.checkpoint import LaneKey

__all__ = ["DeadLetterTopic", "RetryTopic", "retry_lane"]


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """Messages of one topic that one group gets again. The pair is its identity (SPEC POP-11, R70).

    The source's name `%RETRY%{group}_{topic}` is for people: group `a_b` of topic `c` and group `a` of topic `b_c`
    share it. No name holds a slash, so `storage_name` is one to one.
    """

    group: str
    topic: str

    @property
    def name(self) -> str:
        return f"%RETRY%{self.group}_{self.topic}"

    @property
    def storage_name(self) -> str:
        """What names its folder."""
        return f"{self.group}/{self.topic}"

    @classmethod
    def of_storage_name(cls, storage_name: str) -> RetryTopic:
        """The inverse of `storage_name`."""
        group, _, topic = storage_name.partition("/")
        return cls(group, topic)

    def partition(self, broker: str) -> str:
        """Its only partition on a broker."""
        return partition_name(self.name, broker)


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Messages that a group gave up, of all its topics (SPEC RETRY-3)."""

    group: str

    @property
    def name(self) -> str:
        return f"%DLQ%{self.group}"

    @property
    def storage_name(self) -> str:
        """What names its folder."""
        return self.group

    def partition(self, broker: str) -> str:
        """Its only partition on a broker."""
        return partition_name(self.name, broker)


def retry_lane(lane: LaneKey, topic: str) -> LaneKey:
    """The lane of the group's retried messages on the broker of `lane`."""
    broker = broker_of(lane.partition)
    return lane._replace(retry=True, partition=RetryTopic(lane.group, topic).partition(broker))
