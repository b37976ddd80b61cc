"""What changes of the metadata mean for pull locks: partitions with another owner, queues with another leader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mq.meta import Meta, Topic
from mq.names import broker_of
from mq.static import queue_name

__all__ = ["reallocated", "remapped"]


def remapped(before: Meta, after: Meta) -> Iterator[tuple[Topic, str, str]]:
    """Yield topic, name and new broker of each logical queue whose leader changed, as far as one can tell."""
    for topic in after.topics.topics.values():
        present = before.topics.topics.get(topic.name)
        if topic.static is None or present is topic:
            continue
        was: Mapping[int, str] = present.leaders() if present is not None and present.id == topic.id else {}
        # Of a topic that is new here, earlier leaders are not known.
        arrived = {move.target for move in after.moved_keys(topic.id).moves if move.remaps}
        for index, leader in topic.leaders().items():
            if leader != was.get(index, leader) or (not was and leader in arrived):
                yield topic, queue_name(index), broker_of(leader)


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
