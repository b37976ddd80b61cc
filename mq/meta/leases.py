"""Leases of hosts: when others may declare one dead, and when it must stop serving by itself (SPEC META-1, RELY-6).

Each process measures by its own clock, which never goes back; two clocks are never compared. `mq.meta.brokers` says how
leases are renewed.
"""

from __future__ import annotations

from deltamq.mq.limits import LEASE_MARGIN_MS, LEASE_MS_DEFAULT, LEASE_RENEW_MS
from deltamq.mq.meta.brokers import BrokersState


class LeaseWatch:
    """When one process first saw the newest renewal of each other host, by its own clock. In memory only."""

    __slots__ = ("_lease_ms", "_seen")

    def __init__(self, lease_ms: int = LEASE_MS_DEFAULT) -> None:
        self._lease_ms = lease_ms
        self._seen: dict[str, tuple[int, int]] = {}

    def see(self, state: BrokersState, now_ms: int) -> None:
        """Note the renewals that the log holds now; a renewal counts from when it was first seen."""
        before = self._seen
        self._seen = {
            id: before[id] if id in before and before[id][0] == host.renewal else (host.renewal, now_ms)
            for id, host in state.hosts.items()
        }

    def expired(self, now_ms: int) -> dict[str, int]:
        """Return the hosts whose leases are over, each with its last renewal, for `decide_takeover`."""
        return {id: renewal for id, (renewal, seen_ms) in self._seen.items() if now_ms - seen_ms >= self._lease_ms}


class OwnLease:
    """The lease of this process as a host, by its own clock. In memory only."""

    __slots__ = ("_begun_ms", "_lease_ms", "_margin_ms", "_renew_ms")

    def __init__(
        self,
        begun_ms: int,
        *,
        lease_ms: int = LEASE_MS_DEFAULT,
        margin_ms: int = LEASE_MARGIN_MS,
        renew_ms: int = LEASE_RENEW_MS,
    ) -> None:
        """Begin with the registration of the lease; `begun_ms` is a time before the request for it."""
        assert 0 < margin_ms < lease_ms and renew_ms + margin_ms < lease_ms
        self._lease_ms, self._margin_ms, self._renew_ms = lease_ms, margin_ms, renew_ms
        self._begun_ms = begun_ms

    def renewed(self, begun_ms: int) -> None:
        """Note that a renewal was stored; `begun_ms` is a time before the request for it."""
        self._begun_ms = max(self._begun_ms, begun_ms)

    @property
    def until_ms(self) -> int:
        """When this process must stop serving if it has not renewed its lease by then."""
        return self._begun_ms + self._lease_ms - self._margin_ms

    def holds(self, now_ms: int) -> bool:
        return now_ms < self.until_ms

    def is_due(self, now_ms: int) -> bool:
        """Return whether the next renewal is due."""
        return now_ms - self._begun_ms >= self._renew_ms
