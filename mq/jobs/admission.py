"""Rules for the size of the next batch of a streaming read: pure functions of message counts and a clock.

The rules are those of the options `maxOffsetsPerTrigger`, `minOffsetsPerTrigger` and `maxTriggerDelay` of Spark's Kafka
source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """The limits that a query sets for its batches; None for a limit that it does not set."""

    messages_max: int | None = None
    messages_min: int | None = None
    #: Longest wait for `messages_min`, counted from the previous batch, in milliseconds.
    delay_ms_max: int = 15 * 60 * 1000

    def must_wait(self, available: int, *, since_last_ms: int | None) -> bool:
        """Return whether the next batch waits for more messages; the first (`since_last_ms` None) never does."""
        if self.messages_min is None or since_last_ms is None or since_last_ms >= self.delay_ms_max:
            return False
        return available < self.messages_min


def admitted(available: Mapping[K, int], messages_max: int | None) -> dict[K, int]:
    """Return how many messages of each partition the next batch takes.

    Partitions share `messages_max` in proportion to their available messages. Each gets at least one, so that none
    starves beside a busy one; a batch may therefore exceed the limit by at most one message for each partition.
    """
    total = sum(available.values())
    if messages_max is None or total <= messages_max:
        return dict(available)
    return {key: min(count, max(1, count * messages_max // total)) for key, count in available.items()}
