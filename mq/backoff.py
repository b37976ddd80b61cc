"""Exponential back-off between attempts."""

from __future__ import annotations

from typing import Final

import msgspec

#: Largest exponent, so that the power does not overflow; the wait has reached its maximum long before.
_EXPONENT_MAX: Final = 60


class Backoff(msgspec.Struct, frozen=True):
    """Waits that start at `first` and grow by `multiplier` up to `most`, in any one unit."""

    first: float
    most: float
    multiplier: float = 2.0

    def after(self, failures: int) -> float:
        """Return the wait after `failures` failures in a row; `failures` is at least 1."""
        assert failures >= 1, "there is no wait before the first failure"
        return min(self.most, self.first * self.multiplier ** min(failures - 1, _EXPONENT_MAX))
