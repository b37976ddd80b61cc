"""By what right a fetch of a group reads a partition: as the holder of its pull lock, where the group is exclusive."""

from __future__ import annotations

from api.pull_locks import Locks
from mq.group import Group
from mq.topics import Topic
from tables.fetch import Fetched

__all__ = ["Gate"]


class Gate:
    """Looked at before each look into the log, and before what was found leaves."""

    def __init__(self, locks: Locks, group: Group, topic: Topic, partition: str, client: str | None) -> None:
        self._locks = locks
        self._group = group
        self._topic = topic
        self._partition = partition
        self._client = client

    @property
    def is_owners(self) -> bool:
        """Whether only the owner of the partition's broker can say who may read."""
        return self._group.settings.consume_strategy == "exclusive"

    def check(self) -> None:
        """Return if the client may read now.

        Raises
        ------
        Conflict
            `not_lock_holder`, `partition_moved`.
        Unavailable
            The owner of the broker is another process, or has become it meanwhile.
        """
        if self.is_owners:
            self._locks.check_pull(self._group, self._topic, self._partition, self._client)

    def cut(self, found: Fetched) -> Fetched:
        """What the group may have of what was found."""
        return found
