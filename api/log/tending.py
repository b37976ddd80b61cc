"""When partitions need work without a request: a queue of the partitions that are due, so that others cost nothing.

    opened, committed --every `every_s` while it is used--> news of other processes, upkeep
                            '--not used--> at rest: nothing in memory for readers --upkeep is due--> upkeep

At rest a partition comes up again when its next clean-up or sweep is due, or after an hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from deltamq.mq.queue.due_times import DueTimes

#: Longest rest of a partition, in seconds: then it comes up to see the commits of other processes.
_REST_S_MAX: Final = 3_600.0
#: Maximum number of partitions that come up in one turn; waiting readers are served between turns.
_TURN_MAX: Final = 32


class TendedPartition(Hashable, Protocol):
    """What `Tending` needs of a partition."""

    #: When it comes up next, by the event loop's clock; `Tending` sets it, infinity at first.
    tended_at_s: float


T = TypeVar("T", bound=TendedPartition)


class Tending(Generic[T]):
    """The open partitions of a process by the time at which each comes up next; used on the event loop."""

    def __init__(self, now_s: Callable[[], float], *, every_s: float = 30.0) -> None:
        """`now_s` is the event loop's clock; a partition in use comes up after `every_s` seconds."""
        self.every_s = every_s
        self._now_s = now_s
        self._due: DueTimes[T] = DueTimes()
        #: Due, and not yet taken.
        self._ready: deque[T] = deque()

    def soon(self, partition: T) -> None:
        """Let a partition in use come up after `every_s` at the latest."""
        if partition.tended_at_s > self._now_s() + self.every_s:
            self._plan(partition, self.every_s)

    def again(self, partition: T, wait_s: float) -> None:
        """Let a partition that has come up come up again after `wait_s` seconds, an hour at most."""
        self._plan(partition, min(wait_s, _REST_S_MAX))

    def take(self) -> list[T]:
        """Return the partitions of one turn that come up now; each has to be planned again."""
        self._ready.extend(self._due.take(_ms(self._now_s())))
        turn = [self._ready.popleft() for _ in range(min(_TURN_MAX, len(self._ready)))]
        for partition in turn:
            partition.tended_at_s = float("inf")
        return turn

    def drop(self, partition: T) -> None:
        """Forget a partition that is gone."""
        self._discard(partition)
        partition.tended_at_s = float("inf")

    def _plan(self, partition: T, wait_s: float) -> None:
        self._discard(partition)
        partition.tended_at_s = self._now_s() + wait_s
        self._due.add(partition, _ms(partition.tended_at_s))

    def _discard(self, partition: T) -> None:
        if partition.tended_at_s != float("inf"):
            self._due.discard(partition, self._due.bucket_of(_ms(partition.tended_at_s)))


def _ms(time_s: float) -> int:
    return int(time_s * 1_000)
