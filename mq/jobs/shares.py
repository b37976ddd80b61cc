"""Which shards of a job an application should take, and which it should give back: fair shares with few moves.

Every application decides for itself, from its own view of the applications and of the shards that each holds. Locks,
not these decisions, keep a shard from having two owners, so an outdated view costs one move at most. Applications with
the same view decide the same, and shares differ by one shard at most.

    shards  a b c d e        x: a b c d e    y: -        x gives d e, y takes them       x: a b c    y: d e
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What an application should do about its shards, in this order."""

    take: tuple[str, ...] = ()
    give: tuple[str, ...] = ()


def share_sizes(held: Mapping[str, int], shards: int) -> dict[str, int]:
    """Return how many of the shards each application should hold; those that hold most keep the remainder.

    Parameters
    ----------
    held
        How many shards each participating application holds.
    """
    assert held, "somebody must participate"
    small, left_over = divmod(shards, len(held))
    ranked = sorted(held, key=lambda one: (-held[one], one))
    return {one: small + (rank < left_over) for rank, one in enumerate(ranked)}


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
    handed = _handed_out(me, free, {one: sizes[one] - held[one] for one in held})
    taken = [shard for shard in free if shard in handed or shard in left]
    return Share(take=tuple(taken), give=(*gone, *kept[sizes[me] :]))


def _handed_out(me: str, free: Sequence[str], missing: Mapping[str, int]) -> Sequence[str]:
    """Return the free shards for `me`; two applications with the same view never get the same shard."""
    start = sum(max(0, count) for one, count in missing.items() if one < me)
    return free[start : start + max(0, missing[me])]
