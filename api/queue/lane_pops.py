"""Pops of one lane, in turns: without order or in order, and the change between the two.

    never consumed --begin: the group's settings say where--> without order <--nothing is leased--> in order

Messages that are overdue when the order changes come again: in the new order, or as retries of pops without order.

A lane at which a pop is at work is busy, and other pops pass it by (SPEC POP-2). A pop may work for as long as no other
wants the lane. If its read hangs and another pop wants the lane, the first one is ended without messages, so that
another has its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from deltamq.api.queue.group_topic import bounds_at
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.pop_requests import Empty, LanePopRequest, Taken, mixed_orders
from deltamq.api.queue.unordered_pop import MustStore
from deltamq.mq.errors import Conflict, Corrupt, Unavailable
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.moved_keys import Blocked
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.ordered_pop import OrderedLane
from deltamq.mq.queue.progress import Committed, StartKind, first_position
from deltamq.mq.queue.retry import retry_lane
from deltamq.mq.static.logical_queue import TopicQueues


class LanePops:
    """Pops of the lanes of this process; used on the event loop."""

    def __init__(
        self,
        lanes: Lanes,
        blocked: Callable[[Topic, Group, str], Awaitable[Blocked | None]],
        begin: Callable[[Topic, Group], Awaitable[None]],
        queues: Callable[[Topic], TopicQueues | None],
        *,
        busy_ms: int,
    ) -> None:
        """`blocked` returns the logical partitions whose messages must still wait in a partition (SPEC ROUTE-6).

        `begin` notes that a group begins in a topic (see `api.queue.group_topic`). `queues` returns the logical queues
        of a static topic. A pop may be at work in a lane for `busy_ms` when another pop wants the lane.
        """
        self._queues = queues
        self._lanes = lanes
        self._begin_in = begin
        self._blocked = blocked
        self._turns = Turns(busy_ms=busy_ms, on_over=lambda lane: lanes.wake(lane.group, lane.topic_id))

    async def pop(self, request: LanePopRequest) -> Taken | Empty:
        """Pop messages of one lane; `Empty` if there are none now, or another pop is at work in the lane.

        Raises
        ------
        TurnOver
            The partition could not be read in time, and another pop wants the lane.
        """
        key = request.lane
        self._lanes.check_hosted(key)
        if self._turns.is_busy(key):
            return Empty.NOTHING
        must_store: MustStore = ()
        async with self._turns.take(key):
            blocked = await self._blocked(request.topic, request.group, key.partition) if _may_wait(request) else None
            if request.order is False:
                popped, must_store = await self._take_unordered(request, blocked)
            else:
                popped = await self._pop_ordered(request, blocked)
        if must_store and not await self._lanes.unordered.store(must_store):
            popped = Empty.NOTHING
        if isinstance(popped, Taken):
            self._lanes.consumed(key, popped.pop.pop_time_ms)
        elif popped is Empty.NOTHING and blocked is not None:
            return Empty.HELD_BACK
        return popped

    async def repeat(self, request: LanePopRequest) -> Taken | Empty:
        """Return again the messages of one lane that a pop with this `attempt_id` got there (SPEC POP-20).

        It waits while another pop is at work in the lane: an answer without the messages would end the repetitions.
        """
        key, attempt_id = request.lane, request.whole.attempt_id
        assert attempt_id is not None, "the caller has asked `has_attempt`"
        self._lanes.check_hosted(key)
        await self._turns.free(key)
        async with self._turns.take(key):
            ordered = self._lanes.ordered.of_attempt(key, self._lanes.groups.epoch_of(key), attempt_id)
            if ordered is None:
                return Empty.NOTHING
            popped = await self._lanes.ordered.repeat(request, ordered, attempt_id)
        # It may have released messages that do not fit into this answer.
        self._lanes.wake(key.group, key.topic_id)
        return popped

    def has_attempt(self, key: LaneKey, attempt_id: str) -> bool:
        """Whether messages of the lane are still leased to a pop of this id."""
        return self._lanes.ordered.of_attempt(key, self._lanes.groups.epoch_of(key), attempt_id) is not None

    async def _take_unordered(
        self, request: LanePopRequest, blocked: Blocked | None
    ) -> tuple[Taken | Empty, MustStore]:
        ordered = self._overdue(request)
        if ordered is not None:
            retries = self._lanes.partition_of(retry_lane(request.lane, request.topic.name), request.topic.name)
            await self._lanes.ordered.settle(request, ordered, retries)
        self._end_order(request)
        if self._lanes.open(request.lane) is None:
            await self._begin(request)
        return await self._lanes.unordered.take(request, blocked)

    async def _pop_ordered(self, request: LanePopRequest, blocked: Blocked | None) -> Taken | Empty:
        epoch = self._lanes.groups.epoch_of(request.lane)
        if epoch is None:
            return Empty.NOTHING
        ordered = self._lanes.ordered.fits(request, epoch) or await self._begin_order(request)
        return Empty.NOTHING if ordered is None else await self._lanes.ordered.pop(request, ordered, blocked)

    async def _begin_order(self, request: LanePopRequest) -> OrderedLane | None:
        """Go on in order from the lane's position; raise `order_conflict` while messages are leased there."""
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
        """End the order in which the lane was popped, so that it can go on in another order, or without one."""
        ordered = self._lanes.ordered.get(request.lane)
        if ordered is None:
            return
        if ordered.epoch == self._lanes.groups.epoch_of(request.lane):
            if ordered.flights:
                raise mixed_orders()
            self._lanes.logs.offsets.note(request.lane, request.topic.name, ordered.progress())
        self._lanes.ordered.forget(request.lane)
        # A late acknowledgement may have opened the unordered lane, which does not know the progress made in order.
        self._lanes.buffer.drop_lane(request.lane)

    def _overdue(self, request: LanePopRequest) -> OrderedLane | None:
        """Return the lane if it is in order and all its messages in flight are overdue, else None.

        It is opened if the tables have messages in flight that an earlier process delivered in order.
        """
        ordered = self._lanes.ordered.get(request.lane) or self._recalled(request.lane)
        if ordered is None or ordered.epoch != self._lanes.groups.epoch_of(request.lane):
            return None
        return ordered if ordered.is_overdue(self._lanes.logs.now_ms()) else None

    def _recalled(self, lane: LaneKey) -> OrderedLane | None:
        stored = self._lanes.logs.offsets.get(lane)
        if stored is None or not stored.delivered:
            return None
        known = self._lanes.known(lane)
        if known is None or not any(flight.is_leased for flight in known.delivered):
            return None
        return self._lanes.ordered.open_for_handle(lane, known)

    async def _begin(self, request: LanePopRequest) -> None:
        """Commit the start of a group that never consumed the lane, by its settings (SPEC POP-7)."""
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
        # The last message of a logical queue is in only one of its segments.
        pop = start.kind is not StartKind.LAST or not await self._is_followed(request)
        committed = Committed(epoch, first_position(start, bounds, pop=pop))
        if start.kind is StartKind.FIRST:
            # A crash finds the same position again.
            self._lanes.logs.offsets.note(key, request.topic.name, committed)
        else:
            await self._lanes.logs.offsets.store(key, request.topic.name, committed)

    async def _is_followed(self, request: LanePopRequest) -> bool:
        """Whether later segments of the partition's logical queue have messages."""
        queues = self._queues(request.topic)
        place = None if queues is None else queues.of_partition(request.lane.partition)
        if place is None:
            return False
        segments = place.queue.segments
        later = segments[segments.index(place.segment) + 1 :]
        if any(segment.end_offset > 0 for segment in later):
            return True
        if not later or not later[-1].is_decided:
            return False
        leader = request.lane._replace(partition=later[-1].partition)
        log = await self._lanes.partition_of(leader, request.topic.name).look()
        return log is not None and log.end_offset > 0


