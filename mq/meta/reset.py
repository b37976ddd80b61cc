"""Resets of a group's offsets: the events of a reset, for the service and for jobs (SPEC POP-18)."""

from __future__ import annotations

from collections.abc import Mapping

from deltamq.mq.errors import NotFound
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import GroupEvent, decide_begin, decide_reset_offsets
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import LaneKey


def decide_reset(meta: Meta, group: str, topic: Topic, offsets: Mapping[LaneKey, int]) -> tuple[GroupEvent, ...]:
    """Return the events that put `group` at `offsets` of lanes in this life of `topic`, in a new epoch.

    The group has then begun in the topic: it gets partitions that are added later from their first message on.

    Raises
    ------
    NotFound
        `topic_not_found`, also when the topic was created again; `group_not_found`.
    """
    if meta.topics.topic(topic.name).id != topic.id:
        raise NotFound(f"topic {topic.name} was deleted", code="topic_not_found", field="topic")
    begun = decide_begin(meta.groups, group, {topic.id: len(topic.route.partitions)})
    return (*begun, *decide_reset_offsets(meta.groups, group, topic.name, offsets))
