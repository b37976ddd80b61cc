"""When something that is due and could not be done is tried again, by whoever remembers nothing of earlier tries.

    due       +1 s      +3 s              +7 s          ... +63 s, then every minute
     |---------|---------|-----------------|----

The times follow from when it was due. A run tries what has such a time between the run before it and itself, so each
is tried at its first run, then after 1 s, 2 s, 4 s, ... and what never works costs next to nothing.
"""

from __future__ import annotations

from typing import Final

__all__ = ["TRY_EVERY_MS_MAX", "TRY_FIRST_MS", "is_tried", "tries_until"]

#: The first wait; each further one is twice as long ...
TRY_FIRST_MS: Final = 1_000
#: ... up to this one.
TRY_EVERY_MS_MAX: Final = 60_000
#: Waits that double: 1, 2, 4, ... 32 s.
_DOUBLED: Final = 6
_DOUBLED_MS: Final = TRY_FIRST_MS * ((1 << _DOUBLED) - 1)


def tries_until(overdue_ms: int) -> int:
    """How many times to try have come, `overdue_ms` after it fell due."""
    if overdue_ms < 0:
        return 0
    if overdue_ms < _DOUBLED_MS:
        return (overdue_ms // TRY_FIRST_MS + 1).bit_length()
    return _DOUBLED + 1 + (overdue_ms - _DOUBLED_MS) // TRY_EVERY_MS_MAX


def is_tried(due_ms: int, *, since_ms: int, now_ms: int) -> bool:
    """Whether what fell due at `due_ms` is tried at `now_ms` by who last looked at `since_ms`.

    A clock that was set back since makes it be tried.
    """
    if not due_ms <= since_ms <= now_ms:
        return due_ms <= now_ms
    return tries_until(now_ms - due_ms) > tries_until(since_ms - due_ms)