def _may_wait(request: LanePopRequest) -> bool:
    """Whether some of the lane's messages may have to wait for messages of another partition.

    In a static topic without order, a group takes messages from all segments of a queue at once.
    """
    return not request.lane.retry and (request.topic.static is None or request.whole.keeps_order)


log = logging.getLogger("deltamq.api")


class TurnOver(Unavailable):
    """A pop was ended: its read took too long, and another pop wants the lane; ask again."""


class Turns:
    """The lanes of this process at which a pop is at work; used on the event loop."""

    def __init__(self, *, busy_ms: int, on_over: Callable[[LaneKey], None]) -> None:
        """A pop may be at work for `busy_ms` when another pop wants the lane.

        `on_over` is called if it is then ended, or fails: other pops have passed the lane by, which may have messages.
        """
        self._busy_s = busy_ms / 1000
        self.on_over = on_over
        self._busy: dict[LaneKey, _Turn] = {}
        #: The limits, in seconds, of lanes where the last pop took longer than its limit.
        self._slow_s: dict[LaneKey, float] = {}

    def is_busy(self, lane: LaneKey) -> bool:
        """Return whether a pop is at work in the lane; from this call on its time is limited.

        At its limit the pop is cancelled where it waits. A later result of its read changes nothing: only the pop that
        has the turn changes a lane, on the event loop. Records that it may have been storing count once if they are
        stored again. Messages that it had marked as delivered are delivered again, as after a crash.
        """
        turn = self._busy.get(lane)
        if turn is not None:
            turn.limit(self._limit_s(lane))
        return turn is not None

    async def free(self, lane: LaneKey) -> None:
        """Wait until no pop is at work in the lane; from now on the time of such pops is limited."""
        while self.is_busy(lane):
            await self._busy[lane].over()

    def take(self, lane: LaneKey) -> _Turn:
        """Return the turn of a pop in a lane that is not busy: `async with` it while the pop is at work.

        Raises
        ------
        TurnOver
            By the block: the pop took too long, and another pop wants the lane.
        """
        assert lane not in self._busy, "one pop at a time"
        turn = self._busy[lane] = _Turn(self, lane)
        return turn

    def ended(self, lane: LaneKey, *, well: bool) -> None:
        """Note that the pop in a lane has ended; after a good end a doubled limit is lifted."""
        del self._busy[lane]
        if well:
            self._slow_s.pop(lane, None)

    def was_late(self, lane: LaneKey) -> None:
        """Double the limit of a lane whose pop was ended because another one wants the lane."""
        limit_s = self._limit_s(lane)
        log.warning("event=pop_ended partition=%s group=%s busy_ms=%d", lane.partition, lane.group, limit_s * 1_000)
        self._slow_s[lane] = 2 * limit_s
        self.on_over(lane)

    def _limit_s(self, lane: LaneKey) -> float:
        return self._slow_s.get(lane, self._busy_s)


