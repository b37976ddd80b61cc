"""In which order a pop of a topic visits the partitions of one broker (SPEC POP-1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

__all__ = ["visits"]

#: Whatever stands for a partition.
Place = TypeVar("Place")

#: One pop in so many tries the retried messages first.
_RETRY_FIRST_EVERY: Final = 5


def visits(partitions: Sequence[Place], retries: Sequence[Place], *, draw: int) -> list[Place]:
    """Where a pop looks, one after the other, until it has enough.

    All partitions, from a random one on, so that pops do not crowd at the first; the group's retry partitions last, and
    with a probability of 1/5 first, so that neither starves. `draw` is a random number.

    So do ordered pops: what was popped without order, and came too late, is in the retries and nowhere else (POP-3).
    """
    at = draw // _RETRY_FIRST_EVERY % len(partitions) if partitions else 0
    if draw % _RETRY_FIRST_EVERY == 0:
        return [*retries, *partitions[at:], *partitions[:at]]
    return [*partitions[at:], *partitions[:at], *retries]
