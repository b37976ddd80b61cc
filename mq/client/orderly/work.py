"""One partition in the hands of an ordered consumer: its run, its lock, and which thread has it (SPEC ORDER-6).

    QUEUED ──► RUNNING ──┬──► FETCHING ──┐
      ▲                  ├──► WAITING ───┤ answer, time, or a change of the right
      │                  └──► ENDING     │
      └──────────────────────────────────┘

A work is in one place at a time, so one thread at most runs it.
"""

from __future__ import annotations

import enum
import threading
import time

from mq.client.messages import OrderedMessage
from mq.names import broker_of
from mq.order import ClientLock, OrderlyRun, Right

__all__ = ["Key", "OrderlyWork", "Place", "monotonic_ms"]

#: Topic and partition.
Key = tuple[str, str]


def monotonic_ms() -> int:
    """The one clock by which a client counts its rights."""
    return time.monotonic_ns() // 1_000_000


class Place(enum.Enum):
    """Where a work is."""

    QUEUED = "queued"  #: waits for a thread
    RUNNING = "running"  #: a thread has it
    FETCHING = "fetching"  #: a fetch is open for it
    WAITING = "waiting"  #: until a time
    ENDING = "ending"  #: nothing more is begun: the last commit, then the release


class OrderlyWork:
    """A partition that the client has the lock of; `mutex` guards the run and everything that changes with it."""

    __slots__ = (
        "broker",
        "committed",
        "committed_failures",
        "committing",
        "empty_fetches",
        "failures",
        "lock",
        "messages",
        "mutex",
        "partition",
        "place",
        "renew_after_ms",
        "renewing",
        "right",
        "run",
        "ticket",
        "topic",
    )

    def __init__(self, key: Key, lock: ClientLock, right: Right, run: OrderlyRun) -> None:
        self.topic, self.partition = key
        self.broker = broker_of(self.partition)
        self.lock = lock
        self.right = right
        self.run = run
        #: What is committed as far as the client knows.
        self.committed = run.position
        self.committed_failures = run.failures
        #: The messages that are here, by offset.
        self.messages: dict[int, OrderedMessage] = {}
        self.place = Place.QUEUED
        #: Grows with each fetch and wait, so that what comes late is known as such.
        self.ticket = 0
        self.renewing = False
        self.renew_after_ms = 0
        self.committing = False
        #: Fetches in a row that brought nothing at once, and that failed.
        self.empty_fetches = 0
        self.failures = 0
        self.mutex = threading.Lock()

    @property
    def key(self) -> Key:
        return self.topic, self.partition

    @property
    def position(self) -> int:
        """Everything before is done."""
        with self.mutex:
            return self.run.position

    @property
    def is_committed(self) -> bool:
        """Whether there is nothing new to commit; call it with the mutex held."""
        return (self.run.position, self.run.failures) == (self.committed, self.committed_failures)

    def forget_done(self) -> None:
        """Drop the messages that are done; call it with the mutex held."""
        position = self.run.position
        while self.messages and (first := next(iter(self.messages))) < position:
            del self.messages[first]
