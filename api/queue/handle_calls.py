"""The calls with handles: acknowledge, change the invisible time, nack, dead-letter (SPEC POP-8 to POP-10).

    handles --verify--> leases --live?--> lanes: in memory, or a record in the revive log before the answer

Each handle of a call has its own outcome: a forged or expired handle does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from deltamq.api.host.hosting import Hosting
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.logs import Destined
from deltamq.api.queue.redelivered import LeasedMessages, redelivered
from deltamq.api.statistics import GroupStatistics, Outcome
from deltamq.mq.errors import Conflict
from deltamq.mq.limits import CLOCKS_APART_MS, ORDERED_REVIVE_QUEUE
from deltamq.mq.meta.group import Group
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey, Pop, Span
from deltamq.mq.queue.handle import Handle, Lease, Opened, check_live, index_of, mint, open_handles
from deltamq.mq.queue.lane import Change, Held, Lane
from deltamq.mq.queue.ordered_pop import Delivery
from deltamq.mq.queue.revive_log import Ack

_INVALID: Final = "handle_invalid"
_EXPIRED: Final = "handle_expired"
#: The acknowledgement is stored, but the message may have been revived before: it is unknown which of the two counts.
_UNKNOWN: Final = "outcome_unknown"


class Disposition(NamedTuple):
    """What becomes of a message: delivered again after `invisible_ms`, or dead for `dead_reason`."""

    invisible_ms: int
    dead_reason: str | None = None
    #: The outcome in the statistics; None if the client goes on with the message.
    outcome: Outcome | None = None

    @property
    def gives_back(self) -> bool:
        """Whether the client has failed, and holds the message no longer."""
        return self.outcome is not None


class _Storing(NamedTuple):
    """An acknowledgement whose record is being stored."""

    opened: Opened
    lane: Lane
    held: Held
    bits: int


class Acking:
    """The acknowledgements of one call, begun by `begin_ack` and done when `finish` returns."""

    def __init__(self, handles: Sequence[str]) -> None:
        self.handles = handles
        #: The codes of refused handles, by position in the call.
        self.failed: dict[int, str] = {}
        self.storing: list[_Storing] = []
        #: Lanes popped in order whose progress has changed, with their topics.
        self.ordered: dict[LaneKey, str] = {}
        self.appends: asyncio.Task[list[Exception | None]] | None = None
        #: The brokers of the handles, each with its epoch at this process.
        self.epochs: dict[str, int] = {}
        #: The leases that had not ended, with their lanes.
        self.live: list[tuple[Opened, LaneKey]] = []

    def refuse(self, opened: Opened, bits: int, code: str = _EXPIRED) -> None:
        """Record `code` for the messages of a lease that `bits` names."""
        full = opened.lease.span.full
        for position in opened.positions:
            if bits == full or bits >> index_of(self.handles[position]) & 1:
                self.failed[position] = code

    def count(self, opened: Opened) -> int:
        """Return how many messages of a lease are acknowledged."""
        if not self.failed:
            return opened.bits.bit_count()
        return len({index_of(self.handles[at]) for at in opened.positions if at not in self.failed})


class HandleCalls:
    """Calls with handles of all groups; used on the event loop."""

    def __init__(self, lanes: Lanes, hosting: Hosting, statistics: GroupStatistics) -> None:
        self._lanes = lanes
        self._hosting = hosting
        self._statistics = statistics
        self._logs = lanes.logs
        self._buffer = lanes.buffer

    def _epochs(self, opened: Iterable[Opened]) -> dict[str, int]:
        """Return the brokers of the leases, each with its epoch; raise `Unavailable` if one is not served here."""
        epochs: dict[str, int] = {}
        for claim in opened:
            broker = broker_of(claim.lease.partition)
            if broker not in epochs:
                epochs[broker] = self._hosting.epoch(broker)
        return epochs

    async def _confirm(self, epochs: Mapping[str, int]) -> None:
        """Raise `Unavailable` if this process did not serve all these brokers from their epochs until now."""
        for broker, epoch in epochs.items():
            await self._hosting.confirm(broker, epoch)

    def _live(self, lease: Lease, group: str, now_ms: int) -> LaneKey:
        topic = self._lanes.topic(lease.topic)
        topic_id = None if topic is None else topic.id
        lane = LaneKey(topic_id or "", group, lease.retry, lease.partition)
        check_live(lease, topic_id=topic_id, epoch=self._lanes.groups.epoch_of(lane), now_ms=now_ms)
        self._lanes.consumed(lane, now_ms)
        return lane

    # Acknowledge.

    def begin_ack(self, group: str, handles: Sequence[str]) -> Acking:
        """Acknowledge in memory where possible, and begin to store records for the rest."""
        acking = Acking(handles)
        if not handles:
            return acking
        opened, invalid = open_handles(self._logs.keys, group, handles)
        acking.failed = dict.fromkeys(invalid, _INVALID)
        acking.epochs = self._epochs(opened)
        now_ms = self._logs.now_ms()
        for claim in opened:
            try:
                lane = self._live(claim.lease, group, now_ms)
            except Conflict:
                acking.refuse(claim, claim.lease.span.full)
                continue
            acking.live.append((claim, lane))
            if claim.lease.revive_queue == ORDERED_REVIVE_QUEUE:
                self._ack_ordered(acking, claim, lane, now_ms)
            else:
                self._ack(acking, claim, lane, now_ms)
        if acking.storing:
            acking.appends = asyncio.ensure_future(self._logs.revive.store_each(map(_record, acking.storing)))
        return acking

    def _ack(self, acking: Acking, opened: Opened, key: LaneKey, now_ms: int) -> None:
        lane, lease = self._lanes.open(key), opened.lease
        if lane is None:
            acking.refuse(opened, lease.span.full)
            return
        start = lease.span.start_offset
        result = self._buffer.ack(lane, start, lease.pop_time_ms, opened.bits, now_ms, tenure=lease.tenure)
        if result.refused:
            acking.refuse(opened, result.refused)
        if result.held is not None:
            acking.storing.append(_Storing(opened, lane, result.held, result.store))

    def _ack_ordered(self, acking: Acking, opened: Opened, key: LaneKey, now_ms: int) -> None:
        for handle, position in _each(opened, acking.handles):
            try:
                ordered = self._lanes.ordered_of_handle(key, handle.lease.epoch)
                ordered.ack(_delivery(handle), now_ms)
            except Conflict as error:
                acking.failed[position] = error.code
        acking.ordered[key] = opened.lease.topic

    async def finish(self, acking: Acking) -> dict[int, str]:
        """Wait until all records are stored; return the codes of refused handles by position.

        Raises
        ------
        DeltaMQError
            A record was certainly not stored, or a broker went to another process meanwhile: repeat the call.
        """
        failure: Exception | None = None
        if acking.appends is not None:
            outcomes = await acking.appends
            again = await self._redelivered([(ack.lane.key, ack.opened.lease, ack.bits) for ack in acking.storing])
            for ack, outcome, elsewhere in zip(acking.storing, outcomes, again, strict=True):
                failure = outcome or failure
                self._settle_ack(acking, ack, stored=outcome is None)
                acking.refuse(ack.opened, elsewhere)
        for key, topic in acking.ordered.items():
            await self._lanes.ordered.store(key, topic)
            self._lanes.wake(key.group, key.topic_id)
        if failure is not None:
            raise failure
        await self._confirm(acking.epochs)
        for opened, key in acking.live:
            self._count(opened.lease, key, acking.count(opened), Outcome.SUCCEEDED)
        return acking.failed

    def _count(self, lease: Lease, lane: LaneKey, count: int, outcome: Outcome) -> None:
        broker = broker_of(lease.partition)
        self._statistics.handled(lane.group, lease.topic, lane.topic_id, broker, lease.pop_time_ms, count, outcome)

    async def _redelivered(self, stored: Sequence[tuple[LaneKey, Lease, int]]) -> list[int]:
        """Return for each lease the bits of messages that the revive job has delivered again.

        It looks only if one of the leases ends within `CLOCKS_APART_MS`, the most by which clocks may differ: a look
        costs as much as storing the record.
        """
        soon_ms = self._logs.now_ms() + CLOCKS_APART_MS
        if all(lease.revive_time_ms > soon_ms for _, lease, _ in stored):
            return [0] * len(stored)
        asked = [
            LeasedMessages(lease.key(key.topic_id, key.group), lease.topic, lease.span, bits)
            for key, lease, bits in stored
        ]
        return await redelivered(self._lanes, asked)

    def _settle_ack(self, acking: Acking, ack: _Storing, *, stored: bool) -> None:
        if self._buffer.lane(ack.lane.key) is not ack.lane:
            acking.refuse(ack.opened, ack.bits)
        elif not stored:
            self._buffer.ack_failed(ack.held, ack.bits)
        elif not self._buffer.ack_stored(ack.held, ack.bits, self._logs.now_ms()):
            acking.refuse(ack.opened, ack.bits, _UNKNOWN)

    # Change.

    async def change(
        self, group: Group, handles: Sequence[str], decide: Callable[[Handle], Disposition]
    ) -> tuple[dict[int, str], dict[int, str]]:
        """Apply to each message what `decide` returns for it; durable when this returns.

        Returns
        -------
        tuple
            The codes of the refused handles, and the new handles of the others; both by position. A handle that is
            given twice counts once.
        """
        opened, invalid = open_handles(self._logs.keys, group.name, handles)
        failed = dict.fromkeys(invalid, _INVALID)
        epochs = self._epochs(opened)
        renewed: dict[int, str] = {}
        now_ms = self._logs.now_ms()
        changes: list[tuple[list[int], Handle, Change]] = []
        in_order: list[tuple[list[int], LaneKey, Handle, Disposition]] = []
        outcomes: list[tuple[int, LaneKey, Handle, Outcome]] = []
        for handle, positions in _distinct(opened, handles).items():
            try:
                key = self._live(handle.lease, group.name, now_ms)
                disposition = decide(handle)
                if disposition.outcome is not None:
                    outcomes.append((positions[0], key, handle, disposition.outcome))
                if handle.lease.revive_queue == ORDERED_REVIVE_QUEUE:
                    in_order.append((positions, key, handle, disposition))
                else:
                    changes.append((positions, handle, self._change(key, handle, disposition, now_ms)))
            except Conflict as error:
                failed.update(dict.fromkeys(positions, error.code))
        await self._store_changes(changes, failed, renewed)
        for positions, key, handle, disposition in in_order:
            try:
                text = await self._change_ordered(group, key, handle, disposition)
                renewed.update(dict.fromkeys(positions, text))
            except Conflict as error:
                failed.update(dict.fromkeys(positions, error.code))
        await self._confirm(epochs)
        for position, key, handle, outcome in outcomes:
            if position not in failed:
                self._count(handle.lease, key, 1, outcome)
        return failed, renewed

    def _change(self, key: LaneKey, handle: Handle, disposition: Disposition, now_ms: int) -> Change:
        lane, lease = self._lanes.open(key), handle.lease
        if lane is None:
            raise Conflict("the message is not in flight", code=_EXPIRED, field="handle")
        return self._buffer.change(
            lane,
            lease.span.start_offset,
            lease.pop_time_ms,
            handle.index,
            tenure=lease.tenure,
            now_ms=now_ms,
            invisible_ms=disposition.invisible_ms,
            revive_queue=lease.revive_queue,
            dead_reason=disposition.dead_reason,
            given_back=disposition.gives_back,
        )

    async def _store_changes(
        self, changes: Sequence[tuple[list[int], Handle, Change]], failed: dict[int, str], renewed: dict[int, str]
    ) -> None:
        """Store the checkpoints of changed messages; from then on their old handles are invalid."""
        if not changes:
            return
        pops = [change.checkpoint.pop for *_, change in changes]
        outcomes = await self._logs.revive.store_each(
            Destined(pop.partition, pop.revive_queue, change.checkpoint)
            for pop, (*_, change) in zip(pops, changes, strict=True)
        )
        again = await self._redelivered(
            [(change.held.lane.key, handle.lease, change.bit) for _, handle, change in changes]
        )
        failure: Exception | None = None
        now_ms = self._logs.now_ms()
        for (positions, _, change), outcome, elsewhere in zip(changes, outcomes, again, strict=True):
            lane = change.held.lane
            if self._buffer.lane(lane.key) is not lane:
                failed.update(dict.fromkeys(positions, _EXPIRED))
            elif outcome is not None:
                self._buffer.change_failed(change)
                failure = outcome
            elif self._buffer.changed(change, now_ms) and not elsewhere:
                new = change.checkpoint
                (text,) = mint(self._logs.keys, new.pop, [new.span], tenure=lane.tenure)
                renewed.update(dict.fromkeys(positions, text))
            else:
                failed.update(dict.fromkeys(positions, _EXPIRED))
        if failure is not None:
            raise failure

    async def _change_ordered(self, group: Group, key: LaneKey, handle: Handle, disposition: Disposition) -> str:
        """Change a message of a lane that is popped in order; a dead letter is written at once."""
        lease, lanes = handle.lease, self._lanes.ordered
        ordered = self._lanes.ordered_of_handle(key, lease.epoch)
        now_ms = self._logs.now_ms()
        if disposition.dead_reason is not None:
            ordered.condemn(_delivery(handle), now_ms, disposition.dead_reason)
            log = await self._lanes.partition_of(key, lease.topic).opened()
            await lanes.bury(group, lease.topic, key, log, ordered, [handle.offset])
            text = ""
        else:
            delivery = ordered.change(
                _delivery(handle), now_ms, disposition.invisible_ms, given_back=disposition.gives_back
            )
            pop = _pop(key, lease, delivery.pop_time_ms, disposition.invisible_ms)
            (text,) = mint(self._logs.keys, pop, [Span(delivery.offset, 1, None, delivery.attempt)])
            await lanes.store(key, lease.topic)
        self._lanes.wake(key.group, key.topic_id)
        return text


def _record(ack: _Storing) -> Destined:
    lease, key = ack.opened.lease, ack.lane.key
    record = Ack(lease.key(key.topic_id, key.group), ack.bits, lease.revive_time_ms)
    return Destined(lease.partition, lease.revive_queue, record)


def _each(opened: Opened, handles: Sequence[str]) -> Iterable[tuple[Handle, int]]:
    """Yield the named messages of a lease, each with its position in the call."""
    for position in opened.positions:
        yield Handle(opened.lease, index_of(handles[position])), position


def _distinct(opened: Iterable[Opened], handles: Sequence[str]) -> dict[Handle, list[int]]:
    """Return the named messages, each once, with all its positions in the call."""
    positions_of: dict[Handle, list[int]] = {}
    for claim in opened:
        for handle, position in _each(claim, handles):
            positions_of.setdefault(handle, []).append(position)
    return positions_of


def _delivery(handle: Handle) -> Delivery:
    return Delivery(handle.offset, handle.attempt, handle.lease.pop_time_ms)


def _pop(key: LaneKey, lease: Lease, pop_time_ms: int, invisible_ms: int) -> Pop:
    return Pop(
        topic=lease.topic,
        topic_id=key.topic_id,
        group=key.group,
        epoch=lease.epoch,
        partition=key.partition,
        retry=key.retry,
        pop_time_ms=pop_time_ms,
        invisible_ms=invisible_ms,
        revive_queue=lease.revive_queue,
    )
