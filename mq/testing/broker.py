"""The broker of the in-memory queue: the state that a crash loses, and pops, acknowledgements and changes.

A lane is popped either without order, with the in-memory match and the revive log, or in order, where its progress is
stored with all messages in flight. It cannot change between the two while messages are in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from deltamq.mq.errors import Conflict
from deltamq.mq.filters.condition import Condition
from deltamq.mq.filters.evaluation import Fields, evaluate
from deltamq.mq.limits import ORDERED_REVIVE_QUEUE, REVIVE_QUEUES
from deltamq.mq.meta.group_settings import GroupSettings, Ordering
from deltamq.mq.offset_ranges import OffsetRanges
from deltamq.mq.queue.buffer import Buffer
from deltamq.mq.queue.checkpoint import LaneKey, Pop, Span, indexes, spans_of
from deltamq.mq.queue.handle import Handle, HandleKeys, Opened, mint
from deltamq.mq.queue.keyed_pop import KeyedPop
from deltamq.mq.queue.lane import BufferSettings, Lane, StoreCheckpoint
from deltamq.mq.queue.ordered_pop import REJECTED, Delivery, OrderedLane, OrderedPop, dead_producer_id
from deltamq.mq.queue.progress import Committed, first_position, read_position
from deltamq.mq.queue.retry import DeadReason, with_reason
from deltamq.mq.queue.revive import LostReason
from deltamq.mq.queue.revive_log import Ack
from deltamq.mq.testing.jobs import redelivered, settle_overdue
from deltamq.mq.testing.log import MemoryLog, Origin, Row, StoredState


class Popped(msgspec.Struct, frozen=True, kw_only=True):
    """One popped message."""

    topic: str
    partition: str
    row: Row
    handle: str
    #: The number of this delivery of the message, from 1 on.
    delivery_attempt: int
    pop_time_ms: int
    invisible_ms: int


class LanePop(msgspec.Struct, frozen=True, kw_only=True):
    """A request to pop one lane."""

    topic: str
    lane: LaneKey
    settings: GroupSettings
    order: Ordering
    max_messages: int
    invisible_ms: int
    #: The tags of the filter; None for no filter (SPEC CONS-3).
    tags: Collection[str] | None
    #: The SQL condition of the filter; None for no condition (SPEC CONS-9).
    condition: Condition | None = None
    #: The id of a pop in order that may be repeated (SPEC POP-20).
    attempt_id: str | None = None

    def takes(self, row: Row) -> bool:
        if self.tags is not None and row.tag not in self.tags:
            return False
        return self.condition is None or evaluate(self.condition, Fields(row.key, row.tag, row.headers)) is True


class MemoryBroker:
    """One life of the process that owns the lanes."""

    def __init__(self, tables: StoredState, keys: HandleKeys, settings: BufferSettings) -> None:
        self._tables = tables
        self._keys = keys
        self._buffer = Buffer(settings)
        self._ordered: dict[LaneKey, OrderedLane] = {}
        self._pops = 0
        tables.tenures += 1
        self._tenure = tables.tenures

    # Lanes.

    def forget(self, lane: LaneKey) -> None:
        """Forget a lane whose epoch is over (SPEC POP-18)."""
        self._buffer.drop_lane(lane)
        self._ordered.pop(lane, None)

    def _known(self, lane: LaneKey) -> Committed | None:
        """Return the group's progress in its current epoch; None when it never consumed."""
        return self._tables.groups.committed_in(lane, self._tables.committed.get(lane))

    def _begin(self, request: LanePop) -> Committed:
        """Return the group's progress; if it never consumed, begin by its settings and commit that (SPEC POP-7)."""
        lane = request.lane
        known = self._known(lane)
        if known is None:
            epoch = self._tables.groups.epoch_of(lane)
            assert epoch is not None, "the group was looked up"
            log = self._tables.lane_log(lane)
            start = request.settings.consume_from
            offset = log.min_offset if lane.retry else first_position(start, log.bounds_at(start.time_ms), pop=True)
            known = Committed(epoch, offset)
            self._tables.commit(lane, known)
        return known

    def _lane(self, key: LaneKey, now_ms: int) -> Lane | None:
        """Return the lane from memory or from the tables; None when the group never consumed there."""
        lane, known = self._buffer.lane(key), self._known(key)
        if known is None or (lane is not None and lane.epoch == known.epoch):
            return lane
        states = [state for key_, state in self._tables.states.items() if key_.lane == key]
        return self._buffer.open_lane(key, known, tenure=self._tenure, now_ms=now_ms, states=states)

    def _ordered_lane(self, request: LanePop) -> OrderedLane:
        ordered = self._ordered.get(request.lane)
        kind = KeyedPop if request.order == "key" else OrderedPop
        if ordered is not None and ordered.epoch == self._tables.groups.epoch_of(request.lane):
            if type(ordered) is OrderedLane:
                ordered = self._ordered[request.lane] = ordered.as_kind(
                    kind, max_attempts=request.settings.max_attempts
                )
            if isinstance(ordered, kind):
                return ordered
        states = [
            state
            for key, state in self._tables.states.items()
            if key.lane == request.lane and key.epoch == self._tables.groups.epoch_of(request.lane)
        ]
        held = self._buffer.lane(request.lane)
        if any(state.open for state in states) or (held and held.in_flight) or (ordered and ordered.flights):
            raise _mixed()
        self.flush()
        self._buffer.drop_lane(request.lane)
        done = OffsetRanges()
        for state in states:
            if state.checkpoint is not None:
                done.add(state.checkpoint.span.start_offset, state.checkpoint.span.last_offset + 1)
        committed = self._begin(request)
        start = committed.join(Committed(committed.epoch, committed.offset, tuple(done)))
        ordered = self._ordered[request.lane] = kind(start, max_attempts=request.settings.max_attempts)
        return ordered

    # Pop.

    def pop(self, request: LanePop, now_ms: int) -> list[Popped]:
        """Pop messages of one lane."""
        if request.order is False:
            return self._pop_any(request, now_ms)
        ordered = self._ordered_lane(request)
        ordered.limit(request.settings.max_attempts)
        position = read_position(ordered.committed, self._tables.lane_log(request.lane).bounds, ordered.done)
        if position.lost:
            self._tables.lose(request.lane, position.lost_offsets(), LostReason.RETENTION)
            ordered.lose_below(position.offset)
        if isinstance(ordered, KeyedPop):
            popped = self._pop_keyed(ordered, request, now_ms)
        else:
            assert isinstance(ordered, OrderedPop)
            popped = self._pop_ordered(ordered, request, now_ms)
        self._tables.commit(request.lane, ordered.progress())
        return popped

    def has_attempt(self, lane: LaneKey, attempt_id: str, now_ms: int) -> bool:
        """Return whether a pop of this id was given messages of the lane that are leased still (SPEC POP-20)."""
        ordered = self._ordered.get(lane)
        if ordered is None or ordered.epoch != self._tables.groups.epoch_of(lane):
            return False
        return bool(ordered.of_attempt(attempt_id, now_ms))

    def repeat(self, request: LanePop, now_ms: int) -> list[Popped]:
        """Pop once more what an earlier pop of the same id was given in one lane."""
        ordered = self._ordered[request.lane]
        assert request.attempt_id is not None, "`has_attempt` was asked"
        given = ordered.repeat(request.attempt_id, now_ms, request.invisible_ms, request.max_messages)
        self._tables.commit(request.lane, ordered.progress())
        return self._delivered(given, request)

    def _pop_any(self, request: LanePop, now_ms: int) -> list[Popped]:
        ordered = self._ordered.get(request.lane)
        known = self._known(request.lane)
        if ordered.flights if ordered is not None else known is not None and known.delivered:
            raise _mixed()
        if self._ordered.pop(request.lane, None) is not None:
            self._buffer.drop_lane(request.lane)
        self._begin(request)
        lane, log = self._lane(request.lane, now_ms), self._tables.lane_log(request.lane)
        assert lane is not None, "it has begun"
        start, limit = self._buffer.next_read(lane)
        position = read_position(start, log.bounds, lane.covered)
        if position.lost:
            self._tables.lose(request.lane, position.lost_offsets(), LostReason.RETENTION)
            self._buffer.skip(lane, position.offset)
            start, limit = self._buffer.next_read(lane)
        rows, next_offset = _read(log, start, limit, request, request.max_messages)
        if next_offset == start:
            return []
        self._pops += 1
        pop = self._pop(request, now_ms, request.invisible_ms, self._pops % REVIVE_QUEUES)
        attempts = tuple(row.reconsume_times + 1 for row in rows)
        spans = spans_of([row.offset for row in rows], attempts)
        self._store(self._buffer.hold(lane, pop, spans, next_offset, now_ms))
        return self._popped(pop, spans, rows)

    def _pop(self, request: LanePop, pop_time_ms: int, invisible_ms: int, revive_queue: int) -> Pop:
        epoch = self._tables.groups.epoch_of(request.lane)
        assert epoch is not None
        return Pop(
            topic=request.topic,
            topic_id=request.lane.topic_id,
            group=request.lane.group,
            epoch=epoch,
            partition=request.lane.partition,
            retry=request.lane.retry,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            revive_queue=revive_queue,
        )

    def _popped(self, pop: Pop, spans: Sequence[Span], rows: Sequence[Row]) -> list[Popped]:
        attempts = [span.attempt_of(index) for span in spans for index in range(span.num)]
        handles = mint(self._keys, pop, spans, tenure=self._tenure)
        return [
            Popped(
                topic=pop.topic,
                partition=pop.partition,
                row=row,
                handle=handle,
                delivery_attempt=attempt,
                pop_time_ms=pop.pop_time_ms,
                invisible_ms=pop.invisible_ms,
            )
            for row, handle, attempt in zip(rows, handles, attempts, strict=True)
        ]

    def _pop_ordered(self, ordered: OrderedPop, request: LanePop, now_ms: int) -> list[Popped]:
        log = self._tables.lane_log(request.lane)
        turn = ordered.turn(now_ms, request.max_messages)
        while turn.dead:
            self._bury(ordered, request, turn.dead, now_ms)
            turn = ordered.turn(now_ms, request.max_messages)
        if turn.read_from is None:
            again = ordered.again(turn.again, now_ms, request.invisible_ms, request.attempt_id)
            return self._delivered(again, request)
        rows, next_offset = _read(log, turn.read_from, None, request, request.max_messages)
        offsets = [row.offset for row in rows]
        deliveries = ordered.new(offsets, next_offset, now_ms, request.invisible_ms, request.attempt_id)
        if offsets and not deliveries:
            return self._pop_ordered(ordered, request, now_ms)
        return self._delivered(deliveries, request)

    def _pop_keyed(self, keyed: KeyedPop, request: LanePop, now_ms: int) -> list[Popped]:
        log = self._tables.lane_log(request.lane)
        popped: list[Popped] = []
        while True:
            left = request.max_messages - len(popped)
            given, dead = keyed.take(now_ms, left, request.invisible_ms, attempt_id=request.attempt_id)
            popped += self._delivered(given, request)
            self._bury(keyed, request, dead, now_ms)
            start = keyed.read_from
            if len(popped) >= request.max_messages or start is None:
                return popped
            rows, next_offset = _read(log, start, None, request, keyed.room)
            if next_offset == start and not dead:
                return popped
            keyed.offer([(row.offset, row.key) for row in rows], next_offset)

    def _delivered(self, deliveries: Sequence[Delivery], request: LanePop) -> list[Popped]:
        if not deliveries:
            return []
        log = self._tables.lane_log(request.lane)
        rows = [row for delivery in deliveries for row in log.read(delivery.offset, delivery.offset + 1)]
        spans = spans_of(
            [delivery.offset for delivery in deliveries], tuple(delivery.attempt for delivery in deliveries)
        )
        pop = self._pop(request, deliveries[0].pop_time_ms, request.invisible_ms, ORDERED_REVIVE_QUEUE)
        return self._popped(pop, spans, rows)

    def _bury(
        self, ordered: OrderedLane, request: LanePop, offsets: Sequence[int], now_ms: int, reason: str | None = None
    ) -> None:
        """Dead-letter messages of an ordered lane; its progress is stored before and after."""
        lane = request.lane
        for offset in offsets:
            self._tables.commit(lane, ordered.progress())
            rows = self._tables.lane_log(lane).read(offset, offset + 1)
            if not rows:
                self._tables.lose(lane, [offset], LostReason.RETENTION)
                ordered.end(offset)
                continue
            why = (reason or REJECTED) if ordered.is_condemned(offset) else DeadReason.MAX_ATTEMPTS.value
            row = rows[0]
            dead = Row(
                body=row.body,
                message_id=row.message_id,
                key=row.key,
                tag=row.tag,
                headers=with_reason(row.headers, why),
                reconsume_times=ordered.attempts_of(offset),
                origin=row.origin or Origin(request.topic, lane.partition, offset),
            )
            producer_id = dead_producer_id(lane, ordered.epoch, offset)
            self._tables.dead_letters(lane.group).append([dead], now_ms, producer_id=producer_id)
            ordered.end(offset)
        self._tables.commit(lane, ordered.progress())

    # Acknowledge and change.

    def ack(self, opened: Opened, lane: LaneKey, now_ms: int) -> int:
        """Acknowledge messages of one lease; returns the bits that are refused (`handle_expired`)."""
        lease = opened.lease
        if lease.revive_queue == ORDERED_REVIVE_QUEUE:
            return self._ack_ordered(self._ordered_of_handle(lane), opened, lane, now_ms)
        held = self._lane(lane, now_ms)
        if held is None:
            return opened.bits
        start = lease.span.start_offset
        result = self._buffer.ack(held, start, lease.pop_time_ms, opened.bits, now_ms, tenure=lease.tenure)
        if result.held is not None:
            key = lease.key(lane.topic_id, lane.group)
            self._tables.record([Ack(key, result.store, lease.revive_time_ms)])
            self._buffer.ack_stored(result.held, result.store, now_ms)
            return result.refused | redelivered(self._tables, key, lease.topic, lease.span, result.store)
        return result.refused

    def _ordered_of_handle(self, key: LaneKey) -> OrderedLane:
        ordered, known = self._ordered.get(key), self._known(key)
        assert known is not None, "it was popped"
        if ordered is None or ordered.epoch != known.epoch:
            ordered = OrderedLane(known, max_attempts=None)
            if ordered.flights:
                self._ordered[key] = ordered
        return ordered

    def _ack_ordered(self, ordered: OrderedLane, opened: Opened, lane: LaneKey, now_ms: int) -> int:
        refused = 0
        for index in indexes(opened.bits):
            try:
                ordered.ack(_delivery(Handle(opened.lease, index)), now_ms)
            except Conflict:
                refused |= 1 << index
        self._tables.commit(lane, ordered.progress())
        return refused

    def change(
        self, handle: Handle, request: LanePop, now_ms: int, invisible_ms: int, dead_reason: str | None = None
    ) -> str:
        """Change the invisible time of one message, or dead-letter it; returns its new handle (SPEC POP-9)."""
        lease, lane = handle.lease, request.lane
        if lease.revive_queue == ORDERED_REVIVE_QUEUE:
            return self._change_ordered(handle, request, now_ms, invisible_ms, dead_reason)
        held = self._lane(lane, now_ms)
        if held is None:
            raise Conflict("the message is not in flight", code="handle_expired", field="handle")
        change = self._buffer.change(
            held,
            lease.span.start_offset,
            lease.pop_time_ms,
            handle.index,
            tenure=lease.tenure,
            now_ms=now_ms,
            invisible_ms=invisible_ms,
            revive_queue=lease.revive_queue,
            dead_reason=dead_reason,
        )
        self._tables.record([change.checkpoint])
        self._buffer.changed(change, now_ms)
        if redelivered(self._tables, lease.key(lane.topic_id, lane.group), lease.topic, lease.span, change.bit):
            raise Conflict("the message was delivered again", code="handle_expired", field="handle")
        new = change.checkpoint
        return mint(self._keys, new.pop, [new.span], tenure=self._tenure)[0]

    def _change_ordered(
        self, handle: Handle, request: LanePop, now_ms: int, invisible_ms: int, dead_reason: str | None
    ) -> str:
        ordered, delivery = self._ordered_of_handle(request.lane), _delivery(handle)
        if dead_reason is not None:
            ordered.condemn(delivery, now_ms)
            self._bury(ordered, request, [handle.offset], now_ms, dead_reason)
            return ""
        delivery = ordered.change(delivery, now_ms, invisible_ms)
        self._tables.commit(request.lane, ordered.progress())
        pop = self._pop(request, delivery.pop_time_ms, invisible_ms, ORDERED_REVIVE_QUEUE)
        return mint(self._keys, pop, [Span(delivery.offset, 1, None, delivery.attempt)])[0]

    # Periodic work of the service.

    def tick(self, now_ms: int) -> None:
        """Store the checkpoints that must leave memory, then the offsets that have moved."""
        self._store(self._buffer.tick(now_ms))
        self.flush()

    def stop(self) -> None:
        """Store everything that is only in memory."""
        self._store(self._buffer.stop())
        self.flush()

    def flush(self) -> None:
        """Store the offsets that have moved."""
        for commit in self._buffer.commits():
            self._tables.commit(commit.lane, Committed(commit.epoch, commit.offset))

    def _store(self, decisions: Sequence[StoreCheckpoint]) -> None:
        for decision in decisions:
            self._tables.record([decision.checkpoint])
            self._buffer.stored(decision)

    def in_flight(self, lane: LaneKey) -> int:
        """Return how many messages of a lane are delivered and not done."""
        held, ordered = self._buffer.lane(lane), self._ordered.get(lane)
        if held is not None:
            settle_overdue(self._tables, self._buffer, held)
        return (held.in_flight + held.waiting if held else 0) + (len(ordered.flights) if ordered else 0)


def _read(log: MemoryLog, start: int, limit: int | None, request: LanePop, most: int) -> tuple[list[Row], int]:
    """Return at most `most` messages that pass the filter, and the offset at which reading ended."""
    rows: list[Row] = []
    stop = log.end_offset if limit is None else min(limit, log.end_offset)
    for row in log.read(start, stop):
        if len(rows) == most:
            return rows, row.offset
        if request.takes(row):
            rows.append(row)
    return rows, max(start, stop)


def _delivery(handle: Handle) -> Delivery:
    return Delivery(handle.offset, handle.attempt, handle.lease.pop_time_ms)


def _mixed() -> Conflict:
    return Conflict(
        "messages of this partition are in flight that were popped in another order",
        code="order_conflict",
        field="order",
    )
