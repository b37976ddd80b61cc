"""Which messages the revive job has already delivered again: of a lease, and of overdue ones.

The job, another process, decides by its own clock that a lease is over, and its clock may be ahead of ours. Its appends
count. So after each record that acknowledges or renews a stored lease near its end, this module looks for them, and the
call is not answered with success for a message that another client may have by now (SPEC POP-8, POP-9).

The job appends overdue messages to the retry topic, and their group is not done with them until the copies are there:
its lag and its number of messages in flight are never both zero while one of its messages is on its way (SPEC POP-11).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from deltamq.api.log.partition import Partition
from deltamq.api.queue.lanes import Lanes
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import CheckpointKey, LaneKey, Span
from deltamq.mq.queue.lane import Held
from deltamq.mq.queue.retry import retry_lane
from deltamq.mq.queue.revive import stored_bits
from deltamq.tables.log.log import PartitionLog

log = logging.getLogger("deltamq.api")

#: Seconds between two looks at a lane of which something has come again, and at one of which nothing comes.
_SOON_S: Final = 0.1
_SELDOM_S: Final = 2.0


class LeasedMessages(NamedTuple):
    """Messages of a lease, named by `bits` of its span."""

    key: CheckpointKey
    topic: str
    span: Span
    bits: int


async def redelivered(lanes: Lanes, asked: Sequence[LeasedMessages]) -> list[int]:
    """Return for each of `asked` the bits of messages that were delivered again, or are dead letters."""
    lanes_of = list(dict.fromkeys(map(_retry_lane, asked)))
    opened = await asyncio.gather(*(_destinations(lanes, lane, topic) for lane, topic in lanes_of))
    logs = dict(zip(lanes_of, opened, strict=True))
    return [_bits(messages, logs[_retry_lane(messages)]) for messages in asked]


def _retry_lane(messages: LeasedMessages) -> tuple[LaneKey, str]:
    return retry_lane(messages.key.lane, messages.topic), messages.topic


async def _destinations(lanes: Lanes, lane: LaneKey, topic: str) -> list[PartitionLog]:
    """Return the partitions to which the job appends, refreshed, without those that cannot be read."""
    try:
        broker = broker_of(lane.partition)
        partitions = [lanes.partition_of(lane, topic), lanes.logs.dead(lanes.groups.group(lane.group), broker)]
    except DeltaMQError:
        return []  # the topic or the group has ended meanwhile
    return [opened for opened in await asyncio.gather(*map(_look, partitions)) if opened is not None]


async def _look(partition: Partition) -> PartitionLog | None:
    try:
        return await partition.look()
    except DeltaMQError as error:
        # Nothing is delivered from this partition either, and the call's record is stored: do not refuse the call.
        log.warning("event=destination_not_read partition=%s code=%s", partition.name, error.code)
        return None


def _bits(messages: LeasedMessages, logs: Sequence[PartitionLog]) -> int:
    if not logs:
        return 0

    def sequences(producer: str) -> list[int]:
        known = [requests for log in logs if (requests := log.known_producer(producer)) is not None]
        return [seq for requests in known for seq in requests.parts]

    return stored_bits(messages.key, messages.span, messages.bits, sequences)


class OverdueLooks:
    """Says which lanes with overdue messages to look at now: each ever more seldom, while nothing of it comes again.

    A look reads two partitions. While no job revives, a service has ever more overdue messages, and nothing to see.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._looks: dict[LaneKey, _Look] = {}

    def due(self, lanes: Lanes) -> list[LaneKey]:
        """Return the lanes that are to be looked at; the caller does it."""
        now_s, looks, due = self._now_s(), dict[LaneKey, _Look](), list[LaneKey]()
        for lane in lanes.buffer.lanes:
            count = len(lane.overdue)
            if not count:
                continue
            before = self._looks.get(lane.key)
            if before is None or count < before.overdue:
                pause_s = _SOON_S
            elif now_s < before.at_s:
                looks[lane.key] = before
                continue
            else:
                pause_s = min(2 * before.pause_s, _SELDOM_S)
            looks[lane.key] = _Look(count, now_s + pause_s, pause_s)
            due.append(lane.key)
        self._looks = looks
        return due


class _Look(NamedTuple):
    """The last look at a lane: how much was overdue, when it is looked at again, and after which pause."""

    overdue: int
    at_s: float
    pause_s: float


async def settle_overdue(lanes: Lanes, keys: Iterable[LaneKey]) -> None:
    """Settle overdue messages of these lanes that were delivered again or that retention took."""
    keys = list(keys)
    for key in keys:
        lanes.recall(key)
    known = [lane for key in keys if (lane := lanes.buffer.lane(key)) is not None]
    waiting = [held for lane in known for held in lane.overdue.values()]
    if not waiting:
        return
    asked = [
        LeasedMessages(held.checkpoint().key, held.pop.topic, held.span, held.full & ~held.spent) for held in waiting
    ]
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
