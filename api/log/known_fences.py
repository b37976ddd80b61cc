"""What appends to a partition say that they know of its fences, as the log sees it (see `api.host.fencing`)."""

from __future__ import annotations

from typing import Protocol

from mq.errors import Fenced, Unavailable
from tables.queue import Known

__all__ = ["KnownFences", "not_known"]


class KnownFences(Protocol):
    """What one process knows of fences."""

    def known(self, partition: str) -> Known:
        """The epochs that an append to the partition says that it knows, by kind of fence."""

    def is_ours(self, partition: str) -> bool:
        """Whether this process serves the partition's broker."""

    async def learn(self, partition: str, error: Fenced) -> None:
        """Return when this process knows of the fence that refused an append.

        Raises
        ------
        Unavailable
            `fenced`: it does not.
        """


def not_known(partition: str, error: Fenced) -> Unavailable:
    """What a client is told whose append was refused for a reason that this process cannot see."""
    return Unavailable(f"{partition} is being taken over; ask again ({error.detail})", code="fenced")
