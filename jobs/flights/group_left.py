"""The messages that are left for each group, by the tables."""

from __future__ import annotations

import msgspec


class GroupsLeft(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that are left for each group, by the tables."""

    #: Messages that are stored and not committed, or in flight; None before the group's first commit is merged.
    left: dict[str, int | None]
    #: Whether it may have changed during the look, or checkpoints are not merged yet.
    moving: bool

    @property
    def nothing(self) -> bool:
        """Whether certainly nothing is left."""
        return not self.moving and all(count == 0 for count in self.left.values())
