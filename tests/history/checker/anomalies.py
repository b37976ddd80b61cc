"""What a checker may find, by name (README.md): used in code, reports and issues alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

__all__ = ["ALLOWED", "LOG", "NAMES", "ORDER", "QUEUE", "Anomaly", "Findings"]

#: Of a log of messages.
LOG: Final = (
    "lost-write",
    "unseen",
    "duplicate",
    "inconsistent-offset",
    "hole",
    "phantom",
    "aborted-read",
    "damaged",
    "unreadable",
    "nonmonotonic-send",
    "out-of-sequence",
    "realtime-order",
    "nonmonotonic-poll",
    "poll-skip",
    "int-nonmonotonic-poll",
    "int-poll-skip",
    "end-regression",
    "unstable-read",
    "stale-epoch-write",
    "batch-torn",
    "api-hides",
    "api-invents",
)
#: Of groups that pop.
QUEUE: Final = (
    "queue-lost",
    "double-lease",
    "redelivered-after-ack",
    "stale-ack-accepted",
    "ack-unknown-receipt",
    "attempt-not-increasing",
    "too-many-attempts",
    "dead-too-soon",
    "dead-twice",
    "acked-and-dead",
    "early-delivery",
    "order-break",
    "stuck",
)
#: Of exclusive groups.
ORDER: Final = ("two-consumers", "processed-twice", "key-order", "unprocessed")
NAMES: Final = (*LOG, *QUEUE, *ORDER)
#: Not anomalies, counted and shown.
ALLOWED: Final = (
    "redelivered-after-expiry",
    "redelivered-after-crash",
    "unknown-stored",
    "unknown-absent",
    "unanswered-ack-counted",
    "own-repeat",
    "processed-again-after-loss",
)


class Anomaly(NamedTuple):
    """One thing that must not happen: where, and what is known of it."""

    name: str
    where: str
    said: str
    #: The moment to look at.
    at: int = 0


class Findings(msgspec.Struct):
    """What the rules found."""

    anomalies: dict[str, list[Anomaly]] = msgspec.field(default_factory=lambda: defaultdict(list))
    allowed: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, name: str, where: str, said: str, at: int = 0) -> None:
        """Note an anomaly."""
        assert name in NAMES, name
        self.anomalies[name].append(Anomaly(name, where, said, at))

    def allow(self, name: str, count: int = 1) -> None:
        """Count what is allowed."""
        assert name in ALLOWED, name
        self.allowed[name] += count

    @property
    def names(self) -> set[str]:
        """The kinds of anomalies found."""
        return {name for name, found in self.anomalies.items() if found}

    @property
    def count(self) -> int:
        """How many."""
        return sum(map(len, self.anomalies.values()))

    def worst(self, limit: int = 8) -> Iterator[Anomaly]:
        """Some of each kind, in the order of the names above, which is that of their weight."""
        for name in NAMES:
            yield from self.anomalies.get(name, ())[:limit]

    def merge(self, others: Iterable[Findings]) -> Findings:
        """These and those."""
        for other in others:
            for name, found in other.anomalies.items():
                self.anomalies[name] += found
            self.allowed += other.allowed
        return self
