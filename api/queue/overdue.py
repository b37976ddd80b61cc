"""What waits to be delivered again because its time is over: until it is, its group is not done with it (SPEC POP-11).

The revive job, another process, delivers it; here its copies are looked for. So a group's lag and what it has in flight
are never both nothing while a message of it is on its way to the retry topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from api.queue.lanes import Lanes
from api.queue.redelivered import Asked, given_again
from mq.errors import DeltaMQError
from mq.queue import Held, LaneKey

__all__ = ["settle_overdue"]


async def settle_overdue(lanes: Lanes, keys: Iterable[LaneKey] | None = None) -> None:
    """See what was delivered again, and what is gone; of these lanes, or of all that are open."""
    if keys is None:
        known = lanes.buffer.lanes
    else:
        keys = list(keys)
        for key in keys:
            lanes.recall(key)
        known = [lane for key in keys if (lane := lanes.buffer.lane(key)) is not None]
    waiting = [held for lane in known for held in lane.overdue.values()]
    if not waiting:
        return
    asked = [Asked(one.checkpoint().key, one.pop.topic, one.span, one.full & ~one.spent) for one in waiting]
    again = await given_again(lanes, asked)
    for held, bits in zip(waiting, again, strict=True):
        if lanes.buffer.lane(held.lane.key) is held.lane:
            lanes.buffer.given_again(held, bits | _gone(lanes, held))


def _gone(lanes: Lanes, held: Held) -> int:
    """The bits of messages that retention has taken: nobody gets them again, and that is on record."""
    try:
        log = lanes.partition_of(held.lane.key, held.pop.topic).log
    except DeltaMQError:
        return held.full  # the topic or the group has ended
    return 0 if log is None else held.span.below(log.min_offset)
