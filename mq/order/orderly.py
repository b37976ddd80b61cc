"""Orderly consumption: the run of one partition in a client, and its right to go on (SPEC ORDER-6 to ORDER-10).

    next --> Process --> finished(SUCCESS) -------------------------------------> position moves, next
      |        ^          |
      |        |          +-(SUSPEND)--> again after suspend_ms, nothing overtakes
      |        '----------'    '-- attempts used up --> MoveAway --> moved(ok) --> position moves, next
      |---- used up by clients before this one ----------^           moved(not ok) --> again in place
      +--> Fetch, Wait (suspended), Yield (60 s are over), Stop (lost, or handed over)

The right to a partition consists of an authorization, a pull lock, and the allocation. Without authorization or lock,
another client may be at work: the run begins nothing, and discards results that come then (ORDER-3, ORDER-10). If only
the allocation went to another client, that client waits for this one's lock: the run finishes and commits the batch in
progress, begins nothing more, and the lock is released after the last commit (ORDER-5). So a handover repeats no
message.

Failed attempts are committed with the position, and the next client goes on counting. A client that dies cannot report:
the broker counts a failure of the message at the committed offset. But the dead client may have been at a later
message, which it had not committed yet. So a client that finds a message tried twice is *careful* for a while: it takes
messages one by one, and commits before each. If the next death has the same message at the committed offset, that
message is the one that kills clients.

A listener may commit by hand (CONS-8). Then the position stays at the first message that was heard since the last
commit, and a rollback pulls from there again. The attempts of dead clients count for nothing: when only the listener
commits, the committed offset does not show which message they had.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from deltamq.mq.limits import (
    AHEAD_MESSAGES_DEFAULT,
    MAX_ATTEMPTS_DEFAULT,
    RUN_MS_MAX,
    SUSPEND_MS_DEFAULT,
    SUSPEND_MS_MAX,
    SUSPEND_MS_MIN,
)
from deltamq.mq.order.authorization import Authorization
from deltamq.mq.order.pull_lock import ClientLock


class Verdict(enum.Enum):
    """The result of a listener for a batch; an exception, or no result, counts as `SUSPEND` (SPEC ORDER-7)."""

    SUCCESS = "success"
    SUSPEND = "suspend"
    #: The batch must go to the dead letters.
    DEAD = "dead"
    #: Success, and everything heard so far is committed; only without `autocommit` (SPEC CONS-8).
    COMMIT = "commit"
    #: Everything since the last commit must be heard again; only without `autocommit`.
    ROLLBACK = "rollback"

    @property
    def is_success(self) -> bool:
        """Whether the listener is done with the batch."""
        return self in (Verdict.SUCCESS, Verdict.COMMIT)


class OnFailure(enum.Enum):
    """What happens to messages that fail (SPEC ORDER-8)."""

    IN_PLACE = "in_place"  #: repeated for ever: strict topics
    DEAD_LETTER = "dead_letter"  #: repeated until the attempts are used up, then dead-lettered
    RETRY_TOPIC = "retry_topic"  #: moved to the retry topic at once, and the run goes on: best-tried order

    @classmethod
    def of(cls, *, strict: bool, best_tried: OnFailure | None = None) -> OnFailure:
        """Return the choice for a topic: `IN_PLACE` if it is strict, else `best_tried`, else dead letters."""
        return cls.IN_PLACE if strict else best_tried or cls.DEAD_LETTER


class RunState(enum.Enum):
    """The state of a run."""

    READY = "ready"
    PROCESSING = "processing"  #: one thread has a batch
    MOVING = "moving"  #: a batch is being appended to the dead letters or the retry topic
    LOST = "lost"  #: authorization or lock are over: do nothing, another client may have the partition
    HANDED_OVER = "handed_over"  #: commit the position, then release the lock

    def to(self, state: RunState) -> RunState:
        """Return `state`; asserts that it may follow this one."""
        assert state in _NEXT[self], f"a run does not go from {self.value} to {state.value}"
        return state


_NEXT: Final[dict[RunState, frozenset[RunState]]] = {
    RunState.READY: frozenset({RunState.PROCESSING, RunState.MOVING, RunState.LOST, RunState.HANDED_OVER}),
    RunState.PROCESSING: frozenset({RunState.READY, RunState.MOVING, RunState.LOST}),
    RunState.MOVING: frozenset({RunState.READY, RunState.LOST}),
    RunState.LOST: frozenset(),
    # The right may be over before the last commit is stored.
    RunState.HANDED_OVER: frozenset({RunState.LOST}),
}


class Process(msgspec.Struct, frozen=True):
    """Pass these messages to the listener, in one thread; check `Right.holds` again before each (SPEC ORDER-3)."""

    offsets: tuple[int, ...]
    #: The number of this attempt at the first message, from 1 on.
    attempt: int


class Fetch(msgspec.Struct, frozen=True):
    """Pull messages from `offset` on."""

    offset: int


class Wait(msgspec.Struct, frozen=True):
    """The run is suspended: ask again at `until_ms`."""

    until_ms: int


class Yield(msgspec.Struct, frozen=True):
    """Let other partitions have a turn; ask again after `begin_turn` (SPEC ORDER-9)."""


class MoveAway(msgspec.Struct, frozen=True):
    """Append these messages to the dead letters or to the retry topic, and report the result (`OrderlyRun.moved`)."""

    offsets: tuple[int, ...]
    #: How often the first message was tried.
    attempts: int
    dead: bool


class Stop(msgspec.Struct, frozen=True):
    """The run is over: `LOST` or `HANDED_OVER`."""

    state: RunState


Step = Process | Fetch | Wait | Yield | MoveAway | Stop


class OrderlySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of ordered consumption in a client."""

    on_failure: OnFailure = OnFailure.DEAD_LETTER
    max_attempts: int = MAX_ATTEMPTS_DEFAULT
    suspend_ms: int = SUSPEND_MS_DEFAULT
    #: Messages that a listener gets at once. They fail and are dead-lettered together.
    batch_messages: int = 1
    run_ms_max: int = RUN_MS_MAX
    #: Keys of one partition that are heard at once; with 1, its messages are heard one after another (SPEC ORDER-11).
    keys_in_parallel: int = 1
    #: Messages from the lowest one on that is not done, up to the last one that may begin.
    ahead_messages: int = AHEAD_MESSAGES_DEFAULT
    #: Whether a success is committed; otherwise the listener commits by its verdicts (SPEC CONS-8).
    autocommit: bool = True


