"""Resets of a group's offsets: the lanes of a reset, and its events, for service and jobs (SPEC POP-18)."""

from __future__ import annotations

from collections.abc import Mapping

from deltamq.mq.errors import NotFound
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import GroupEvent, decide_begin, decide_reset_offsets
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import CONSUMER_OFFSETS_ID, broker_of, split_member
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.retry import RetryTopic


def decide_reset(meta: Meta, group: str, topic: Topic, offsets: Mapping[LaneKey, int]) -> tuple[GroupEvent, ...]:
    """Return the events that put `group` at `offsets` of lanes in this life of `topic`, in a new epoch.

    The group has then begun in the topic: it gets partitions that are added later from their first message on.

    Raises
    ------
    NotFound
        `topic_not_found`, also when the topic was created again; `group_not_found`.
    """
    if topic.id != CONSUMER_OFFSETS_ID and meta.topics.topic(topic.name).id != topic.id:
        raise NotFound(f"topic {topic.name} was deleted", code="topic_not_found", field="topic")
    begun = decide_begin(meta.groups, group, {topic.id: len(topic.route.partitions)})
    return (*begun, *decide_reset_offsets(meta.groups, group, topic.name, offsets))


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
