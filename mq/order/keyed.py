"""Orderly consumption with several listeners in one partition: keys are heard in parallel (SPEC ORDER-11).

    offsets   10 a   11 b   12 a   13 c   14 b        queues   a: 10, 12   b: 11, 14   c: 13
              heard  done   waits  done   heard                10 ───────► to commit: 10; 11 and 13 are done ahead

The messages of a key are a queue in memory: one of them is heard at a time, in order, and a failure stops only its
queue. It is the queue of a key and not of a logical partition: order is promised only for keys, and two keys that
share a logical partition need not wait for each other. Each message without a key is a queue of its own.

The position is the lowest message that is not done; after a crash, the messages that were done ahead of it are heard
again. `ahead_messages` bounds how many: a message begins only if fewer than that lie between the position and it.

*Handover.* One offset is all that can be committed. So before a partition is handed over, the messages below the
highest one that is done are heard, too, and nothing is repeated. A queue that is suspended then is not waited for: the
messages that are done behind its failed one are heard again by the next client.

*After deaths* the run is careful like `OrderlyRun`: one message at a time, the lowest one, each after a commit, for as
many messages as the dead client may have been ahead.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import islice, takewhile

import msgspec

from deltamq.mq.order.orderly import (
    CAREFUL_FROM,
    CAREFUL_MESSAGES,
    Fetch,
    MoveAway,
    OnFailure,
    OrderlySettings,
    Process,
    Right,
    RunState,
    Stop,
    Verdict,
    suspend_ms,
)


class Busy(msgspec.Struct, frozen=True):
    """Nothing to do until a listener ends, or a suspended key's time comes."""


class _Message:
    """A message that was fetched; it is kept until everything before it is done."""

    __slots__ = ("done", "number", "offset", "queue")

    def __init__(self, offset: int, number: int, queue: _KeyQueue) -> None:
        self.offset = offset
        #: Counts the messages of the run, so that the distance of two messages is a difference.
        self.number = number
        self.queue = queue
        self.done = False


class _KeyQueue:
    """The messages of one key that are not done, and how the first of them fares."""

    __slots__ = ("attempts", "batch", "is_heard", "messages", "name")

    def __init__(self, name: str | int) -> None:
        self.name = name
        self.messages: deque[_Message] = deque()
        #: How many of them belong to the current batch; a batch that failed is heard again as it was.
        self.batch = 0
        #: Attempts at the first message.
        self.attempts = 0
        #: Whether a listener has the batch.
        self.is_heard = False

    @property
    def head(self) -> int:
        """The offset of the first message."""
        return self.messages[0].offset


