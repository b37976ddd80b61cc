"""Checkpoints of one broker by the time at which their remaining messages must be delivered again.

To look at a million checkpoints four times a second would take longer than that, so they are kept in buckets of due
times: a run looks only at due ones, and at those with new records.

    logs --new records--> states --new keys--> buckets --due--> revived --Done--> ... --a minute later--> forgotten
"""

from __future__ import annotations

from typing import Final

from deltamq.mq.limits import ACK_SETTLE_MS, STAY_BUFFER_MS
from deltamq.mq.queue.checkpoint import CheckpointKey
from deltamq.mq.queue.due_times import DueTimes
from deltamq.mq.queue.revive import DueCheckpoint
from deltamq.mq.queue.revive_log import CheckpointState
from deltamq.tables.queue.recovery import Follower

#: A checkpoint is remembered for this time after its revive time, in milliseconds: an acknowledgement or a repeated
#: record may still be on its way into the log, and must not look like a new checkpoint.
KEEP_MS: Final = 60_000


class DueCheckpoints:
    """The checkpoints of a follower by due time. For one thread."""

    def __init__(
        self, follower: Follower, *, settle_ms: int = ACK_SETTLE_MS, stay_buffer_ms: int = STAY_BUFFER_MS
    ) -> None:
        """`stay_buffer_ms` is the longest time that the service keeps a checkpoint in memory before it stores it."""
        self._follower = follower
        self._stay_buffer_ms = stay_buffer_ms
        self._settle_ms = settle_ms
        self._times: DueTimes[CheckpointKey] = DueTimes()
        #: Checkpoints that could not be delivered: the number of tries, and the time of the next one.
        self._failed: dict[CheckpointKey, tuple[int, int]] = {}
        #: Whether all states are new: an interrupted refresh has folded records without returning their keys.
        self._all_new = True

    def __len__(self) -> int:
        """Return the number of checkpoints in memory."""
        return len(self._follower.states)

    def refresh(self) -> None:
        """Read the records that were stored since the last call; if it raises, the next call reads them."""
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
        """The time after which no record about a checkpoint can come.

        If another checkpoint replaced it, its revive time is not known until its own record is stored; the service
        keeps it in memory for `stay_buffer_ms` at most.
        """
        return max(state.revive_time_ms, key.pop_time_ms + self._stay_buffer_ms) + KEEP_MS

    def take(self, now_ms: int) -> list[DueCheckpoint]:
        """Remove what must be delivered again at `now_ms`; the caller reports failures with `again_at`."""
        taken = []
        for key in self._times.take(now_ms):
            state = self._follower.states.get(key)
            if state is None:
                continue
            retry_ms = self._failed.get(key, (0, 0))[1]
            bits = state.due(now_ms, self._settle_ms)
            if bits and retry_ms > now_ms:
                self._times.add(key, retry_ms)
            elif bits and state.checkpoint is not None:
                taken.append(DueCheckpoint(state.checkpoint, bits))
            elif now_ms >= self._end_ms(key, state):
                self._follower.forget([key])
                self._failed.pop(key, None)
            else:
                self._note(key, state)
        return taken

    def failures(self, key: CheckpointKey) -> int:
        """Return how often the delivery of a checkpoint has failed."""
        return self._failed.get(key, (0, 0))[0]

    def again_at(self, key: CheckpointKey, time_ms: int) -> None:
        """Record that some of its messages could not be delivered; take it again at `time_ms`."""
        self._failed[key] = (self.failures(key) + 1, time_ms)
        self._times.add(key, time_ms)

    def put_back(self, key: CheckpointKey, time_ms: int) -> None:
        """Take a checkpoint again whose delivery was interrupted at an unknown step."""
        self._times.add(key, time_ms)

    def settled(self, key: CheckpointKey) -> None:
        """Record that all messages of a checkpoint are delivered, dead or lost."""
        self._failed.pop(key, None)
        self._times.add(key, self._end_ms(key, self._follower.states[key]))

    def oldest_ms(self) -> int | None:
        """Return the due time of the oldest checkpoint that could not be delivered; None if there is none."""
        states = [self._follower.states.get(key) for key in self._failed]
        return min((state.revive_time_ms + self._settle_ms for state in states if state and state.open), default=None)
