"""Times at which a task that is due and has failed is tried again, without a memory of earlier tries.

    due       +1 s      +3 s              +7 s          ... +63 s, then every minute
     |---------|---------|-----------------|----

The times follow from the due time alone. A run tries every task that has such a time between the previous run and this
one: each task is tried at the first run, then after 1 s, 2 s, 4 s, ..., and one that never succeeds costs almost
nothing.
"""

from __future__ import annotations

from typing import Final

#: The first wait; each further one is twice as long.
TRY_FIRST_MS: Final = 1_000
#: The longest wait.
TRY_EVERY_MS_MAX: Final = 60_000
#: The number of waits that double: 1, 2, 4, ... 32 s.
_DOUBLED: Final = 6
_DOUBLED_MS: Final = TRY_FIRST_MS * ((1 << _DOUBLED) - 1)


def tries_until(overdue_ms: int) -> int:
    """Return how many tries were due until `overdue_ms` after the due time."""
    if overdue_ms < 0:
        return 0
    if overdue_ms < _DOUBLED_MS:
        return (overdue_ms // TRY_FIRST_MS + 1).bit_length()
    return _DOUBLED + 1 + (overdue_ms - _DOUBLED_MS) // TRY_EVERY_MS_MAX


def is_tried(due_ms: int, *, since_ms: int, now_ms: int) -> bool:
    """Return whether a run at `now_ms`, after a run at `since_ms`, tries a task that was due at `due_ms`.

    If the clock was set back between the two runs, the task is tried.
    """
    if not due_ms <= since_ms <= now_ms:
        return due_ms <= now_ms
    return tries_until(now_ms - due_ms) > tries_until(since_ms - due_ms)
