"""The start of a group in a topic, which is recorded before the group gets or commits anything there.

    an expansion before it    the group begins in what was added as in the rest, by its settings
    an expansion after it     the group begins at the first message of what was added (SPEC MODEL-4, ROUTE-6)

The start and the expansion are events of the one metadata log, so every process sees them in the same order, whatever
brokers it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.mq.meta.fold import Meta
from deltamq.mq.meta.group import Group, GroupEvent, decide_begin
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.progress import Bounds, StartKind
from deltamq.tables.log.log import PartitionLog


async def begin(meta: HostedMeta, topic: Topic, group: Group) -> None:
    """Record that the group begins in the topic, unless it has before, or the group or topic has ended meanwhile."""
    if group.settings.consume_from.kind is StartKind.FIRST or (group.name, topic.id) in meta.now.groups.began:
        return

    def decide(newest: Meta) -> Sequence[GroupEvent]:
        there, its = newest.topics.topics.get(topic.name), newest.groups.find(group.name)
        if there is None or there.id != topic.id or its is None or its.epoch != group.epoch:
            return ()
        return decide_begin(newest.groups, group.name, {topic.id: len(there.route.partitions)})

    await meta.submit_groups(decide)


async def bounds_at(
    run: Callable[[Callable[[], int]], Awaitable[int]], log: PartitionLog, time_ms: int | None
) -> Bounds:
    """Return the bounds of a partition, and the offset of `time_ms` in it, for `first_position` and `reset_position`.

    `run` runs blocking work on a thread.
    """
    time_offset = None if time_ms is None else await run(partial(log.offset_at, time_ms * 1_000))
    return Bounds(log.min_offset, log.end_offset, time_offset)