class _Turn:
    __slots__ = ("_began_s", "_is_wanted", "_lane", "_over", "_timeout", "_turns")

    def __init__(self, turns: Turns, lane: LaneKey) -> None:
        self._turns = turns
        self._lane = lane
        self._began_s = asyncio.get_running_loop().time()
        #: Whether another pop has wanted the lane.
        self._is_wanted = False
        self._timeout = asyncio.timeout(None)
        #: Set at the end of the turn, if a pop waits for it.
        self._over: asyncio.Event | None = None

    def limit(self, limit_s: float) -> None:
        """End the pop when it has worked for `limit_s`; at once if it already has."""
        if not self._is_wanted:
            self._is_wanted = True
            self._timeout.reschedule(self._began_s + limit_s)

    async def over(self) -> None:
        """Wait for the end of the turn."""
        self._over = self._over or asyncio.Event()
        await self._over.wait()

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns.ended(self._lane, well=error is None)
        if self._over is not None:
            self._over.set()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            self._turns.was_late(self._lane)
            raise TurnOver(f"{self._lane.partition} could not be read in time; ask again") from late
        # After a `Corrupt` or a `Conflict` pops keep waiting: two of them would wake each other for ever.
        if self._is_wanted and error is not None and not isinstance(error, Corrupt | Conflict):
            self._turns.on_over(self._lane)
