"""Pops without order: checkpoints and acknowledgements meet in memory, and are stored when they must be (SPEC POP-13).

    pop  --> read --> hold --(must be stored?)--> revive log --> handles      (the next pop starts after hold)
    ack  --> match in memory, or an `Ack` record in the queue of its checkpoint
    tick --> checkpoints that stay too long, or fall due soon, go to the revive log

While a call waits, its lane may end (topic or group deleted, offsets reset). So each call looks at the lane again after
each wait, and does nothing to a lane that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from deltamq.api.queue.filtered_read import allowed, attempts_of, look, look_now
from deltamq.api.queue.logs import Destined, QueueLogs
from deltamq.api.queue.pop_requests import Empty, LanePopRequest, Taken
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.meta.moved_keys import Blocked
from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.checkpoint import LaneKey, spans_of
from deltamq.mq.queue.handle import mint
from deltamq.mq.queue.lane import Lane, StoreCheckpoint
from deltamq.mq.queue.progress import Bounds, read_position
from deltamq.tables.log.fetch import weight_of

#: Checkpoints that must be stored before a client gets the messages of their pop.
MustStore = Sequence[StoreCheckpoint]


class UnorderedPop:
    """The in-memory match and its log; used on the event loop."""

    def __init__(self, buffer: Buffer, logs: QueueLogs, lane_of: Callable[[LaneKey], Lane | None]) -> None:
        """`lane_of` opens a lane from the tables; it returns None if the group has not begun there."""
        self._buffer = buffer
        self._logs = logs
        self._lane_of = lane_of
        #: Checkpoints stored so far.
        self.stored = 0

    async def take(self, request: LanePopRequest, blocked: Blocked | None) -> tuple[Taken | Empty, MustStore]:
        """Take messages of a lane, with the checkpoints that must be stored before a client gets them.

        When this returns, the lane has moved past them, so the next pop need not wait for the store.
        """
        lane = self._lane_of(request.lane)
        if lane is None:
            return Empty.NOTHING, ()
        start, limit = self._buffer.next_read(lane)
        if start < request.log.min_offset:
            if not await self._lose(lane, request, start):
                return Empty.NOTHING, ()
            start, limit = self._buffer.next_read(lane)
        if start >= request.log.end_offset:
            return Empty.NOTHING, ()
        seen = look_now(request, start, limit, request.max_messages)
        if seen is None:
            seen = await self._logs.run(partial(look, request, start, limit, request.max_messages))
            if not self._is_live(lane) or lane.latest != start:
                return Empty.NOTHING, ()
        seen = allowed(seen, blocked)
        if not seen.offsets:
            if seen.next_offset == start:
                return Empty.NOTHING, ()
            self._buffer.skip(lane, seen.next_offset)
            return Empty.PASSED_OVER, ()
        weight = weight_of(seen.rows) if seen.weight is None else seen.weight
        request.reserve(weight)
        now_ms = self._logs.now_ms()
        pop = request.pop(lane.epoch, now_ms, self._logs.revive.turn())
        attempts = attempts_of(seen.rows)
        spans = spans_of(seen.offsets, attempts)
        must_store = self._buffer.hold(lane, pop, spans, seen.next_offset, now_ms)
        handles = mint(self._logs.keys, pop, spans, tenure=lane.tenure)
        return Taken(pop, seen.rows, handles, attempts, weight), must_store

    def _is_live(self, lane: Lane) -> bool:
        return self._buffer.lane(lane.key) is lane

    async def _lose(self, lane: Lane, request: LanePopRequest, start: int) -> bool:
        """Record the messages that retention took before the group got them; return False if the lane has ended."""
        position = read_position(start, Bounds(request.log.min_offset, request.log.end_offset), lane.covered)
        await self._logs.lose(request.lane, request.topic.name, position.lost)
        if not self._is_live(lane):
            return False
        self._buffer.skip(lane, max(position.offset, lane.latest))
        return True

    async def store(self, decisions: MustStore) -> bool:
        """Store the checkpoints of one pop; return False if the lane has ended meanwhile."""
        records = [decision.checkpoint for decision in decisions]
        pop, lane = records[0].pop, decisions[0].held.lane
        try:
            await self._logs.revive.store(pop.partition, pop.revive_queue, records)
        except DeltaMQError:
            self._not_stored(decisions)
            raise
        self._stored(decisions)
        return self._is_live(lane)

    def _stored(self, decisions: Sequence[StoreCheckpoint]) -> None:
        self.stored += len(decisions)
        for decision in decisions:
            if self._is_live(decision.held.lane):
                self._buffer.stored(decision)

    def _not_stored(self, decisions: Sequence[StoreCheckpoint]) -> None:
        now_ms = self._logs.now_ms()
        for decision in decisions:
            if self._is_live(decision.held.lane):
                self._buffer.store_failed(decision, now_ms)

    async def store_all(self, decisions: Sequence[StoreCheckpoint]) -> None:
        """Store these checkpoints, which must leave memory.

        Raises
        ------
        DeltaMQError
            Some of them are not stored: they stay in memory, and the next tick tries again.
        """
        destined = [
            Destined(decision.checkpoint.pop.partition, decision.checkpoint.pop.revive_queue, decision.checkpoint)
            for decision in decisions
        ]
        failed: Exception | None = None
        outcomes = await self._logs.revive.store_each(destined)
        for decision, outcome in zip(decisions, outcomes, strict=True):
            if outcome is None:
                self._stored([decision])
            else:
                self._not_stored([decision])
                failed = outcome
        if failed is not None:
            raise failed
