"""A handle that a call refused, as answers name it."""

from __future__ import annotations

import msgspec

__all__ = ["FailedHandle"]


class FailedHandle(msgspec.Struct):
    """A handle that was refused: `handle_invalid` or `handle_expired`.

    `outcome_unknown`: it came in time, but was stored so late that the message may have been delivered again before.
    """

    handle: str
    code: str
