"""What changes of the metadata mean for pull locks: partitions with another owner, queues with another leader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.topics import Topic
from deltamq.mq.names import broker_of
from deltamq.mq.static.logical_queue import queue_name


class LeaderChange(NamedTuple):
    """A logical queue with another leader."""

    topic: Topic
    queue: str
    broker: str
    #: The broker of the leader before; None if that is not known.
    previous: str | None


def remapped(before: Meta, after: Meta) -> Iterator[LeaderChange]:
    """Yield the logical queues whose leader changed, or may have changed before this process knew of the topic."""
    for topic in after.topics.topics.values():
        present = before.topics.topics.get(topic.name)
        if topic.static is None or present is topic:
            continue
        was: Mapping[int, str] = present.leaders() if present is not None and present.id == topic.id else {}
        sources = {move.target: move.source for move in after.moved_keys(topic.id).moves if move.remaps}
        for index, leader in topic.leaders().items():
            source = sources.get(leader)
            if was.get(index) != leader and (index in was or source is not None):
                # Of several remappings at once, the brokers between are not known.
                previous = broker_of(source) if source is not None and source == was.get(index) else None
                yield LeaderChange(topic, queue_name(index), broker_of(leader), previous)


def reallocated(before: Meta, after: Meta) -> Iterator[tuple[str, str]]:
    """Yield topic and partition of each partition whose owner in some group has changed."""
    for name, group in before.online.groups.items():
        now = after.online.group(name)
        if now is group:
            continue
        for topic, allocation in group.topics.items():
            there = now.topics.get(topic)
            if there is allocation:
                continue
            for partition, owner in allocation.owner.items():
                if there is None or there.owner.get(partition) != owner:
                    yield topic, partition
