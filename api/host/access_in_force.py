"""The access that has not ended by this process's clock, and the readers whom a change of it concerns (ROUTE-9)."""

from __future__ import annotations

from collections.abc import Callable

from deltamq.api.log.partition import Partitions
from deltamq.mq.meta.access import AccessState
from deltamq.mq.meta.fold import Meta


class AccessInForce:
    """The access that has not ended: the same object until something changes or ends, so callers may compare it."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        #: The access in the metadata at the last call, the part of it in force, and when more ends.
        self._known: tuple[AccessState, AccessState, float] | None = None

    def of(self, stored: AccessState) -> AccessState:
        """Return the part of the stored access that is in force now."""
        known = self._known
        if known is None or known[0] is not stored or self._now_ms() >= known[2]:
            present = stored.at(self._now_ms())
            until_ms = float("inf") if present.ends_ms is None else present.ends_ms
            known = self._known = stored, present, until_ms
        return known[1]


def wake_readers(partitions: Partitions, before: Meta, after: Meta) -> None:
    """Let all waiting readers look again after a change of access: some may not read any more, or may read again."""
    if after.access is not before.access and after.access != before.access:
        for partition in list(partitions.awaited):
            partition.wake()
