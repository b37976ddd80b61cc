"""The metadata log on the event loop: blocking calls go to threads, and who keeps something for a topic or a group is
told when it ended, whoever ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from api.partition import Partitions
from mq.group import GroupEvent
from mq.topics import Event, MetaState
from tables.metadata import AnyEvent, Meta, MetaLog

__all__ = ["Follower", "HostedMeta"]

#: Called on the event loop with the state before and after.
Follower: TypeAlias = Callable[[Meta, Meta], None]


class HostedMeta:
    """One process's view of the metadata, and the only one that changes it there."""

    def __init__(self, log: MetaLog, partitions: Partitions) -> None:
        self._log = log
        self._run = partitions.run
        self._told = log.meta
        self._followers: list[Follower] = []

    @property
    def now(self) -> Meta:
        """The newest known state; never modified, so it may be kept."""
        return self._log.meta

    def follow(self, follower: Follower) -> None:
        """Tell `follower` of every change from now on."""
        self._followers.append(follower)

    async def refresh(self) -> Meta:
        """See what other processes did."""
        await self._run(self._log.refresh)
        self._tell()
        return self.now

    async def submit(self, decide: Callable[[MetaState], Sequence[Event]]) -> MetaState:
        """Change topics (see `MetaLog.submit`)."""
        state = await self._run(lambda: self._log.submit(decide))
        self._tell()
        return state

    async def submit_groups(self, decide: Callable[[Meta], Sequence[GroupEvent]]) -> Meta:
        """Change groups (see `MetaLog.submit_groups`)."""
        meta = await self._run(lambda: self._log.submit_groups(decide))
        self._tell()
        return meta

    async def submit_any(self, decide: Callable[[Meta], Sequence[AnyEvent]]) -> Meta:
        """Change anything (see `MetaLog.submit_any`)."""
        meta = await self._run(lambda: self._log.submit_any(decide))
        self._tell()
        return meta

    def _tell(self) -> None:
        """Tell the followers once of everything that is new."""
        before, after = self._told, self._log.meta
        self._told = after
        if after is not before:
            for follower in self._followers:
                follower(before, after)
