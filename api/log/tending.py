"""When open partitions come up without a request, and when their upkeep begins; used on the event loop."""

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
    """The part of a partition that `Tending` uses."""

    #: When it comes up next, by the event loop's clock; `Tending` sets it, infinity at first.
    tended_at_s: float


P = TypeVar("P", bound=TendedPartition)


class Tending(Generic[P]):
    """The open partitions of a process by the time at which each comes up next; used on the event loop."""

    def __init__(self, now_s: Callable[[], float], *, every_s: float = 30.0, apart_s: float = 0.0) -> None:
        """`now_s` is the event loop's clock; a partition in use comes up after `every_s` seconds, and those at rest
        `apart_s` apart in the mean, however many there are, since each makes a few calls then.
        """
        self.every_s = every_s
        self._apart_s = apart_s
        self._planned = 0
        self._now_s = now_s
        self._due: DueTimes[P] = DueTimes()
        #: Due, and not yet taken.
        self._ready: deque[P] = deque()

    def soon(self, partition: P) -> None:
        """Let a partition in use come up after `every_s` at the latest."""
        if partition.tended_at_s > self._now_s() + self.every_s:
            self._plan(partition, self.every_s)

    def again(self, partition: P, wait_s: float) -> None:
        """Let a partition come up again after `wait_s` seconds, an hour at most; at rest later, if there are many."""
        wait_s = min(wait_s, _REST_S_MAX)
        self._plan(partition, wait_s if wait_s <= self.every_s else max(wait_s, self._planned * self._apart_s))

    def take(self) -> list[P]:
        """Return the partitions of one turn that come up now; each has to be planned again."""
        self._ready.extend(self._due.take(_ms(self._now_s())))
        turn = [self._ready.popleft() for _ in range(min(_TURN_MAX, len(self._ready)))]
        for partition in turn:
            self._planned -= 1
            partition.tended_at_s = float("inf")
        return turn

    def drop(self, partition: P) -> None:
        """Forget a partition that is gone."""
        self._discard(partition)
        partition.tended_at_s = float("inf")

    def _plan(self, partition: P, wait_s: float) -> None:
        self._discard(partition)
        self._planned += 1
        partition.tended_at_s = self._now_s() + wait_s
        self._due.add(partition, _ms(partition.tended_at_s))

    def _discard(self, partition: P) -> None:
        if partition.tended_at_s != float("inf"):
            self._planned -= 1
            self._due.discard(partition, self._due.bucket_of(_ms(partition.tended_at_s)))


def _ms(time_s: float) -> int:
    return int(time_s * 1_000)


_AFTER_S: Final = 0.02
_EVERY_S: Final = 1.0
_COMMITS: Final = 128


class UpkeepPace:
    """The commits of one partition since its last upkeep; used on the event loop.

        seldom committed     20 ms after the commit, for it and all commits of that time
        often                a second after the last upkeep, or after 128 commits

    A busy partition has many files by then. A roll-up makes them into one that is mostly final: the rows are written
    once more, not twice, and they are still in memory.
    """

    __slots__ = ("_begun_s", "_commits")

    def __init__(self) -> None:
        self._begun_s = float("-inf")
        self._commits = 0

    def committed(self, now_s: float) -> float:
        """Count a commit; return after how many seconds upkeep should begin, 0.0 for at once."""
        self._commits += 1
        if self._commits >= _COMMITS:
            return 0.0
        return max(_AFTER_S, self._begun_s + _EVERY_S - now_s)

    def begun(self, now_s: float) -> None:
        """Note that upkeep begins now."""
        self._begun_s = now_s
        self._commits = 0
