"""Quotas: how much a principal may ask of one process (SPEC SEC-9).

    balance  grows by `rate` a second, up to a second's worth
    request  is admitted while the balance is not below zero, and is then taken from it, whatever its size

So a request larger than a second's worth passes, too, and the next one waits for as long as it was too large.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltamq.mq.auth_limits import QUOTA_MAX
from deltamq.mq.errors import Unprocessable


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a principal may use of each process, per second; None is without a bound."""

    principal: str
    requests_per_s: int | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether nothing is bounded."""
        return self.requests_per_s is self.bytes_in_per_s is self.bytes_out_per_s is None


def quota_of(
    principal: str,
    *,
    requests_per_s: int | None = None,
    bytes_in_per_s: int | None = None,
    bytes_out_per_s: int | None = None,
) -> Quota:
    """Return the quota with these bounds; raise `Unprocessable`, which names the one that is wrong."""
    bounds = {
        "requests_per_s": requests_per_s,
        "bytes_in_per_s": bytes_in_per_s,
        "bytes_out_per_s": bytes_out_per_s,
    }
    for name, value in bounds.items():
        if value is not None and not 1 <= value <= QUOTA_MAX:
            raise Unprocessable(f"{name}: must be from 1 to {QUOTA_MAX}", field=name, extra={"limit": QUOTA_MAX})
    return Quota(principal=principal, **bounds)


class Bucket:
    """A token bucket."""

    __slots__ = ("_at_ms", "_balance", "_rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        """`rate` is the number of tokens a second; the bucket begins full."""
        self._rate = rate
        self._balance = float(rate)
        self._at_ms = now_ms

    def wait_s(self, now_ms: int) -> float:
        """Return the seconds until something may be taken; 0 if it may be now."""
        # A clock that goes back gives nothing, and takes nothing.
        grown = self._balance + max(0, now_ms - self._at_ms) * self._rate / 1_000
        self._balance = min(float(self._rate), grown)
        self._at_ms = max(self._at_ms, now_ms)
        return max(0.0, -self._balance / self._rate)

    def take(self, count: int) -> None:
        """Take tokens, more than there are if need be."""
        self._balance -= count
