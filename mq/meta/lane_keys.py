"""The partitions of a topic as a group sees them."""

from __future__ import annotations

from mq.meta.topics import Topic
from mq.names import broker_of
from mq.queue import LaneKey, RetryTopic

__all__ = ["lanes_of"]


def lanes_of(group: str, topic: Topic) -> list[LaneKey]:
    """The topic's own partitions in route order, then a retry partition of each broker."""
    partitions = topic.route.partitions
    brokers = dict.fromkeys(broker_of(partition) for partition in partitions)
    retry = RetryTopic(group, topic.name)
    normal = [LaneKey(topic.id, group, False, partition) for partition in partitions]
    return [*normal, *(LaneKey(topic.id, group, True, retry.partition(broker)) for broker in brokers)]
