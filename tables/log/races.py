"""Races of writers for a partition's next version: the loser numbers its rows again, and tries again (SPEC RELY-2).

attempt: number the rows from the end offset, put version n+1 --it exists--> apply it --> attempt again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from deltamq.mq.errors import Unavailable
from deltamq.tables.delta.commit import LostRace
from deltamq.tables.store.calls import Work

T = TypeVar("T")


class Races:
    """The races for one partition's versions."""

    __slots__ = ("_name", "_on_lost", "_races_max")

    def __init__(self, name: str, races_max: int, on_lost: Callable[[], None]) -> None:
        """After `races_max` lost races in a row, the partition of this name is reported as contended.

        `on_lost` is called with each lost race, on any thread.
        """
        self._name = name
        self._on_lost = on_lost
        self._races_max = races_max

    async def win(self, attempt: Callable[[], Work[T]]) -> T:
        """Call `attempt` until it does not lose the race; the caller holds the append lock.

        An attempt that lost has applied the winner's commit, so the next one begins at the new end offset.

        Raises
        ------
        Unavailable
            `contention`: other writers were faster too many times in a row; nothing was stored.
        """
        for _ in range(self._races_max):
            try:
                return await attempt()
            except LostRace:
                self._on_lost()
        raise Unavailable(f"{self._name}: lost {self._races_max} races for the next version", code="contention")