def suspend_ms(asked_ms: int | None, default_ms: int = SUSPEND_MS_DEFAULT) -> int:
    """Return how long a run is suspended, within the bounds; None and negative times mean the default."""
    wanted = default_ms if asked_ms is None or asked_ms < 0 else asked_ms
    return min(max(wanted, SUSPEND_MS_MIN), SUSPEND_MS_MAX)


#: From this attempt on, the message, or one behind it, may be the one that kills clients: the next 256 messages are
#: processed one by one, each after a commit. That is more than most clients process between two commits. If the killer
#: lies further on, progress is committed up to there, and the next death is nearer to it.
CAREFUL_FROM: Final = 2
CAREFUL_MESSAGES: Final = 256


class Right:
    """The right of a client to consume one partition. It ends when authorization or lock do, even if they come back."""

    __slots__ = ("_authorization", "_lapses", "_lock", "allocated")

    def __init__(self, authorization: Authorization, lock: ClientLock) -> None:
        self._authorization = authorization
        self._lapses = authorization.lapses
        self._lock = lock
        #: Whether the partition is allocated to this client.
        self.allocated = True

    def holds(self, now_ms: int) -> bool:
        """Return whether no other client can be at work on the partition."""
        return (
            self._authorization.lapses == self._lapses
            and self._authorization.holds(now_ms)
            and self._lock.holds(now_ms)
        )


