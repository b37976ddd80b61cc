"""When a partition's upkeep begins after its commits.

    seldom committed     20 ms after the commit, for it and all commits of that time
    often                a second after the last upkeep, or after 128 commits

A busy partition has many files by then, which a roll-up makes into one that is mostly final: its rows are written once
more and not twice, and they are in memory still.
"""

from __future__ import annotations

from typing import Final

_AFTER_S: Final = 0.02
_EVERY_S: Final = 1.0
_COMMITS: Final = 128


class UpkeepPace:
    """The commits of one partition since its last upkeep; used on the event loop."""

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
