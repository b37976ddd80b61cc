"""Messages whose invisible time is over and which wait to be delivered again: their group is not done with them
(SPEC POP-11).

The revive job, another process, appends them to the retry topic; this module looks for the copies. So a group's lag and
its number of messages in flight are never both zero while one of its messages is on its way to the retry topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.redelivered import LeasedMessages, redelivered
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.lane import Held


async def settle_overdue(lanes: Lanes, keys: Iterable[LaneKey] | None = None) -> None:
    """Settle overdue messages that were delivered again or that retention took, in these lanes or in all open ones."""
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
    asked = [LeasedMessages(one.checkpoint().key, one.pop.topic, one.span, one.full & ~one.spent) for one in waiting]
    again = await redelivered(lanes, asked)
    for held, bits in zip(waiting, again, strict=True):
        if lanes.buffer.lane(held.lane.key) is held.lane:
            lanes.buffer.redelivered(held, bits | _gone(lanes, held))


def _gone(lanes: Lanes, held: Held) -> int:
    """Return the bits of messages that retention has taken: their loss is on record, and they do not come again."""
    try:
        log = lanes.partition_of(held.lane.key, held.pop.topic).log
    except DeltaMQError:
        return held.full  # the topic or the group has ended
    return 0 if log is None else held.span.below(log.min_offset)
