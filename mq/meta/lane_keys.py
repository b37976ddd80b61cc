"""The lanes of a group in a topic."""

from __future__ import annotations

from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of, split_member
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.retry_topic import RetryTopic


def lanes_of(group: str, topic: Topic) -> list[LaneKey]:
    """Return the lanes of a group: the topic's partitions in route order, then the retry partition of each broker.

    A client of a broadcast group has no retries: what it could not handle is not delivered again (SPEC CONS-7).
    """
    partitions = topic.route.partitions
    brokers = dict.fromkeys(broker_of(partition) for partition in partitions)
    retry = RetryTopic(group, topic.name)
    normal = [LaneKey(topic.id, group, False, partition) for partition in partitions]
    if split_member(group) is not None:
        return normal
    return [*normal, *(LaneKey(topic.id, group, True, retry.partition(broker)) for broker in brokers)]
