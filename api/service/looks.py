"""Looks for the gauges at what memory does not know: tables of other processes, and files (SPEC LOOK-11).

    each EVERY_S, on threads:   partitions that no call has opened, or that jobs or Spark may have appended to
                                append times of oldest messages, dead letters, delayed messages

A round takes a bounded number of looks and goes on where the last one stopped: with thousands of groups, what it finds
is some minutes old. On an object store a round that has found nothing new is followed by a small one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from deltamq.api.log.partition import Partitions
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.waiting_list import WaitingList
from deltamq.api.sending.letters import DeadLetterLogs
from deltamq.api.service.background import Background
from deltamq.api.service.gauges import Gauges, LaneAt
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.mq.meta.group import Group
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.refs import dead_ref

log = logging.getLogger("deltamq.api")

T = TypeVar("T")

EVERY_S: Final = 15.0
#: Seconds from the start to the first round.
_FIRST_S: Final = 1.0
#: Most looks of each kind in one round.
_LOOKS: Final = 400
#: The same for an object store, where a look is a request that takes long and is paid for.
_FAR_EVERY_S: Final = 60.0
_FAR_LOOKS: Final = 50
#: The same after a round that found nothing new.
_QUIET_EVERY_S: Final = 300.0
_QUIET_LOOKS: Final = 2
#: A partition that a call or a look has refreshed within this time needs no other.
_FRESH_S: Final = 10.0


class Looks(Background):
    """Looks from `start` to `stop`; used on the event loop."""

    def __init__(
        self,
        gauges: Gauges,
        lanes: Lanes,
        partitions: Partitions,
        dead_letters: DeadLetterLogs,
        waiting: WaitingList,
    ) -> None:
        self._gauges = gauges
        self._lanes = lanes
        self._partitions = partitions
        self._dead_letters = dead_letters
        self._waiting = waiting
        self._is_here = partitions.warehouse.folder is not None
        self._every_s, self._looks_max = (EVERY_S, _LOOKS) if self._is_here else (_FAR_EVERY_S, _FAR_LOOKS)
        self._looks = self._looks_max
        #: Whether the round under way has found something new.
        self._has_news = False
        #: Where the next round goes on.
        self._lane_turn = self._group_turn = 0

    async def _run(self) -> None:
        wait_s = _FIRST_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self.round()
            except Exception as error:
                log.error("event=look_failed kind=%s", type(error).__name__, exc_info=error)
            wait_s = self._every_s if self._is_here or self._has_news else _QUIET_EVERY_S

    async def round(self) -> None:
        """Look once at each kind."""
        self._has_news = False
        brokers = sorted(self._gauges.serving() - {META_ROLE})
        for broker in brokers:
            await _guarded(self._lanes.follow_streams(broker))
            await _guarded(self._look_at_delayed(broker))
        await self._look_at_lanes()
        await self._look_at_dead_letters(brokers)
        await self._gauges.now(fresh_s=0.0)  # says which append times are wanted
        for lane, offset in self._gauges.seen.wanted[: self._looks]:
            await _guarded(self._look_at_time(lane, offset))
        self._looks = self._looks_max if self._is_here or self._has_news else _QUIET_LOOKS

    async def _look_at_delayed(self, broker: str) -> None:
        now_ms = self._gauges.now_ms()
        count, due_ms = await self._waiting.overdue(broker, now_ms)
        late_ms = 0 if due_ms is None else now_ms - due_ms
        self._gauges.seen.delayed[broker] = count, late_ms / 1_000

    async def _look_at_lanes(self) -> None:
        """Open or refresh the partitions of lanes: first those of topics that are not open."""
        since_s, stopped = self._partitions.loop.time() - _FRESH_S, self._partitions.warehouse.stopped
        closed: list[LaneAt] = []
        others: list[LaneAt] = []
        async for lane in self._gauges.lanes():
            if lane.log(self._partitions) is not None and lane.partition is not None:
                if lane.partition.refreshed_at < since_s:
                    others.append(lane)
            elif lane.key.retry:
                others.append(lane)
            elif lane.ref not in stopped:
                closed.append(lane)
        self._lane_turn, turn = _turn(others, self._lane_turn, self._looks)
        looked = [*closed[: self._looks], *turn]
        there = await self._existing(lane.ref for lane in looked)
        for lane in (lane for lane in looked if lane.ref in there):
            before = lane.log(self._partitions)
            ended = -1 if before is None else before.end_offset
            await _guarded(self._lanes.bounds(lane.key, lane.reading[1]))
            after = lane.log(self._partitions)
            self._has_news |= after is not None and after.end_offset != ended

    async def _look_at_time(self, lane: LaneAt, offset: int) -> None:
        opened = await self._lanes.partition_of(lane.key, lane.reading[1]).opened()
        append_us = await self._partitions.run(partial(opened.append_us_at, offset))
        if append_us is not None:
            lane.seen = offset, append_us

    async def _look_at_dead_letters(self, brokers: Sequence[str]) -> None:
        seen, groups = self._gauges.seen.dead_letters, self._gauges.meta.now.groups.groups
        for name, epoch, broker in list(seen):
            if broker not in brokers or name not in groups or groups[name].epoch != epoch:
                del seen[name, epoch, broker]
        everywhere = [(group, broker) for group in groups.values() for broker in brokers]
        self._group_turn, turn = _turn(everywhere, self._group_turn, self._looks)
        refs = {dead_ref(group.name, group.epoch, broker): (group, broker) for group, broker in turn}
        for ref in await self._existing(refs):
            await _guarded(self._count_dead_letters(*refs[ref]))

    async def _count_dead_letters(self, group: Group, broker: str) -> None:
        count, seen = await self._dead_letters.new_on(group, broker), self._gauges.seen.dead_letters
        self._has_news |= count != seen.get((group.name, group.epoch, broker))
        seen[group.name, group.epoch, broker] = count

    async def _existing(self, refs: Iterable[PartitionRef]) -> set[PartitionRef]:
        """Return those of these partitions that have a table: most groups have no retries and no dead letters.

        A look must make none. Damaged ones are left out: each look would be one more error in the log.
        """
        stopped, exists = self._partitions.warehouse.stopped, self._partitions.warehouse.exists
        asked = [ref for ref in refs if ref not in stopped]
        return await self._partitions.run(lambda: {ref for ref in asked if exists(ref)})


def _turn(items: Sequence[T], at: int, count: int) -> tuple[int, Sequence[T]]:
    """Return where the next round begins, and `count` items for this one, from `at` on."""
    if len(items) <= count:
        return 0, items
    at %= len(items)
    return at + count, [*items[at : at + count], *items[: max(0, at + count - len(items))]]


async def _guarded(look: Awaitable[object]) -> None:
    """Take a look; a partition that is deleted or damaged, or another process's by now, must not hide the others."""
    try:
        await look
    except DeltaMQError as error:
        log.debug("event=look_refused code=%s detail=%r", error.code, error.detail)
