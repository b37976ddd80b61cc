"""Decisions of scheduled jobs: whether a job runs nowhere, who takes which of its shards, when a task is tried again.

Every application decides for itself, from its own view of the applications and of the shards that each holds. Locks,
not these decisions, keep a shard from having two owners, so an outdated view costs one move at most. Applications with
the same view decide the same, and shares differ by one shard at most, with few moves:

    shards  a b c d e        x: a b c d e    y: -        x gives d e, y takes them       x: a b c    y: d e

A task that is due and has failed is tried again without a memory of earlier tries: the times follow from the due time.

    due       +1 s      +3 s              +7 s          ... +63 s, then every minute
     |---------|---------|-----------------|----

A run tries every task that has such a time between the previous run and this one: each task is tried at the first run,
then after 1 s, 2 s, 4 s, ..., and one that never succeeds costs almost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

#: What does not happen while a job does not run.
NEEDED_JOBS: Final = {
    "delay": "delayed messages do not come",
    "revive": "messages that are not acknowledged in time do not come again",
}
#: A job is missed this long after its last run at the earliest: schedulers start and take over in less.
_PATIENCE_MS: Final = 60_000
#: ... and after this many of its intervals.
_INTERVALS: Final = 3
#: A run that began this long ago was killed, and left its record.
_RUN_MS_MAX: Final = 3_600_000


def is_missing(*, ok_ms: int | None, running_ms: int | None, every_ms: int, now_ms: int) -> bool:
    """Whether a job is not carried out anywhere.

    `ok_ms` is when its last run that succeeded began, `running_ms` when a run under way did, in ms since 1970; None:
    there is none. A job that fails each time is missing, too. A clock that was set back makes no job missing.
    """
    if running_ms is not None and now_ms - running_ms <= _RUN_MS_MAX:
        return False
    return ok_ms is None or now_ms - ok_ms > max(_PATIENCE_MS, _INTERVALS * every_ms)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What an application should do about its shards, in this order."""

    take: tuple[str, ...] = ()
    give: tuple[str, ...] = ()


def share_sizes(held: Mapping[str, int], shards: int) -> dict[str, int]:
    """Return how many of the shards each application should hold; the ones that hold most keep the remainder.

    Parameters
    ----------
    held
        How many shards each participating application holds.
    """
    assert held, "at least one application must participate"
    small, left_over = divmod(shards, len(held))
    ranked = sorted(held, key=lambda application: (-held[application], application))
    return {application: small + (rank < left_over) for rank, application in enumerate(ranked)}


def shard_share(
    me: str, applications: Collection[str], shards: Sequence[str], owners: Mapping[str, str], left: Collection[str] = ()
) -> Share:
    """Return what the application `me` should take and give.

    Parameters
    ----------
    applications
        The participating applications, with `me`.
    shards
        All shards that exist; `me` gives back any other shard that it holds.
    owners
        The owner of each shard that is taken. Shards of owners that do not participate are not shared out.
    left
        Shards that were free for so long that their intended owner must have failed: `me` takes them in any case.
    """
    assert me in applications, f"{me} does not participate"
    wanted = sorted(set(shards))
    mine = [shard for shard, owner in owners.items() if owner == me]
    free = [shard for shard in wanted if shard not in owners]
    held = Counter(dict.fromkeys(applications, 0))
    held.update(owners[shard] for shard in wanted if owners.get(shard) in held)
    sizes = share_sizes(held, len(free) + held.total())
    kept = sorted(shard for shard in mine if shard in wanted)
    gone = sorted(shard for shard in mine if shard not in wanted)
    handed = _handed_out(me, free, {application: sizes[application] - held[application] for application in held})
    taken = [shard for shard in free if shard in handed or shard in left]
    return Share(take=tuple(taken), give=(*gone, *kept[sizes[me] :]))


def _handed_out(me: str, free: Sequence[str], missing: Mapping[str, int]) -> Sequence[str]:
    """Return the free shards for `me`; two applications with the same view never get the same shard."""
    start = sum(max(0, count) for application, count in missing.items() if application < me)
    return free[start : start + max(0, missing[me])]


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
