"""Pops of a topic: visit lane after lane until there is enough, or wait if there is nothing (SPEC POP-1, POP-15).

of a repeated `attempt_id`: lanes with its messages --> answer with only these (SPEC POP-20)
    |none
visit the lanes --found--> answer                    in a static topic: the segments of its logical queues
    |nothing
look for other processes' commits, visit again
    |nothing, wait_ms left
wait for: a commit in any partition or retry partition | messages left by another pop | an ordered lane's time
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

import msgspec
from msgspec.structs import replace

from deltamq.api.host.hosting import Hosting
from deltamq.api.queue.group_topic import LanePartition
from deltamq.api.queue.lane_pops import LanePops, TurnOver
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.moved_progress import HELD_BACK_S
from deltamq.api.queue.pop_requests import Empty, LanePopRequest, Taken, TopicPopRequest
from deltamq.api.wire.request import Client
from deltamq.mq.errors import Conflict, Corrupt, DeltaMQError, NotFound, Overloaded, Unavailable
from deltamq.mq.limits import PAUSED_LOOK_S
from deltamq.mq.meta.access import AccessState
from deltamq.mq.meta.topics import Topic
from deltamq.mq.static.logical_queue import TopicQueues

_DRAW_BITS = 30
#: Interval at which a waiting pop looks again at messages that are due and that it did not get.
_LATE_S = 0.05
#: Age from which a pop looks for commits of others first: they may have erased what is in memory here (SPEC ERASE-1).
_FOLLOWED_S = 10.0


class Popped(msgspec.Struct):
    """The messages of one round through all lanes."""

    taken: list[Taken] = msgspec.field(default_factory=list)
    count: int = 0
    nbytes: int = 0
    #: The first error of a lane that could not be popped; raised if no other lane has messages.
    error: DeltaMQError | None = None
    #: Why the lanes without messages had none.
    empty: set[Empty] = msgspec.field(default_factory=set)
    #: The visited brokers, each with its epoch at this process.
    epochs: dict[str, int] = msgspec.field(default_factory=dict)
    #: The logical queues of a static topic, in whose terms the messages are shown.
    queues: TopicQueues | None = None
    #: Whether an earlier pop of the same `attempt_id` got these messages.
    repeated: bool = False


class Popper:
    """Pops through all lanes of a topic; used on the event loop."""

    def __init__(
        self,
        lanes: Lanes,
        pops: LanePops,
        hosting: Hosting,
        queues: Callable[[Topic], TopicQueues | None],
        access: Callable[[], AccessState],
        *,
        refresh_s: float,
        bytes_max: int,
    ) -> None:
        """A pop visits lanes of the brokers that `hosting` serves, until its answer has `bytes_max` or more.

        `queues` returns the logical queues of a static topic, None for a plain one; `access` the access in force.
        """
        self._lanes = lanes
        self._pops = pops
        self._hosting = hosting
        self._queues = queues
        self._access = access
        self._refresh_s = refresh_s
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._random = random.Random()
        #: Set when the service stops: pops no longer wait.
        self.stopping = False

    async def pop(self, request: TopicPopRequest, client: Client) -> Popped:
        """Pop at most `max_messages` messages; wait up to `wait_ms` for the first one, while the client is there.

        Call `check` right before the messages are sent; they may be sent only if it returns. Their bytes are reserved
        in the request's `answer`.

        Raises
        ------
        Overloaded
            There is no room for a message; none was taken.
        """
        deadline = self._loop.time() + request.wait_ms / 1000
        popped = await self._round(request)
        if not popped.taken and not isinstance(popped.error, TurnOver) and await self._refreshed(request):
            popped = await self._round(request)
        while not (popped.taken or _is_final(popped.error) or self._is_over(deadline, client)):
            request = self._present(request)
            popped = await self._wait(request, deadline, client)
        if not popped.taken and popped.error is not None:
            raise popped.error
        return popped

    def _is_over(self, deadline: float, client: Client) -> bool:
        return self._loop.time() >= deadline or self.stopping or client.has_left()

    async def confirm(self, popped: Popped) -> None:
        """Raise `Unavailable` unless this process has served the brokers without a break."""
        for broker, epoch in popped.epochs.items():
            await self._hosting.confirm(broker, epoch)

    def _present(self, request: TopicPopRequest) -> TopicPopRequest:
        """Return the request with the present metadata: a waiting pop may outlive its topic or group."""
        topic, group = self._lanes.topic(request.topic.name), self._lanes.groups.group(request.group.name)
        if topic is None or topic.id != request.topic.id:
            raise NotFound(f"topic {request.topic.name} was deleted", code="topic_not_found", field="topic")
        return (
            request if topic is request.topic and group is request.group else replace(request, topic=topic, group=group)
        )

    def rest(self, request: TopicPopRequest, queues: TopicQueues | None) -> int:
        """Return how many messages the group has yet to get in the lanes that this pop visits, only from memory."""
        group_topic = self._lanes.group_topic(request.topic, request.group)
        visits: Iterable[LanePartition]
        if queues is None:
            visits = group_topic.lanes(request.partition)
        else:
            visits = group_topic.segment_lanes(queues, request.partition)
        taking = self._hosting.taking()
        mine = [visit for visit in visits if visit.broker in taking and (visit.key.retry or not request.retries_only)]
        return sum(map(self._lanes.left, self._readable(mine, request.topic, queues)))

    def _readable(self, visits: list[LanePartition], topic: Topic, queues: TopicQueues | None) -> list[LanePartition]:
        """Return the lanes that may be read now; the group goes on in the others later (SPEC ROUTE-9).

        Queues of a global topic whose newest messages here have no offsets yet are left out, too (SPEC STATIC-10).
        """
        unseen = frozenset[int]() if topic.world is None else topic.world.unseen
        if unseen and queues is not None:
            places = [(visit, queues.of_partition(visit.key.partition)) for visit in visits]
            visits = [visit for visit, place in places if place is None or place.queue.index not in unseen]
        access = self._access()
        if not access:
            return visits
        return [visit for visit in visits if access.of(visit.key.topic_id, visit.key.partition).readable]

    def wake_others(self, request: TopicPopRequest) -> None:
        """Let the group's waiting pops look again, since messages are left (SPEC POP-15)."""
        self._lanes.wake(request.group.name, request.topic.id)

    def _visits(self, request: TopicPopRequest, queues: TopicQueues | None) -> list[LanePartition]:
        group_topic = self._lanes.group_topic(request.topic, request.group)
        draw = self._random.getrandbits(_DRAW_BITS)
        taking = self._hosting.taking()
        if queues is None:
            here = [visit for visit in group_topic.visits(request.partition, draw=draw) if visit.broker in taking]
        else:
            here = group_topic.segment_visits(
                queues,
                request.partition,
                taking,
                self._lanes.is_finished,
                in_order=request.keeps_order,
                draw=draw,
            )
        if not here:
            raise Unavailable("the topic's brokers went to other processes; ask again", code="broker_unavailable")
        return [
            visit
            for visit in self._readable(here, request.topic, queues)
            if visit.key.retry or not request.retries_only
        ]

    async def _round(self, request: TopicPopRequest) -> Popped:
        queues = self._queues(request.topic)
        popped = Popped(queues=queues)
        left = self._visits(request, queues)
        if await self._repeat(left, request, popped):
            return popped
        if request.group.paused is not None:
            popped.empty.add(Empty.PAUSED)
            return popped
        seen: set[LanePartition] = set()
        while left:
            for visit in left:
                try:
                    await self._visit(visit, request, popped)
                except DeltaMQError as error:
                    # A damaged partition, or one popped in another order, does not hold back messages of the others.
                    popped.error = popped.error or error
                    if isinstance(error, Overloaded):
                        return popped
                if popped.count >= request.max_messages or popped.nbytes >= self._bytes_max:
                    return popped
            if queues is None or not request.keeps_order:
                break
            # The group may be done with a segment by now; then it is the turn of the next one.
            seen.update(left)
            left = [visit for visit in self._visits(request, queues) if visit not in seen]
        return popped

    async def _repeat(self, visits: list[LanePartition], request: TopicPopRequest, popped: Popped) -> bool:
        """Take again the messages that an earlier pop of this `attempt_id` got; return whether there was anything.

        All their lanes are visited, also when there is enough: each releases messages that do not fit. A lane's error
        is the answer if no other lane has messages; then the client repeats the pop.
        """
        attempt_id = request.attempt_id
        if attempt_id is None:
            return False
        for visit in [visit for visit in visits if self._pops.has_attempt(visit.key, attempt_id)]:
            try:
                await self._visit(visit, request, popped, self._pops.repeat)
            except DeltaMQError as error:
                popped.error = popped.error or error
        popped.repeated = bool(popped.taken)
        return popped.repeated or popped.error is not None

    async def _visit(
        self,
        visit: LanePartition,
        request: TopicPopRequest,
        popped: Popped,
        pop: Callable[[LanePopRequest], Awaitable[Taken | Empty]] | None = None,
    ) -> None:
        log = visit.partition.log
        if log is None:
            if visit.key.retry:
                return
            log = await visit.partition.opened()
        if self._loop.time() - visit.partition.refreshed_at >= _FOLLOWED_S:
            await visit.partition.refresh()
        fence = self._hosting.fence(visit.broker)
        if fence is not None and not visit.partition.is_fenced(fence):
            log = await visit.partition.fenced(fence)
        if (visit.key.retry or request.order is False) and self._lanes.is_drained(visit.key, log):
            return
        epoch = self._hosting.epoch(visit.broker)
        if popped.epochs.setdefault(visit.broker, epoch) != epoch:
            raise Unavailable(f"broker {visit.broker} went to another process meanwhile; ask again", code="lease_lost")
        room = request.max_messages - popped.count
        max_bytes = max(1, min(self._bytes_max - popped.nbytes, request.answer.free))
        asked = LanePopRequest(request, visit.key, log, room, max_bytes)
        try:
            taken = await (pop or self._pops.pop)(asked)
            if isinstance(taken, Taken):
                popped.taken.append(taken)
                popped.count += len(taken.handles)
                popped.nbytes += taken.nbytes
            else:
                popped.empty.add(taken)
        finally:
            # Give back bytes that a lane reserved for messages that it did not deliver.
            request.answer.settle(popped.nbytes)

    async def _refreshed(self, request: TopicPopRequest) -> bool:
        """Refresh partitions that were not refreshed within `refresh_s`; return whether there were any."""
        oldest = self._loop.time() - self._refresh_s
        visits = self._visits(request, self._queues(request.topic))
        stale = [visit.partition for visit in visits if visit.partition.refreshed_at < oldest]
        # A damaged partition raises its error when it is visited.
        await asyncio.gather(*(partition.refresh() for partition in stale), return_exceptions=True)
        return bool(stale)

    async def _wait(self, request: TopicPopRequest, deadline: float, client: Client) -> Popped:
        """Visit the lanes; if they have no messages, wait for an event."""
        group_topic = self._lanes.group_topic(request.topic, request.group)
        visits = self._visits(request, self._queues(request.topic))
        waiter: asyncio.Future[None] = self._loop.create_future()
        # Watch before the visit, so that no commit after it is missed.
        group_topic.waiters.add(waiter)
        for visit in visits:
            visit.partition.watch(waiter)
        try:
            popped = await self._round(request)
            if popped.taken or Empty.PASSED_OVER in popped.empty or _is_final(popped.error):
                return popped
            until = min(deadline, self._visible_s(visits, request))
            if Empty.PAUSED in popped.empty:
                until = min(until, self._loop.time() + PAUSED_LOOK_S)
            if Empty.HELD_BACK in popped.empty:
                until = min(until, self._loop.time() + HELD_BACK_S)
            timeout = max(0.0, until - self._loop.time())
            await asyncio.wait({waiter, client.gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            group_topic.waiters.discard(waiter)
            for visit in visits:
                visit.partition.forget(waiter)
        return popped

    def _visible_s(self, visits: list[LanePartition], request: TopicPopRequest) -> float:
        """Return when a lane that is popped in order will next have messages, by the loop's clock.

        A lane that has not delivered messages that are due is looked at again in a while, not at once.
        """
        times = [self._lanes.ordered.visible_ms(visit.key, request.order) for visit in visits]
        first_ms = min((time for time in times if time is not None), default=None)
        if first_ms is None:
            return float("inf")
        left_s = (first_ms - self._lanes.logs.now_ms()) / 1000
        return self._loop.time() + (left_s if left_s > 0 else _LATE_S)


def _is_final(error: DeltaMQError | None) -> bool:
    """Whether a waiting pop gives up: not if only a partition is damaged, or is popped in another order."""
    return error is not None and not isinstance(error, Corrupt | Conflict)
