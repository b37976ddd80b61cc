"""Durations as people write them: `30m`, `24h`, `7d`."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["duration_s"]

_DURATION: Final = re.compile(r"([1-9]\d*)([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def duration_s(text: str, *, digits_max: int) -> int | None:
    """Return a duration in seconds; None if the text is not a duration, or its number has too many digits."""
    found = _DURATION.fullmatch(text)
    if found is None or len(found[1]) > digits_max:
        return None
    return int(found[1]) * _UNIT_S[found[2]]
