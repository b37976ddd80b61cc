"""The fence epochs that appends to a partition know, as `api.log` asks for them (see `api.host.fencing`)."""

from __future__ import annotations

from typing import Protocol

from deltamq.mq.errors import Fenced, Unavailable
from deltamq.tables.queue.placement import FenceEpochs


class FenceEpochsOf(Protocol):
    """The fence epochs that one process knows."""

    def epochs(self, partition: str) -> FenceEpochs:
        """Return the fence epochs for an append to the partition, by kind of fence."""

    def is_ours(self, partition: str) -> bool:
        """Whether this process serves the partition's broker."""

    async def learn(self, partition: str, error: Fenced) -> None:
        """Return when this process knows of the fence that refused an append.

        Raises
        ------
        Unavailable
            `fenced`: this process does not know of the fence yet.
        """


def fence_not_known(partition: str, error: Fenced) -> Unavailable:
    """Return the error for an append that was refused by a fence which this process does not know of."""
    return Unavailable(f"{partition} is being taken over; ask again ({error.detail})", code="fenced")
