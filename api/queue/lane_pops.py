"""Pops of one lane, without order or in order, and the change between the two.

    never consumed --begin: the group's settings say where--> without order <--nothing in flight--> in order

A lane at which a pop is at work is busy, and other pops pass it by (SPEC POP-2). If the pop's read hangs and another
pop wants the lane, the first pop ends without messages, so that another has its turn. Without another pop it has no
time limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from api.queue.group_start import bounds_at
from api.queue.lanes import Lanes
from api.queue.pop_requests import Empty, LanePopRequest, Taken, mixed_orders
from api.queue.unordered_pop import MustStore
from mq.errors import Unavailable
from mq.meta import Blocked, Group, Topic
from mq.queue import Committed, LaneKey, OrderedLane, StartKind, first_position

__all__ = ["LanePops", "TurnOver"]

log = logging.getLogger("deltamq.api")


class TurnOver(Unavailable):
    """A pop was ended: its read took too long, and another pop wants the lane; ask again."""


class _Turn:
    """A pop at work in a lane."""

    __slots__ = ("began_s", "is_wanted", "timeout")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        #: Whether another pop has wanted the lane since.
        self.is_wanted = False
        self.timeout = asyncio.timeout(None)


class LanePops:
    """Pops of the lanes of this process; used on the event loop."""

    def __init__(
        self,
        lanes: Lanes,
        blocked: Callable[[Topic, Group, str], Awaitable[Blocked | None]],
        begin: Callable[[Topic, Group], Awaitable[None]],
        *,
        busy_ms: int,
    ) -> None:
        """`blocked` says which logical partitions' messages a group may not have yet in a partition (SPEC ROUTE-6).

        `begin` notes that a group begins in a topic (see `api.queue.group_start`). A pop may be at work in a lane for
        `busy_ms` when another pop wants the lane.
        """
        self._lanes = lanes
        self._begin_in = begin
        self._blocked = blocked
        self._loop = asyncio.get_running_loop()
        self._busy_s = busy_ms / 1000
        self._busy: dict[LaneKey, _Turn] = {}
        #: The limits, in seconds, of lanes where the last pop took longer than its limit.
        self._slow_s: dict[LaneKey, float] = {}

    async def pop(self, request: LanePopRequest) -> Taken | Empty:
        """Pop messages of one lane; `Empty` if there are none now, or another pop is at work there.

        Raises
        ------
        TurnOver
            The partition could not be read in time, and another pop wants the lane.
        """
        key = request.lane
        self._lanes.check_hosted(key)
        if key in self._busy:
            self._want(key, self._busy[key])
            return Empty.NOTHING
        turn = self._busy[key] = _Turn(self._loop.time())
        must_store: MustStore = ()
        try:
            async with turn.timeout:
                blocked = None if key.retry else await self._blocked(request.topic, request.group, key.partition)
                if request.order is False:
                    found, must_store = await self._take_unordered(request, blocked)
                else:
                    found = await self._pop_ordered(request, blocked)
        except TimeoutError as error:
            if turn.timeout.expired():
                raise self._ended(key) from error
            raise
        finally:
            del self._busy[key]
        self._slow_s.pop(key, None)
        if must_store and not await self._lanes.match.store(must_store):
            found = Empty.NOTHING
        if isinstance(found, Taken):
            self._lanes.consumed(key, found.pop.pop_time_ms)
        elif found is Empty.NOTHING and blocked is not None:
            return Empty.HELD_BACK
        return found

    def _want(self, key: LaneKey, turn: _Turn) -> None:
        """End the pop that is at work in a lane when its time is over, or now if it is over already.

        The pop is cancelled where it waits, so a later result of its read changes nothing: a lane changes on the event
        loop only, and by the pop whose turn it is. Records that it may have been storing count once if they are stored
        again. Messages that it had marked as delivered are delivered again, as after a crash.
        """
        if not turn.is_wanted:
            turn.is_wanted = True
            turn.timeout.reschedule(turn.began_s + self._slow_s.get(key, self._busy_s))

    def _ended(self, key: LaneKey) -> TurnOver:
        """Return the error for a pop that was ended because another wants the lane, and double the lane's limit."""
        busy_s = self._slow_s.get(key, self._busy_s)
        log.warning("event=pop_ended partition=%s group=%s busy_ms=%d", key.partition, key.group, busy_s * 1_000)
        self._slow_s[key] = 2 * busy_s
        self._lanes.wake(key.group, key.topic_id)
        return TurnOver(f"{key.partition} could not be read in time; ask again")

    async def _take_unordered(
        self, request: LanePopRequest, blocked: Blocked | None
    ) -> tuple[Taken | Empty, MustStore]:
        self._end_order(request)
        if self._lanes.open(request.lane) is None:
            await self._begin(request)
        return await self._lanes.match.take(request, blocked)

    async def _pop_ordered(self, request: LanePopRequest, blocked: Blocked | None) -> Taken | Empty:
        epoch = self._lanes.groups.epoch_of(request.lane)
        if epoch is None:
            return Empty.NOTHING
        ordered = self._lanes.ordered.fits(request, epoch) or await self._begin_order(request)
        return Empty.NOTHING if ordered is None else await self._lanes.ordered.pop(request, ordered, blocked)

    async def _begin_order(self, request: LanePopRequest) -> OrderedLane | None:
        """Go on in order from the lane's position; raise `order_conflict` while other messages are in flight there."""
        self._end_order(request)
        lane = self._lanes.open(request.lane)
        if lane is None:
            await self._begin(request)
            lane = self._lanes.open(request.lane)
        known = self._lanes.known(request.lane)
        if lane is None or known is None:
            return None
        if lane.in_flight:
            raise mixed_orders()
        start = known.join(Committed(lane.epoch, lane.latest, tuple(lane.covered)))
        self._lanes.buffer.drop_lane(request.lane)
        return self._lanes.ordered.open(request, start)

    def _end_order(self, request: LanePopRequest) -> None:
        """End the order in which the lane was popped, so that it can go on in another, or without order."""
        ordered = self._lanes.ordered.get(request.lane)
        if ordered is None:
            if request.order is False and self._is_held_in_order(request.lane):
                raise mixed_orders()
            return
        if ordered.epoch == self._lanes.groups.epoch_of(request.lane):
            if ordered.flights:
                raise mixed_orders()
            self._lanes.logs.offsets.note(request.lane, request.topic.name, ordered.progress())
        self._lanes.ordered.forget(request.lane)
        # A late acknowledgement may have opened the unordered lane, which does not know the progress made in order.
        self._lanes.buffer.drop_lane(request.lane)

    def _is_held_in_order(self, lane: LaneKey) -> bool:
        """Whether the tables have messages in flight there that an earlier process gave out in order."""
        stored = self._lanes.logs.offsets.get(lane)
        if stored is None or not stored.delivered:
            return False
        known = self._lanes.known(lane)
        return known is not None and any(one.is_leased for one in known.delivered)

    async def _begin(self, request: LanePopRequest) -> None:
        """Commit the position where a group begins that never consumed the lane, by its settings (SPEC POP-7)."""
        key = request.lane
        epoch = self._lanes.groups.epoch_of(key)
        if epoch is None:
            return
        if key.retry:
            self._lanes.logs.offsets.note(key, request.topic.name, Committed(epoch, request.log.min_offset))
            return
        await self._begin_in(request.topic, request.group)
        if self._lanes.groups.epoch_of(key) != epoch:
            return
        start = self._lanes.groups.start_in(key, request.group, request.topic.route.partitions)
        if start.kind is StartKind.LAST:
            await self._lanes.logs.run(request.log.refresh)
        bounds = await bounds_at(self._lanes.logs.run, request.log, start.time_ms)
        committed = Committed(epoch, first_position(start, bounds, pop=True))
        if start.kind is StartKind.FIRST:
            # After a crash the same position is found again.
            self._lanes.logs.offsets.note(key, request.topic.name, committed)
        else:
            await self._lanes.logs.offsets.store(key, request.topic.name, committed)
