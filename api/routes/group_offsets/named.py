"""The partitions that a request about a group's offsets names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deltamq.api.host.hosted_topic import Topics
from deltamq.mq.errors import Conflict, NotFound
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.reset import lanes_of
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Bounds
from deltamq.mq.static.logical_queue import LogicalQueue

#: The bounds of a partition that does not exist yet.
EMPTY: Final = Bounds(0, 0)


def check_not_broadcast(group: Group) -> None:
    """Refuse a broadcast group: each of its clients has offsets of its own (SPEC CONS-7)."""
    if group.is_broadcast:
        raise Conflict(
            f"group {group.name} is a broadcast group: name one of its clients, {group.name}@CLIENT",
            code="group_broadcast",
            field="group",
        )


def named(
    topics: Topics, group: str, topic: Topic, wanted: Mapping[str, int], field: str, *, from_peer: bool = False
) -> tuple[dict[LogicalQueue, int], dict[LaneKey, int]]:
    """Return what a request names: logical queues of a static topic, and lanes, which may be retry partitions.

    Another process (`from_peer`) names the lanes of single segments, too.
    """
    queues = topics.queues_of(topic)
    lanes = {lane.partition: lane for lane in lanes_of(group, topic) if queues is None or from_peer or lane.retry}
    in_queues: dict[LogicalQueue, int] = {}
    in_lanes: dict[LaneKey, int] = {}
    for partition, offset in wanted.items():
        lane = lanes.get(partition)
        if lane is not None:
            in_lanes[lane] = offset
        elif queues is not None:
            in_queues[queues.require(partition, topic.name, f"{field}.{partition}")] = offset
        else:
            raise NotFound(
                f"{field}: topic {topic.name} has no partition {partition!r}",
                code="partition_not_found",
                field=f"{field}.{partition}",
            )
    return in_queues, in_lanes
