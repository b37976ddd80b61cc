"""One partition that an ordered consumer has: its run, its lock, and its state among the threads (SPEC ORDER-6).

    QUEUED ──► RUNNING ──┬──► FETCHING ──┐
      ▲                  ├──► WAITING ───┤ an answer, the end of a wait, or a change of the right
      │                  ├──► BUSY ──────┤ a listener's end
      │                  └──► ENDING     │
      └──────────────────────────────────┘

A work has one state at a time, so at most one thread runs it. If its keys are heard in parallel (ORDER-11), other
threads hear the messages in every state but ENDING. Calls that are due at a time, such as the end of a wait, are made
by the scheduler's thread (`Timers`).
"""

from __future__ import annotations

import enum
import heapq
import itertools
import threading
import time
from collections.abc import Callable

from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.order.keyed import KeyedRun
from deltamq.mq.order.orderly import OrderlyRun, Right
from deltamq.mq.order.pull_lock import ClientLock

#: Topic and partition.
Key = tuple[str, str]


def monotonic_ms() -> int:
    """Return the time of the clock that a client's rights are measured by, in milliseconds."""
    return time.monotonic_ns() // 1_000_000


class WorkState(enum.Enum):
    """What a work does, or waits for."""

    QUEUED = "queued"  #: waits for a thread
    RUNNING = "running"  #: a thread has it
    FETCHING = "fetching"  #: a fetch is open for it
    WAITING = "waiting"  #: waits until a time
    BUSY = "busy"  #: waits for listeners, if keys are heard in parallel
    ENDING = "ending"  #: begins nothing more; the last commit follows, then the release


class OrderlyWork:
    """A partition whose lock the client has; `mutex` guards the run and everything that changes with it."""

    __slots__ = (
        "broker",
        "committed",
        "committed_failures",
        "committing",
        "empty_fetches",
        "failures",
        "listeners",
        "lock",
        "messages",
        "mutex",
        "partition",
        "renew_after_ms",
        "renewing",
        "right",
        "run",
        "state",
        "ticket",
        "timer_ms",
        "topic",
    )

    def __init__(self, key: Key, lock: ClientLock, right: Right, run: OrderlyRun | KeyedRun, broker: str) -> None:
        self.topic, self.partition = key
        #: The broker whose host has the lock, empty if unknown; it changes when a logical queue moves.
        self.broker = broker
        self.lock = lock
        self.right = right
        self.run = run
        #: The position and failures of the last commit that was answered.
        self.committed = run.position
        self.committed_failures = run.failures
        #: The fetched messages that are not done, by offset.
        self.messages: dict[int, OrderedMessage] = {}
        self.state = WorkState.QUEUED
        #: Grows with each fetch and wait, so that a late answer or timer is recognized.
        self.ticket = 0
        self.renewing = False
        self.renew_after_ms = 0
        self.committing = False
        #: Successive fetches that brought nothing, and successive ones that failed.
        self.empty_fetches = 0
        self.failures = 0
        #: If keys are heard in parallel: threads that hear messages or are about to, and when more of them are due.
        self.listeners = 0
        self.timer_ms: int | None = None
        self.mutex = threading.Lock()

    @property
    def key(self) -> Key:
        return self.topic, self.partition

    @property
    def position(self) -> int:
        """The offset before which all messages are done."""
        with self.mutex:
            return self.run.position

    @property
    def done_ahead(self) -> int:
        """Number of messages above the position that are done: another client would hear them again."""
        with self.mutex:
            return self.run.done_ahead

    @property
    def is_heard(self) -> bool:
        """True if a thread hears messages or is about to."""
        return self.state in (WorkState.QUEUED, WorkState.RUNNING, WorkState.BUSY) or self.listeners > 0

    @property
    def is_committed(self) -> bool:
        """True if there is nothing new to commit; read it with the mutex held."""
        return (self.run.position, self.run.failures) == (self.committed, self.committed_failures)

    def forget_done(self) -> None:
        """Drop the messages that are done; call this with the mutex held."""
        reached = self.run.reached
        while self.messages and (first := next(iter(self.messages))) < reached:
            del self.messages[first]


class Timers:
    """A heap of calls. Safe for any number of threads. It calls `poke` when the next time may have changed."""

    def __init__(self, poke: Callable[[], None]) -> None:
        self._poke = poke
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        #: Calls of one time are made in the order in which they came; calls themselves cannot be compared.
        self._numbers = itertools.count()

    def at(self, due_ms: int, call: Callable[[], None]) -> None:
        """Make a call at a time of `monotonic_ms`."""
        with self._lock:
            heapq.heappush(self._waiting, (due_ms, next(self._numbers), call))
        self._poke()

    def tick(self) -> None:
        """Make the calls that are due."""
        due = []
        with self._lock:
            while self._waiting and self._waiting[0][0] <= monotonic_ms():
                due.append(heapq.heappop(self._waiting)[2])
        for call in due:
            call()

    def next_ms(self) -> int | None:
        """Return when the next call is due."""
        with self._lock:
            return self._waiting[0][0] if self._waiting else None
