"""How the waits between tries grow: the one place that says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Backoff"]

#: Long before that many failures every wait is the longest; the power must not overflow.
_EXPONENT_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that start at `first` and grow by `multiplier` up to `most`, in any one unit."""

    first: float
    most: float
    multiplier: float = 2.0

    def after(self, failures: int) -> float:
        """The wait after that many failures in a row, at least one."""
        assert failures >= 1, "there is no wait before the first failure"
        return min(self.most, self.first * self.multiplier ** min(failures - 1, _EXPONENT_MAX))
