"""The in-memory match: checkpoints that are acknowledged here are never stored (SPEC POP-13, POP-14).

    pop ----> HELD ----all acked----> DONE            nothing was stored
                |
                | 10 s in memory, or 3 s before it is due, or at a stop
                v
             LEAVING --stored--> STORED               its bit map holds the acks so far; later ones go to the log
                ^                  ^
    due within 4.5 s, or memory full: straight to the log

Decisions are returned as data (`StoreCheckpoint`, `CommitOffset`, ...); the caller stores them and reports the result.
An acknowledgement that goes to the log counts only when the log has answered. Until then its bits are `pending`, and a
message that is pending cannot be changed. So of an ack and a change of the same message only one succeeds, and a lost
answer of the log costs a repetition, not a message. A crash loses what is only here, but the group's committed offset
has not passed it.

The cost of an operation does not depend on the number of messages in flight, and one call acknowledges a whole
checkpoint. Not safe for threads: only the process that owns the partitions calls it, one call at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from deltamq.mq.errors import Conflict
from deltamq.mq.limits import BUCKET_MS, INVISIBLE_MS_CEILING
from deltamq.mq.queue.checkpoint import LaneKey, Pop, Span
from deltamq.mq.queue.due_times import DueTimes
from deltamq.mq.queue.lane import (
    AckResult,
    BufferSettings,
    Change,
    CommitOffset,
    Held,
    HeldState,
    Lane,
    StoreCheckpoint,
)
from deltamq.mq.queue.progress import Committed
from deltamq.mq.queue.revive_log import CheckpointState

_HELD: Final = HeldState.HELD
_LEAVING: Final = HeldState.LEAVING
_STORED: Final = HeldState.STORED
_DONE: Final = HeldState.DONE


_ACKED: Final = AckResult(0, 0, None)


class Buffer:
    """The in-flight state of all lanes of one broker."""

    def __init__(self, settings: BufferSettings | None = None) -> None:
        self._settings = settings or BufferSettings()
        self._lanes: dict[LaneKey, Lane] = {}
        #: HELD checkpoints by the time when they must leave, STORED ones by the time when they expire.
        self._due: DueTimes[Held] = DueTimes()
        #: Lanes whose committed offset has moved since the last call of `commits`.
        self._moved: dict[Lane, None] = {}
        self._held_count = 0
        self._stopped = False

    def __len__(self) -> int:
        """Return the number of checkpoints that are only in memory."""
        return self._held_count

    # Lanes.

    @property
    def lanes(self) -> list[Lane]:
        """All open lanes."""
        return list(self._lanes.values())

    def lane(self, key: LaneKey) -> Lane | None:
        """Return the lane, None if it is not open."""
        return self._lanes.get(key)

    def open_lane(
        self,
        key: LaneKey,
        committed: Committed,
        *,
        tenure: int,
        now_ms: int,
        states: Iterable[CheckpointState] = (),
        covered: Iterable[tuple[int, int]] = (),
    ) -> Lane:
        """Open a lane from the tables: progress in the current epoch, and the states from the revive log (META-3).

        `covered` are the offsets of checkpoints of this epoch, open or finished, that are not among `states`.
        """
        self.drop_lane(key)
        lane = self._lanes[key] = Lane(key, epoch=committed.epoch, committed=committed.offset, tenure=tenure)
        known = [s for s in states if s.checkpoint is not None and s.checkpoint.pop.epoch == committed.epoch]
        lane.cover([*committed.done, *covered], known)
        for state in known:
            self._restore(lane, state, now_ms)
        return lane

    def _restore(self, lane: Lane, state: CheckpointState, now_ms: int) -> None:
        """Keep a stored checkpoint in memory if it has handles whose invisible time has not ended, or open messages."""
        checkpoint = state.checkpoint
        over = state.replaced | state.done
        if checkpoint is None or not (state.open or over):
            return
        if checkpoint.revive_time_ms <= now_ms:
            if state.open:
                held = _stored(lane, checkpoint.pop, checkpoint.span)
                held.spent = state.acked | over
                lane.overdue[held.key] = held
            return
        held = self._remember(lane, checkpoint.pop, checkpoint.span)
        held.spent = state.acked | over
        # The revive job's clock may be ahead: messages that it has delivered again must not be acknowledged here.
        held.replaced = over
        if not state.open:
            held.state = held.state.to(_DONE)

    def _remember(self, lane: Lane, pop: Pop, span: Span) -> Held:
        held = _stored(lane, pop, span)
        lane.live[held.key] = held
        held.bucket = self._due.add(held, pop.revive_time_ms)
        return held

    def drop_lane(self, key: LaneKey) -> None:
        """Forget a lane whose topic or group was deleted, or whose offset was reset (SPEC POP-18)."""
        lane = self._lanes.pop(key, None)
        if lane is None:
            return
        for held in {**lane.live, **{(id(h), 0): h for h in lane.queue}}.values():
            self._due.discard(held, held.bucket)
        self._held_count -= lane.held_count
        self._moved.pop(lane, None)

    # Pop.

    def hold(self, lane: Lane, pop: Pop, spans: Sequence[Span], next_offset: int, now_ms: int) -> list[StoreCheckpoint]:
        """Record a pop of `spans`; the lane's next pop begins at `next_offset`.

        Returns the checkpoints that must be stored before the pop is answered: none or all (SPEC POP-13).
        """
        if not spans:
            self.skip(lane, next_offset)
            return []
        assert lane.latest <= spans[0][0] and spans[-1][0] < next_offset, "pops do not go back"
        straight = self._goes_straight(lane, len(spans), pop.revive_time_ms - now_ms)
        state = _LEAVING if straight else _HELD
        last = len(spans) - 1
        added = [
            Held(lane, pop, span, next_offset if at == last else spans[at + 1][0], state)
            for at, span in enumerate(spans)
        ]
        lane.queue += added
        lane.latest = next_offset
        live, pop_time_ms = lane.live, pop.pop_time_ms
        for held in added:
            live[held.span[0], pop_time_ms] = held
        self._held_count += len(added)
        lane.held_count += len(added)
        if straight:
            return [StoreCheckpoint(held, held.checkpoint()) for held in added]
        settings = self._settings
        leave_ms = min(now_ms + settings.stay_ms, pop.revive_time_ms - settings.stay_timeout_ms)
        bucket = self._due.bucket_of(leave_ms)
        items = self._due.items(bucket)
        for held in added:
            held.bucket = bucket
            items[held] = None
        return []

    def _goes_straight(self, lane: Lane, count: int, left_ms: int) -> bool:
        settings = self._settings
        return (
            left_ms < settings.straight_to_log_ms
            or self._stopped
            or not settings.enabled
            or self._held_count + count > settings.checkpoints_max
            or lane.held_count + count > settings.partition_checkpoints_max
        )

    def next_read(self, lane: Lane) -> tuple[int, int | None]:
        """Return where the next pop reads, and the offset before which it must stop, if any (SPEC POP-7)."""
        before = lane.committed
        place = lane.next_read()
        if lane.committed != before:
            self._moved[lane] = None
        return place

    def skip(self, lane: Lane, next_offset: int) -> None:
        """Count the messages up to `next_offset` as consumed: none of them passed the filter of a pop (CONS-3)."""
        before = lane.committed
        lane.pass_over(next_offset)
        if lane.committed != before:
            self._moved[lane] = None

    def commit_to(self, lane: Lane, offset: int) -> None:
        """Move the group's offset forward to a commit from elsewhere, even over messages in flight."""
        before = lane.committed
        lane.commit_to(offset)
        if lane.committed != before:
            self._moved[lane] = None

    # Acknowledge.

    def ack(self, lane: Lane, start_offset: int, pop_time_ms: int, bits: int, now_ms: int, *, tenure: int) -> AckResult:
        """Acknowledge messages of one checkpoint (SPEC POP-8).

        `check_live` has accepted the handle, which names `tenure`. A repeated acknowledgement is harmless; one for a
        checkpoint that memory lost in a crash is refused.
        """
        held = lane.live.get((start_offset, pop_time_ms))
        if held is None:
            return _ACKED if lane.is_over(start_offset, pop_time_ms, tenure) else AckResult(0, bits, None)
        if tenure < held.tenure or bits & ~held.full:  # another checkpoint with the same key, from before a crash
            return AckResult(0, bits, None)
        if held.state is _HELD and not held.replaced | held.changing:
            spent = held.spent = held.spent | bits
            if spent == held.full:
                self._finish(held)
            return _ACKED
        return self._ack_rest(held, bits, now_ms)

    def _ack_rest(self, held: Held, bits: int, now_ms: int) -> AckResult:
        """Acknowledge messages of a checkpoint that is stored, or of which messages were or are being taken over.

        A message that is being taken over is delivered again by its new checkpoint, so its acknowledgement is refused.
        """
        refused = bits & (held.replaced | held.changing)
        new = bits & ~(held.spent | held.changing)
        if held.state is _HELD:
            self._spend(held, new)
            new = 0
        elif now_ms >= held.pop.revive_time_ms:
            refused, new = refused | new, 0
        held.pending |= new
        return AckResult(new, refused, held if new else None)

    def ack_stored(self, held: Held, bits: int, now_ms: int) -> bool:
        """Note that the `Ack` record is in the log.

        Returns False if it was stored so late that the revive job may have passed: then the outcome is unknown.
        """
        held.pending &= ~bits
        self._spend(held, bits)
        return self._in_time(held, now_ms)

    def _in_time(self, held: Held, now_ms: int) -> bool:
        return now_ms < held.pop.revive_time_ms + self._settings.settle_ms

    def ack_failed(self, held: Held, bits: int) -> None:
        """Note that the `Ack` record certainly is not in the log; the client may try again."""
        held.pending &= ~bits

    def _spend(self, held: Held, bits: int) -> None:
        held.spent |= bits
        if held.spent == held.full and held.state in (_HELD, _STORED):
            self._finish(held)

    def _finish(self, held: Held) -> None:
        lane = held.lane
        if held.state is _HELD:
            self._held_count -= 1
            lane.held_count -= 1
        held.state = held.state.to(_DONE)
        self._due.discard(held, held.bucket)
        lane.overdue.pop(held.key, None)
        if held.replaced:
            # Its expired handles must be recognized until their invisible time ends.
            held.bucket = self._due.add(held, held.pop.revive_time_ms)
        elif not held.queued:
            lane.live.pop(held.key, None)
        if held.queued and lane.queue[0] is held and lane.advance():
            self._moved[lane] = None

    # Change the invisible time.

    def change(
        self,
        lane: Lane,
        start_offset: int,
        pop_time_ms: int,
        index: int,
        *,
        tenure: int,
        now_ms: int,
        invisible_ms: int,
        revive_queue: int,
        dead_reason: str | None = None,
        given_back: bool = False,
    ) -> Change:
        """Give the message at `index` a new invisible time (SPEC POP-9, POP-10).

        `check_live` has accepted the handle. The handle of the new checkpoint gets the lane's tenure.

        Raises
        ------
        Conflict
            `handle_expired`: the message is acknowledged, taken over by another handle, or lost in a crash.
        """
        assert 0 <= invisible_ms <= INVISIBLE_MS_CEILING, "checked at the edge"
        held = lane.live.get((start_offset, pop_time_ms))
        bit = 1 << index
        if (
            held is None
            or tenure < held.tenure
            or bit & (held.spent | held.pending | ~held.full)
            or now_ms >= held.pop.revive_time_ms
        ):
            raise Conflict("the message is acknowledged, or has a newer handle", code="handle_expired", field="handle")
        held.pending |= bit
        held.changing |= bit
        new = held.checkpoint().changed(
            index,
            now_ms=now_ms,
            invisible_ms=invisible_ms,
            revive_queue=revive_queue,
            dead_reason=dead_reason,
            given_back=given_back,
        )
        return Change(held, bit, new)

    def changed(self, change: Change, now_ms: int) -> bool:
        """Note that the new checkpoint is in the log: the old handle has expired.

        Returns False if it was stored too late, as `ack_stored` does.
        """
        held, new = change.held, change.checkpoint
        assert change.bit & held.changing, "a change ends once"
        self._remember(held.lane, new.pop, new.span)
        held.pending &= ~change.bit
        held.changing &= ~change.bit
        held.replaced |= change.bit
        self._spend(held, change.bit)
        return self._in_time(held, now_ms)

    def change_failed(self, change: Change) -> None:
        """Note that the new checkpoint certainly is not in the log: nothing has changed."""
        assert change.bit & change.held.changing, "a change ends once"
        change.held.pending &= ~change.bit
        change.held.changing &= ~change.bit

    # Leaving memory.

    def tick(self, now_ms: int) -> list[StoreCheckpoint]:
        """Return the checkpoints that must be stored now; call it about once in `BUCKET_MS`."""
        decisions = []
        for held in self._due.take(now_ms):
            if held.state is _HELD:
                decisions.append(self._leave(held))
            elif held.state is not _LEAVING:
                self._expire(held)
        return decisions

    def stop(self) -> list[StoreCheckpoint]:
        """Return the checkpoints to store before the service ends; later ones go straight to the log."""
        self._stopped = True
        leaving = [held for held in self._due.take_all() if held.state is _HELD]
        return [self._leave(held) for held in leaving]

    def leave(self, lanes: Iterable[Lane]) -> list[StoreCheckpoint]:
        """Return the checkpoints to store before these lanes move to another process."""
        leaving = [held for lane in lanes for held in lane.queue if held.state is _HELD]
        for held in leaving:
            self._due.discard(held, held.bucket)
        return [self._leave(held) for held in leaving]

    def _leave(self, held: Held) -> StoreCheckpoint:
        held.state = held.state.to(_LEAVING)
        return StoreCheckpoint(held, held.checkpoint())

    def _expire(self, held: Held) -> None:
        """Leave a checkpoint whose invisible time has ended to the revive job; its handles have expired."""
        lane = held.lane
        lane.live.pop(held.key, None)
        if held.spent != held.full:
            lane.overdue[held.key] = held

    def redelivered(self, held: Held, bits: int) -> None:
        """Note that messages of an overdue checkpoint were delivered again, dead-lettered, or lost."""
        assert not bits & ~held.full, "bits without messages"
        held.spent |= bits
        if held.spent == held.full:
            held.lane.overdue.pop(held.key, None)

    def stored(self, decision: StoreCheckpoint) -> None:
        """Note that the checkpoint is in the log: the committed offset may move over it."""
        held = decision.held
        lane = held.lane
        assert self._lanes.get(lane.key) is lane, "the lane has ended"
        held.state = held.state.to(_STORED)
        self._held_count -= 1
        lane.held_count -= 1
        assert 0 <= lane.held_count <= self._held_count, "a checkpoint leaves memory once"
        held.bucket = self._due.add(held, held.pop.revive_time_ms)
        if held.spent == held.full:
            self._finish(held)
        elif lane.queue and lane.queue[0] is held and lane.advance():
            self._moved[lane] = None

    def store_failed(self, decision: StoreCheckpoint, now_ms: int) -> None:
        """Note that the checkpoint certainly is not in the log: it stays in memory until the next tick tries again."""
        held = decision.held
        assert self._lanes.get(held.lane.key) is held.lane, "the lane has ended"
        held.state = held.state.to(_HELD)
        held.bucket = self._due.add(held, now_ms + BUCKET_MS)
        if held.spent == held.full:
            self._finish(held)

    # The group's offsets.

    def commits(self) -> list[CommitOffset]:
        """Return the commits of offsets that have moved since the last call."""
        moved = [CommitOffset(lane.key, lane.epoch, lane.committed) for lane in self._moved]
        self._moved.clear()
        return moved


def _stored(lane: Lane, pop: Pop, span: Span) -> Held:
    """Return a stored checkpoint that is in no queue; its tenure is 0, because the tables do not hold it."""
    held = Held(lane, pop, span, 0, _STORED)
    held.queued = False
    held.tenure = 0
    return held
