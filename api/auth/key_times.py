"""For how long the keys of an identity provider are used, and how often they are read (SPEC SEC-16)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTimes:
    """Times of a provider's keys, in milliseconds."""

    #: Age of the keys at which they are read again.
    fresh_ms: int = 300_000
    #: Age at which they are forgotten: a provider that is away for longer signs nothing any more.
    stale_ms: int = 6 * 3_600_000
    #: Shortest time between the beginnings of two reads.
    retry_ms: int = 5_000
    #: Longest time of one read.
    read_ms: int = 5_000
    #: Longest time for which a request waits for keys.
    wait_ms: int = 12_000
