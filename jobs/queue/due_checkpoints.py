"""Checkpoints of one broker by the time at which what is left of them must be delivered again.

Looking at a million checkpoints four times a second would take longer than that, so they are kept in buckets of due
times: a run looks at those that are due, and at those about which something new was stored.

    logs --new records--> states --new keys--> buckets --due--> revived --Done--> ... --a minute later--> forgotten
"""

from __future__ import annotations

from typing import Final

from mq.queue import CheckpointKey, CheckpointState, Due, DueTimes
from mq.queue_limits import ACK_SETTLE_MS, STAY_BUFFER_MS
from tables.queue import Follower

__all__ = ["DueCheckpoints"]

#: After its revive time a checkpoint is remembered for so long: an acknowledgement or a repeated record may still be on
#: its way into the log, and must not look like a checkpoint that is new.
KEEP_MS: Final = 60_000


class DueCheckpoints:
    """What a follower knows, by due time. For one thread."""

    def __init__(
        self, follower: Follower, *, settle_ms: int = ACK_SETTLE_MS, stay_buffer_ms: int = STAY_BUFFER_MS
    ) -> None:
        """`stay_buffer_ms` is how long the service may keep a checkpoint in memory before it stores it."""
        self._follower = follower
        self._stay_buffer_ms = stay_buffer_ms
        self._settle_ms = settle_ms
        self._times: DueTimes[CheckpointKey] = DueTimes()
        #: Those that could not be delivered: how often, and when to try again.
        self._failed: dict[CheckpointKey, tuple[int, int]] = {}
        #: A refresh that broke off has folded records whose keys it did not return.
        self._all_new = True

    def __len__(self) -> int:
        """Checkpoints in memory."""
        return len(self._follower.states)

    def refresh(self) -> None:
        """See what was stored since the last call; what it raises loses nothing."""
        whole, self._all_new = self._all_new, True
        changed = self._follower.refresh()
        states = self._follower.states
        for key in states if whole else changed:
            self._note(key, states[key])
        self._all_new = False

    def _note(self, key: CheckpointKey, state: CheckpointState) -> None:
        time_ms = state.revive_time_ms + self._settle_ms if state.open else self._end_ms(key, state)
        self._times.add(key, time_ms)

    def _end_ms(self, key: CheckpointKey, state: CheckpointState) -> int:
        """When no record about it can come any more.

        Of a checkpoint that another replaced, no revive time is known until its own record is stored; in the
        service's memory it waits for `stay_buffer_ms` at most.
        """
        return max(state.revive_time_ms, key.pop_time_ms + self._stay_buffer_ms) + KEEP_MS

    def take(self, now_ms: int) -> list[Due]:
        """What must be delivered again at `now_ms`; the caller says with `again_at` what it could not."""
        found = []
        for key in self._times.take(now_ms):
            state = self._follower.states.get(key)
            if state is None:
                continue
            retry_ms = self._failed.get(key, (0, 0))[1]
            bits = state.due(now_ms, self._settle_ms)
            if bits and retry_ms > now_ms:
                self._times.add(key, retry_ms)
            elif bits and state.checkpoint is not None:
                found.append(Due(state.checkpoint, bits))
            elif now_ms >= self._end_ms(key, state):
                self._follower.forget([key])
                self._failed.pop(key, None)
            else:
                self._note(key, state)
        return found

    def failures(self, key: CheckpointKey) -> int:
        """How often it could not be delivered."""
        return self._failed.get(key, (0, 0))[0]

    def again_at(self, key: CheckpointKey, time_ms: int) -> None:
        """Some of its messages could not be delivered: take it again at that time."""
        self._failed[key] = (self.failures(key) + 1, time_ms)
        self._times.add(key, time_ms)

    def put_back(self, key: CheckpointKey, time_ms: int) -> None:
        """Nobody knows how far its delivery came: take it again."""
        self._times.add(key, time_ms)

    def settled(self, key: CheckpointKey) -> None:
        """All of it is dealt with."""
        self._failed.pop(key, None)
        self._times.add(key, self._end_ms(key, self._follower.states[key]))

    def oldest_ms(self) -> int | None:
        """When the oldest of those fell due that could not be delivered; None when there are none."""
        states = [self._follower.states.get(key) for key in self._failed]
        return min((one.revive_time_ms + self._settle_ms for one in states if one and one.open), default=None)
