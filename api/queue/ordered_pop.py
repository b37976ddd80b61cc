"""Ordered pops: a whole partition in order, or each key in order (SPEC POP-16, POP-17).

The whole state of a lane (its offset, the done messages above it, the leases of messages in flight) is stored in the
offsets log before each answer. So leases and handles survive a crash, a takeover and the return of a broker. Only the
outcome of an unanswered pop is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from deltamq.api.log.partition import Partition
from deltamq.api.queue.filtered_read import ReadRows, allowed, look, look_now
from deltamq.api.queue.logs import Dying, QueueLogs
from deltamq.api.queue.pop_requests import Empty, LanePopRequest, Taken
from deltamq.mq.errors import Unavailable
from deltamq.mq.limits import ORDERED_REVIVE_QUEUE
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.group_settings import Ordering
from deltamq.mq.meta.moved_keys import Blocked
from deltamq.mq.queue.checkpoint import LaneKey, spans_of
from deltamq.mq.queue.handle import mint
from deltamq.mq.queue.keyed_pop import KeyedPop
from deltamq.mq.queue.ordered_pop import (
    REJECTED,
    Delivery,
    OrderedLane,
    OrderedPop,
    dead_producer_id,
    retry_producer_id,
)
from deltamq.mq.queue.progress import Bounds, Committed, read_position
from deltamq.mq.queue.retry import DeadReason
from deltamq.tables.log.fetch import cut_to_bytes, weight_of, weights_of
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.point_reads import pick

_STRICT: Final = "strict"
#: How many overdue messages are sent to the retry topic at once.
_SETTLED_AT_ONCE: Final = 32


class OrderedLanes:
    """The lanes that are popped in order; used on the event loop, each by one pop at a time (SPEC POP-2)."""

    def __init__(self, logs: QueueLogs) -> None:
        self._logs = logs
        self._lanes: dict[LaneKey, OrderedLane] = {}
        #: The progress of each lane that the offsets log has.
        self._stored: dict[LaneKey, Committed] = {}

    # Lanes.

    def get(self, key: LaneKey) -> OrderedLane | None:
        """Return the lane if it is popped in order."""
        return self._lanes.get(key)

    def forget(self, key: LaneKey) -> None:
        """Forget a lane whose epoch is over, or that is now popped without order."""
        self._lanes.pop(key, None)
        self._stored.pop(key, None)

    def __iter__(self) -> Iterator[tuple[LaneKey, OrderedLane]]:
        return iter(list(self._lanes.items()))

    def fits(self, request: LanePopRequest, epoch: int) -> OrderedLane | None:
        """Return the lane if it is open in the pop's order.

        A lane that only handles have used takes that order. So does a lane in the other order whose messages in flight
        are all overdue: no client holds them, and they come again in the new order, as after a restart.
        """
        ordered, kind = self._lanes.get(request.lane), _kind(request)
        if ordered is None or ordered.epoch != epoch:
            return None
        if type(ordered) is OrderedLane or (not isinstance(ordered, kind) and ordered.is_overdue(self._logs.now_ms())):
            ordered = self._lanes[request.lane] = ordered.as_kind(kind, max_attempts=_limit(request))
        return ordered if isinstance(ordered, kind) else None

    def open(self, request: LanePopRequest, start: Committed) -> OrderedLane:
        """Open a lane that goes on from `start`."""
        ordered = self._lanes[request.lane] = _kind(request)(start, max_attempts=_limit(request))
        self._stored[request.lane] = start
        return ordered

    def open_for_handle(self, key: LaneKey, known: Committed) -> OrderedLane:
        """Open a lane from its stored progress, for a handle that comes before the first pop."""
        ordered = OrderedLane(known, max_attempts=None)
        if ordered.flights:
            self._lanes[key] = ordered
            self._stored[key] = known
        return ordered

    async def _store(self, key: LaneKey, topic: str, ordered: OrderedLane) -> None:
        progress = ordered.progress()
        if self._lanes.get(key) is ordered and self._stored.get(key) != progress:
            await self._logs.offsets.store(key, topic, progress)
            if self._lanes.get(key) is ordered:
                self._stored[key] = progress

    # Pop.

    async def pop(self, request: LanePopRequest, ordered: OrderedLane, blocked: Blocked | None) -> Taken | Empty:
        """Return messages that may be delivered now; `Empty` if there are none, or messages in flight hold the lane."""
        ordered.limit(_limit(request))
        bounds = Bounds(request.log.min_offset, request.log.end_offset)
        position = read_position(ordered.committed, bounds, ordered.done)
        if position.lost:
            await self._logs.lose(request.lane, request.topic.name, position.lost)
            ordered.lose_below(position.offset)
        if isinstance(ordered, KeyedPop):
            taken = await self._pop_keyed(ordered, request, blocked)
        else:
            assert isinstance(ordered, OrderedPop)
            taken = await self._pop_all(ordered, request, blocked)
        await self._store(request.lane, request.topic.name, ordered)
        return taken if taken is not None and self._lanes.get(request.lane) is ordered else Empty.NOTHING

    def of_attempt(self, key: LaneKey, epoch: int | None, attempt_id: str) -> OrderedLane | None:
        """Return the lane if messages there are still leased to a pop of this id (SPEC POP-20)."""
        ordered = self._lanes.get(key)
        if ordered is None or ordered.epoch != epoch:
            return None
        return ordered if ordered.of_attempt(attempt_id, self._logs.now_ms()) else None

    async def repeat(self, request: LanePopRequest, ordered: OrderedLane, attempt_id: str) -> Taken | Empty:
        """Return again the messages that the pop of this id got in this lane, with new leases, which are stored."""
        # The size shows only after the read. A pop that is refused here is repeated, and loses nothing.
        request.reserve(1)
        now_ms, invisible_ms = self._logs.now_ms(), request.whole.invisible_ms
        given = ordered.repeat(attempt_id, now_ms, invisible_ms, request.max_messages)
        taken = await self._delivered(ordered, given, request)
        await self._store(request.lane, request.topic.name, ordered)
        return taken if taken is not None and self._lanes.get(request.lane) is ordered else Empty.NOTHING

    def visible_ms(self, key: LaneKey, order: Ordering) -> int | None:
        """Return when the lane may next deliver in this order without an event; None if it waits for no time.

        A lane in another order may do so when its leases are over.
        """
        ordered = self._lanes.get(key)
        if ordered is None:
            return None
        if order == "key" and isinstance(ordered, KeyedPop):
            return ordered.next_release()
        if order is True and isinstance(ordered, OrderedPop):
            return ordered.turn(0, 1).wait_until_ms
        return max((flight.visible_ms for flight in ordered.flights.values()), default=None)

    async def _pop_all(self, ordered: OrderedPop, request: LanePopRequest, blocked: Blocked | None) -> Taken | None:
        while True:
            turn = ordered.turn(self._logs.now_ms(), request.max_messages)
            if turn.dead:
                await self._bury(ordered, request, turn.dead)
            elif turn.read_from is None:
                if not turn.again:
                    return None
                return await self._again(ordered, turn.again, request)
            else:
                seen = await self._look(request, turn.read_from, request.max_messages, blocked)
                if seen.next_offset == turn.read_from:
                    return None
                request.reserve(weight_of(seen.rows) if seen.weight is None else seen.weight)
                given = ordered.new(
                    seen.offsets,
                    seen.next_offset,
                    self._logs.now_ms(),
                    request.whole.invisible_ms,
                    request.whole.attempt_id,
                )
                if given or not seen.offsets:
                    return self._taken(ordered, given, request, _only(seen.rows, seen.offsets, given))

    async def _again(self, ordered: OrderedPop, offsets: Sequence[int], request: LanePopRequest) -> Taken | None:
        """Deliver again as many of these messages as fit into the answer; the others follow later."""
        rows = cut_to_bytes(await self._read(offsets, request), request.max_bytes, at_least=1).rows
        read = rows.column("offset").to_pylist()
        request.reserve(weight_of(rows))
        # A client's commit may have ended some messages during the read.
        left = [offset for offset in read if not ordered.is_done(offset)]
        whole = request.whole
        given = ordered.again(left, self._logs.now_ms(), whole.invisible_ms, whole.attempt_id)
        return self._taken(ordered, given, request, _only(rows, read, given))

    async def _pop_keyed(self, keyed: KeyedPop, request: LanePopRequest, blocked: Blocked | None) -> Taken | None:
        deliveries: list[Delivery] = []
        nbytes = 0
        while True:
            left, at_least = request.max_messages - len(deliveries), 0 if deliveries else 1
            now_ms, max_bytes = self._logs.now_ms(), request.max_bytes - nbytes
            given, dead = keyed.take(
                now_ms,
                left,
                request.whole.invisible_ms,
                max_bytes=max_bytes,
                at_least=at_least,
                room=request.whole.answer.free,
                attempt_id=request.whole.attempt_id,
            )
            is_full = len(given) == left or keyed.ready > len(dead)
            weight = keyed.weight_of(given)
            request.reserve(weight)
            nbytes += weight
            deliveries += given
            await self._bury(keyed, request, dead)
            if is_full and not deliveries:
                raise request.whole.answer.full()
            start = keyed.read_from
            if is_full or start is None:
                break
            seen = await self._look(request, start, keyed.room, blocked)
            if seen.next_offset == start and not dead:
                break
            keys = seen.rows.column("key").to_pylist()
            weights = dict(zip(seen.offsets, weights_of(seen.rows).tolist(), strict=True))
            keyed.offer(zip(seen.offsets, keys, strict=True), seen.next_offset, weights)
        return await self._delivered(keyed, sorted(deliveries), request)

    async def _look(self, request: LanePopRequest, start: int, most: int, blocked: Blocked | None) -> ReadRows:
        seen = look_now(request, start, None, most)
        if seen is None:
            seen = await self._logs.run(partial(look, request, start, None, most))
        return allowed(seen, blocked)

    async def _delivered(
        self, ordered: OrderedLane, deliveries: Sequence[Delivery], request: LanePopRequest
    ) -> Taken | None:
        if not deliveries:
            return None
        rows = await self._read([delivery.offset for delivery in deliveries], request)
        present = set(rows.column("offset").to_pylist())
        return self._taken(ordered, [delivery for delivery in deliveries if delivery.offset in present], request, rows)

    async def _read(self, offsets: Sequence[int], request: LanePopRequest) -> pa.Table:
        """Return the messages at these offsets, without those that retention has taken."""
        wanted = np.array(offsets, dtype=np.int64)
        picked = await self._logs.run(partial(pick, request.log, wanted, bytes_max=None, columns=request.whole.columns))
        if picked.unreadable:
            first = next(iter(picked.unreadable))
            raise Unavailable(f"offset {first} of {request.lane.partition} cannot be read: {picked.unreadable[first]}")
        return pa.Table.from_batches([picked.rows])

    def _taken(
        self, ordered: OrderedLane, deliveries: Sequence[Delivery], request: LanePopRequest, rows: pa.Table
    ) -> Taken | None:
        """Return the rows with their handles; messages that were popped together share a lease."""
        if not deliveries:
            return None
        handles: dict[int, str] = {}
        for pop_time_ms, given in groupby(sorted(deliveries, key=_by_time), key=lambda delivery: delivery.pop_time_ms):
            together = list(given)
            pop = request.pop(ordered.epoch, pop_time_ms, ORDERED_REVIVE_QUEUE)
            offsets = [delivery.offset for delivery in together]
            spans = spans_of(offsets, tuple(delivery.attempt for delivery in together))
            handles.update(zip(offsets, mint(self._logs.keys, pop, spans), strict=True))
        for delivery in deliveries:
            flight = ordered.flights.get(delivery.offset)
            if flight is not None:
                flight.client_id = request.whole.client_id
        texts = [handles[delivery.offset] for delivery in deliveries]
        return Taken(pop, rows, texts, tuple(delivery.attempt for delivery in deliveries), weight_of(rows))

    # Dead letters.

    async def _bury(self, ordered: OrderedLane, request: LanePopRequest, offsets: Sequence[int]) -> None:
        await self.bury(request.group, request.topic.name, request.lane, request.log, ordered, offsets)

    async def bury(
        self,
        group: Group,
        topic: str,
        key: LaneKey,
        log: PartitionLog,
        ordered: OrderedLane,
        offsets: Sequence[int],
    ) -> None:
        """Dead-letter messages; the progress that records it is stored before and after.

        Meanwhile the first pop may have replaced a lane that handles had opened by one of its order. Then the message
        is ended in the new lane, too.
        """
        for offset in offsets:
            await self.store(key, topic)
            given = ordered.reason_of(offset) or REJECTED
            why = given if ordered.is_condemned(offset) else DeadReason.MAX_ATTEMPTS.value
            failures = ordered.attempts_of(offset)
            producer_id = dead_producer_id(key, ordered.epoch, offset)
            await self._logs.bury(Dying(group, topic, key, offset, failures, why, producer_id), log)
            ordered.end(offset)
            now = self._lanes.get(key)
            if now is not None and now.epoch == ordered.epoch:
                now.end(offset)
        if offsets:
            await self.store(key, topic)

    # Pops without order.

    async def settle(self, request: LanePopRequest, ordered: OrderedLane, retries: Partition) -> None:
        """End the overdue messages of a lane that a pop without order wants; all its messages are overdue.

        As such a pop's own messages after their time, they go on to `retries`, the group's retry partition, or to the
        dead letters (SPEC POP-11). A call that is cut short is repeated by the next pop, and stores nothing twice.
        Progress is stored before and after.
        """
        ordered.limit(_limit(request))
        await self._bury(ordered, request, [offset for offset in sorted(ordered.flights) if ordered.is_over(offset)])
        await self.store(request.lane, request.topic.name)
        for offsets in _batches(sorted(ordered.flights)):
            await asyncio.gather(*(self._retry(ordered, request, offset, retries) for offset in offsets))
            for offset in offsets:
                ordered.end(offset)
        await self.store(request.lane, request.topic.name)

    async def _retry(self, ordered: OrderedLane, request: LanePopRequest, offset: int, retries: Partition) -> None:
        key, failures = request.lane, ordered.attempts_of(offset)
        producer_id = retry_producer_id(key, ordered.epoch, offset)
        overdue = Dying(request.group, request.topic.name, key, offset, failures, REJECTED, producer_id)
        await self._logs.retry(overdue, request.log, retries)

    # Handles.

    async def store(self, key: LaneKey, topic: str) -> None:
        """Store the effect of acknowledgements and changes on a lane."""
        ordered = self._lanes.get(key)
        if ordered is not None:
            await self._store(key, topic, ordered)


def _kind(request: LanePopRequest) -> type[OrderedPop] | type[KeyedPop]:
    return KeyedPop if request.order == "key" else OrderedPop


def _limit(request: LanePopRequest) -> int | None:
    """Return the maximum of deliveries; None in a strict topic, which repeats a failing message (SPEC ORDER-8)."""
    return None if request.topic.settings.order_strategy == _STRICT else request.group.settings.max_attempts


def _batches(offsets: list[int]) -> Iterator[list[int]]:
    return (offsets[at : at + _SETTLED_AT_ONCE] for at in range(0, len(offsets), _SETTLED_AT_ONCE))


def _by_time(delivery: Delivery) -> tuple[int, int]:
    return delivery.pop_time_ms, delivery.offset


def _only(rows: pa.Table, offsets: Sequence[int], deliveries: Sequence[Delivery]) -> pa.Table:
    """Keep only the delivered rows; `offsets` are the offsets of `rows`."""
    if len(deliveries) == len(offsets):
        return rows
    positions = np.searchsorted(np.array(offsets), [delivery.offset for delivery in deliveries])
    return rows.take(pa.array(positions))