class OrderlyRun:
    """The run of one partition in one client, under one right. Not safe for threads, except for its states."""

    __slots__ = (
        "_aside",
        "_attempts",
        "_batch",
        "_careful",
        "_end",
        "_mark",
        "_resume_ms",
        "_right",
        "_settings",
        "_turn_ms",
        "_waiting",
        "state",
    )

    def __init__(self, right: Right, offset: int, settings: OrderlySettings, now_ms: int, *, attempts: int = 0) -> None:
        """Begin at the group's committed offset, whose message other clients have tried `attempts` times."""
        self.state = RunState.READY
        counts = settings.on_failure is not OnFailure.IN_PLACE and settings.autocommit
        #: The number of messages that are still processed carefully.
        self._careful = CAREFUL_MESSAGES if counts and attempts >= CAREFUL_FROM else 0
        self._right = right
        self._settings = settings
        #: Messages that were fetched and are not done, the batch first.
        self._waiting: deque[int] = deque()
        #: How many of them belong to the current batch.
        self._batch = 0
        #: Attempts at the message at the position.
        self._attempts = attempts if counts else 0
        #: The offset at which the next pull begins.
        self._end = offset
        #: Without `autocommit`: where the next client would begin, if messages were heard since the last commit.
        self._mark: int | None = None
        #: The messages since then that were moved away: a rollback does not bring them again.
        self._aside: set[int] = set()
        self._resume_ms = now_ms
        self._turn_ms = now_ms

    @property
    def position(self) -> int:
        """The offset to commit: everything below it is done, and committed by the listener, if that is its task."""
        return self.reached if self._mark is None else self._mark

    @property
    def reached(self) -> int:
        """The lowest offset that is not done."""
        return self._waiting[0] if self._waiting else self._end

    @property
    def done_ahead(self) -> int:
        """Number of messages above the position that are done; a plain run hears them in order, so there are none."""
        return 0

    @property
    def failures(self) -> int:
        """How often the message at the position has failed, to commit with it; 0 where that does not matter."""
        if self._settings.on_failure is OnFailure.IN_PLACE or not self._settings.autocommit:
            return 0
        return self._attempts - (self.state is RunState.PROCESSING)

    @property
    def is_careful(self) -> bool:
        """Whether to commit before each message, because one of these may have killed earlier clients."""
        return self._careful > 0

    def begin_turn(self, now_ms: int) -> None:
        """Begin another turn of the partition in a thread."""
        self._turn_ms = now_ms

    def fetched(self, offsets: Iterable[int], next_offset: int) -> None:
        """Add the messages of a pull from `Fetch.offset`; offsets between them were filtered out."""
        assert next_offset >= self._end, "a pull goes forward"
        reached = self.reached
        self._waiting.extend(offset for offset in offsets if offset not in self._aside)
        self._end = next_offset
        if self.reached != reached:
            self._attempts = 0
        assert all(left < right for left, right in zip(self._waiting, islice(self._waiting, 1, None), strict=False))

    def next(self, now_ms: int) -> Step:
        """Return what to do now. Not called while a batch is processed or moved: a run has one thread (ORDER-6)."""
        if self.state is RunState.READY:
            self._look(now_ms)
        if self.state in (RunState.LOST, RunState.HANDED_OVER):
            return Stop(self.state)
        assert self.state is RunState.READY, f"the run is {self.state.value}"
        if now_ms - self._turn_ms >= self._settings.run_ms_max:
            return Yield()
        if now_ms < self._resume_ms:
            return Wait(self._resume_ms)
        if not self._waiting:
            return Fetch(self._end)
        if not self._batch:
            self._batch = 1 if self.is_careful else min(len(self._waiting), self._settings.batch_messages)
            if self._used_up() and self._attempts > CAREFUL_FROM:
                return self._move_away(Verdict.SUSPEND)
        self._attempts += 1
        self.state = self.state.to(RunState.PROCESSING)
        return Process(tuple(islice(self._waiting, self._batch)), self._attempts)

    def _look(self, now_ms: int) -> None:
        if not self._is_lost(now_ms) and not self._right.allocated:
            self.state = self.state.to(RunState.HANDED_OVER)

    def may_commit(self, now_ms: int) -> bool:
        """Return whether the position may be committed now; a lost run leaves that to its successor."""
        return not self._is_lost(now_ms)

    def _is_lost(self, now_ms: int) -> bool:
        """Return whether the right is over, now or at an earlier check; commits check while the listener runs."""
        if self.state is not RunState.LOST and not self._right.holds(now_ms):
            self.state = self.state.to(RunState.LOST)
        return self.state is RunState.LOST

    def finished(self, verdict: Verdict, now_ms: int, *, done: int = 0, asked_ms: int | None = None) -> MoveAway | None:
        """Take the listener's result for the batch; return what must be done before anything else, if anything.

        If the batch fails, its first `done` messages have succeeded. A result that comes without the right to the
        partition is discarded (SPEC ORDER-10).
        """
        if self._is_lost(now_ms):
            return None
        assert self.state is RunState.PROCESSING, f"the run is {self.state.value}"
        assert 0 <= done <= self._batch
        if verdict is Verdict.ROLLBACK:
            self._roll_back(now_ms, asked_ms)
            return None
        self._drop(self._batch if verdict.is_success else done)
        if verdict is Verdict.COMMIT:
            self._mark = None
            # After a rollback, some may still lie ahead.
            self._aside = {offset for offset in self._aside if offset >= self.reached}
        if self._batch and self._goes_away(verdict):
            return self._move_away(verdict)
        if self._batch:
            self._suspend(now_ms, asked_ms)
        self.state = self.state.to(RunState.READY)
        return None

    def _goes_away(self, verdict: Verdict) -> bool:
        at_once = verdict is Verdict.DEAD or self._settings.on_failure is OnFailure.RETRY_TOPIC
        return at_once or self._used_up()

    def _used_up(self) -> bool:
        return self._settings.on_failure is not OnFailure.IN_PLACE and self._attempts >= self._settings.max_attempts

    def _move_away(self, verdict: Verdict) -> MoveAway:
        self.state = self.state.to(RunState.MOVING)
        dead = verdict is Verdict.DEAD or self._settings.on_failure is OnFailure.DEAD_LETTER
        return MoveAway(tuple(islice(self._waiting, self._batch)), self._attempts, dead)

    def moved(self, ok: bool, now_ms: int) -> None:
        """Note whether the batch was appended elsewhere; if not, it is tried again in place (SPEC ORDER-8)."""
        if self._is_lost(now_ms):
            return
        assert self.state is RunState.MOVING, f"the run is {self.state.value}"
        if ok:
            if not self._settings.autocommit:
                self._aside.update(islice(self._waiting, self._batch))
            self._drop(self._batch)
        else:
            self._suspend(now_ms, None)
        self.state = self.state.to(RunState.READY)

    def _drop(self, count: int) -> None:
        """Drop the first messages, which are done; the attempts now count for the first one that is not."""
        if count and not self._settings.autocommit and self._mark is None:
            self._mark = self._waiting[0]
        for _ in range(count):
            self._waiting.popleft()
        self._batch -= count
        self._careful = max(0, self._careful - count)
        if count:
            self._attempts = 0 if not self._batch else 1

    def _roll_back(self, now_ms: int, asked_ms: int | None) -> None:
        """Go back to the last commit, and wait as after a suspension; how often that may happen has no bound."""
        if self._mark is not None:
            self._waiting.clear()
            self._end, self._mark = self._mark, None
        self._batch = self._attempts = 0
        self._suspend(now_ms, asked_ms)
        self.state = self.state.to(RunState.READY)

    def _suspend(self, now_ms: int, asked_ms: int | None) -> None:
        self._resume_ms = now_ms + suspend_ms(asked_ms, self._settings.suspend_ms)
