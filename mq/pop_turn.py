"""In which order a pop of a topic visits the partitions of one broker (SPEC POP-1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["Visit", "visits"]

#: One pop in so many tries the retried messages first.
_RETRY_FIRST_EVERY: Final = 5


class Visit(NamedTuple):
    """One partition to pop from."""

    partition: str
    retry: bool


def visits(partitions: Sequence[str], retries: Sequence[str], *, draw: int, ordered: bool = False) -> list[Visit]:
    """Where a pop looks, one after the other, until it has enough.

    All partitions, from a random one on, so that pops do not crowd at the first; the group's retry partitions last, and
    with a probability of 1/5 first, so that neither starves. Ordered pops leave the retries alone (R48). `draw` is a
    random number.
    """
    at = draw // _RETRY_FIRST_EVERY % len(partitions) if partitions else 0
    normal = [Visit(partition, retry=False) for partition in (*partitions[at:], *partitions[:at])]
    if ordered:
        return normal
    again = [Visit(partition, retry=True) for partition in retries]
    return [*again, *normal] if draw % _RETRY_FIRST_EVERY == 0 else [*normal, *again]
