"""What the tables say is left for each group."""

from __future__ import annotations

import msgspec

__all__ = ["GroupsLeft"]


class GroupsLeft(msgspec.Struct, frozen=True, kw_only=True):
    """What is left for each group, by the tables."""

    #: Stored and not committed, or given away and not done; None before the group's first commit is merged.
    left: dict[str, int | None]
    #: It may have changed while it was looked at, or checkpoints are not merged yet.
    moving: bool

    @property
    def nothing(self) -> bool:
        """Whether nothing is left, for certain."""
        return not self.moving and all(count == 0 for count in self.left.values())