class KeyedRun:
    """The run of one partition whose keys are heard in parallel. Not safe for threads.

    One thread asks what to do with the partition (`look`). Any number of others take batches with `begin`, and report
    each with `finished`, and with `moved` if it was moved away.
    """

    __slots__ = (
        "_begun",
        "_careful",
        "_done_ahead",
        "_end",
        "_highest_done",
        "_inherited",
        "_messages",
        "_number",
        "_queues",
        "_ready",
        "_right",
        "_settings",
        "_suspended",
        "state",
    )

    def __init__(self, right: Right, offset: int, settings: OrderlySettings, *, attempts: int = 0) -> None:
        """Begin at the group's committed offset, whose message other clients have tried `attempts` times."""
        #: `READY` as long as the run goes on, whether or not messages are being heard.
        self.state = RunState.READY
        counts = settings.on_failure is not OnFailure.IN_PLACE
        careful = max(CAREFUL_MESSAGES, settings.ahead_messages)
        #: The number of messages that are still processed carefully.
        self._careful = careful if counts and attempts >= CAREFUL_FROM else 0
        self._right = right
        self._settings = settings
        #: Attempts of earlier clients at the message at the first position, until that message is fetched.
        self._inherited = attempts if counts else 0
        #: The messages from the lowest one on that is not done, by offset.
        self._messages: deque[_Message] = deque()
        self._done_ahead = 0
        self._highest_done = offset - 1
        self._number = 0
        #: The queues by name, each with a message that is not done.
        self._queues: dict[str | int, _KeyQueue] = {}
        #: Queues whose batch a thread has, by its first offset.
        self._begun: dict[int, _KeyQueue] = {}
        #: A heap of first offsets with their queues, which may begin.
        self._ready: list[tuple[int, _KeyQueue]] = []
        #: A heap of times and first offsets with their queues, which failed.
        self._suspended: list[tuple[int, int, _KeyQueue]] = []
        #: The offset at which the next pull begins.
        self._end = offset

    # What is committed ------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset to commit: everything below it is done."""
        return self._messages[0].offset if self._messages else self._end

    @property
    def reached(self) -> int:
        """The lowest offset that is not done."""
        return self.position

    @property
    def failures(self) -> int:
        """How often the message at the position has failed, to commit with it; 0 where that does not matter."""
        if self._settings.on_failure is OnFailure.IN_PLACE:
            return 0
        if not self._messages:
            return self._inherited
        queue = self._messages[0].queue
        return queue.attempts - queue.is_heard

    @property
    def done_ahead(self) -> int:
        """Number of messages above the position that are done; a crash now would repeat them."""
        return self._done_ahead

    @property
    def is_careful(self) -> bool:
        """Whether to commit before each message, because one of these may have killed earlier clients."""
        return self._careful > 0

    def may_commit(self, now_ms: int) -> bool:
        """Return whether the position may be committed now; a lost run leaves that to its successor."""
        return not self._is_lost(now_ms)

    def _is_lost(self, now_ms: int) -> bool:
        if self.state is not RunState.LOST and not self._right.holds(now_ms):
            self.state = self.state.to(RunState.LOST)
        return self.state is RunState.LOST

    # What comes -------------------------------------------------------------------------------------------------

    def fetched(self, messages: Iterable[tuple[int, str | None]], next_offset: int) -> None:
        """Add the messages of a pull from `Fetch.offset`, offsets with keys; offsets between them were filtered out."""
        assert next_offset >= self._end, "a pull goes forward"
        first = self.position if not self._messages else None
        for offset, key in messages:
            assert self._end <= offset < next_offset, "offsets grow"
            self._end = offset + 1
            self._add(offset, key)
        self._end = next_offset
        if first is not None and (self._messages or self.position != first):
            if self.position == first:
                self._messages[0].queue.attempts = self._inherited
            self._inherited = 0

    def _add(self, offset: int, key: str | None) -> None:
        # Messages without a key that are heard as one batch are one queue.
        name = key if key is not None else self._number // self._settings.batch_messages
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _KeyQueue(name)
            heapq.heappush(self._ready, (offset, queue))
        message = _Message(offset, self._number, queue)
        self._number += 1
        queue.messages.append(message)
        self._messages.append(message)

    # What to do -------------------------------------------------------------------------------------------------

    def look(self, now_ms: int) -> Fetch | Stop | Busy:
        """Return what to do with the partition besides hearing messages.

        `Fetch` comes early, so that no listener waits for messages. The run stops when all threads are done with it.
        """
        self._resume(now_ms)
        if self.state is RunState.HANDED_OVER or self._is_lost(now_ms):
            return Busy() if self._begun else Stop(self.state)
        if not self._right.allocated:
            if self._begun or self._may_begin():
                return Busy()
            self.state = self.state.to(RunState.HANDED_OVER)
            return Stop(self.state)
        is_short = len(self._ready) < self._settings.keys_in_parallel
        if is_short and len(self._messages) < self._settings.ahead_messages:
            return Fetch(self._end)
        return Busy()

    def startable(self, now_ms: int) -> int:
        """Return how many more threads could `begin` a batch now, about."""
        self._resume(now_ms)
        if self.state is not RunState.READY or not self._may_begin():
            return 0
        return 1 if self.is_careful else min(len(self._ready), self._settings.keys_in_parallel - len(self._begun))

    def resume_ms(self) -> int | None:
        """Return when the next suspended key goes on."""
        return self._suspended[0][0] if self._suspended else None

    def begin(self, now_ms: int, *, committed: bool) -> Process | MoveAway | None:
        """Return a batch to hear, the lowest one that may begin, or one to move away unheard; None if there is none.

        `committed` says whether the position is: a careful run begins nothing before that.
        """
        self._resume(now_ms)
        if self._is_lost(now_ms) or self.state is RunState.HANDED_OVER or not self._may_begin():
            return None
        if self.is_careful and not committed:
            return None
        limit = self._limit()
        offset, queue = heapq.heappop(self._ready)
        self._begun[offset] = queue
        if not queue.batch:
            queue.batch = self._batch_of(queue, limit)
            if self._used_up(queue) and queue.attempts > CAREFUL_FROM:
                return self._move_away(queue, Verdict.SUSPEND)
        queue.attempts += 1
        queue.is_heard = True
        return Process(_offsets(queue), queue.attempts)

    def _resume(self, now_ms: int) -> None:
        """Make queues ready whose suspension is over, as long as the partition stays."""
        while self._right.allocated and self._suspended and self._suspended[0][0] <= now_ms:
            _, offset, queue = heapq.heappop(self._suspended)
            heapq.heappush(self._ready, (offset, queue))

    def _may_begin(self) -> bool:
        if not self._ready or len(self._begun) >= self._settings.keys_in_parallel:
            return False
        offset, queue = self._ready[0]
        if self.is_careful and (self._begun or offset != self.position):
            return False
        return self._is_near(queue.messages[0]) and offset < self._limit()

    def _is_near(self, message: _Message) -> bool:
        return message.number - self._messages[0].number < self._settings.ahead_messages

    def _limit(self) -> int:
        """Return the offset below which messages may begin; a handover begins only what keeps others from a commit."""
        if self._right.allocated:
            return self._end
        failed = min((offset for _, offset, _ in self._suspended), default=self._end)
        return min(failed, self._highest_done)

    def _batch_of(self, queue: _KeyQueue, limit: int) -> int:
        most = 1 if self.is_careful else self._settings.batch_messages
        near = takewhile(lambda message: message.offset < limit and self._is_near(message), queue.messages)
        return sum(1 for _ in islice(near, most))

    # What has ended ---------------------------------------------------------------------------------------------

    def finished(self, offset: int, verdict: Verdict, now_ms: int, *, asked_ms: int | None = None) -> MoveAway | None:
        """Take the listener's result for the batch that begins at `offset`; return a batch to move away.

        A result that comes without the right to the partition is discarded (SPEC ORDER-10).
        """
        queue = self._begun[offset]
        assert queue.is_heard, "a batch ends once"
        queue.is_heard = False
        if self._is_lost(now_ms):
            del self._begun[offset]
            return None
        if verdict is Verdict.SUCCESS:
            self._done(queue)
        elif verdict is Verdict.DEAD or self._settings.on_failure is OnFailure.RETRY_TOPIC or self._used_up(queue):
            return self._move_away(queue, verdict)
        else:
            self._suspend(queue, now_ms, asked_ms)
        return None

    def moved(self, offset: int, ok: bool, now_ms: int) -> None:
        """Note whether the batch that begins at `offset` was appended elsewhere; if not, it is tried again in place."""
        queue = self._begun[offset]
        if self._is_lost(now_ms):
            del self._begun[offset]
        elif ok:
            self._done(queue)
        else:
            self._suspend(queue, now_ms, None)

    def _used_up(self, queue: _KeyQueue) -> bool:
        return self._settings.on_failure is not OnFailure.IN_PLACE and queue.attempts >= self._settings.max_attempts

    def _move_away(self, queue: _KeyQueue, verdict: Verdict) -> MoveAway:
        dead = verdict is Verdict.DEAD or self._settings.on_failure is OnFailure.DEAD_LETTER
        return MoveAway(_offsets(queue), queue.attempts, dead)

    def _done(self, queue: _KeyQueue) -> None:
        del self._begun[queue.head]
        self._careful = max(0, self._careful - queue.batch)
        self._done_ahead += queue.batch
        for _ in range(queue.batch):
            message = queue.messages.popleft()
            message.done = True
            self._highest_done = max(self._highest_done, message.offset)
        queue.batch = queue.attempts = 0
        if queue.messages:
            heapq.heappush(self._ready, (queue.head, queue))
        else:
            del self._queues[queue.name]
        while self._messages and self._messages[0].done:
            self._messages.popleft()
            self._done_ahead -= 1

    def _suspend(self, queue: _KeyQueue, now_ms: int, asked_ms: int | None) -> None:
        del self._begun[queue.head]
        resume_ms = now_ms + suspend_ms(asked_ms, self._settings.suspend_ms)
        heapq.heappush(self._suspended, (resume_ms, queue.head, queue))


def _offsets(queue: _KeyQueue) -> tuple[int, ...]:
    return tuple(message.offset for message in islice(queue.messages, queue.batch))
