"""The order in which a pop of a topic visits the partitions of one broker (SPEC POP-1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

#: The type of a partition.
Place = TypeVar("Place")

#: One pop in this many takes retried messages first.
_RETRY_FIRST_EVERY: Final = 5


def visits(partitions: Sequence[Place], retries: Sequence[Place], *, draw: int, as_given: bool = False) -> list[Place]:
    """Return the partitions in the order in which a pop visits them until it has enough messages.

    A pop starts at a random partition, so that pops do not crowd at the first. The group's retry partitions come last,
    and with a probability of 1/5 first, so that neither starves. `draw` is a random number. With `as_given`, a pop does
    not start at a random partition: the partitions are segments of one logical queue, the oldest first.

    Ordered pops visit the retry partitions, too: a message that was popped without order and not acknowledged in time
    is found only there (POP-3).
    """
    at = draw // _RETRY_FIRST_EVERY % len(partitions) if partitions and not as_given else 0
    if draw % _RETRY_FIRST_EVERY == 0:
        return [*retries, *partitions[at:], *partitions[:at]]
    return [*partitions[at:], *partitions[:at], *retries]
