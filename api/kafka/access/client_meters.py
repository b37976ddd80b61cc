"""What Kafka's clients use of their quotas in this process (SPEC KAFKA-28).

    Produce     its bytes in, Fetch its bytes out: of the narrowest entity that bounds them, with all who share that;
                what else the quota of the principal bounds (SEC-9) is bounded by it

Other calls pass these by, as in Kafka: heartbeats of a consumer do not wait for what it fetches on another connection,
and an administrator can always put back a quota that was too small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deltamq.api.auth.quotas import Meter, Quotas
from deltamq.mq.auth.client_quotas import ClientQuota, Entity, narrowest
from deltamq.mq.auth.principals import Bucket
from deltamq.mq.auth.state import AuthState
from deltamq.mq.limits import CLIENT_METERS_MAX

_RATES: Final[dict[str, Callable[[ClientQuota], int | None]]] = {
    "bytes in": lambda quota: quota.bytes_in_per_s,
    "bytes out": lambda quota: quota.bytes_out_per_s,
}


class ClientMeters:
    """The meters of clients; used on the event loop."""

    def __init__(self, principals: Quotas, newest: Callable[[], AuthState]) -> None:
        self._principals = principals
        self._newest = newest
        #: The state that the meters follow from.
        self._state: AuthState | None = None
        self._meters: dict[tuple[str, str, str], Meter | None] = {}
        #: What is left of each bound, by way and by those who share it; it outlives changes of other bounds.
        self._buckets: dict[tuple[str, Entity], Bucket] = {}

    def meter(self, way: str, principal: str, client_id: str) -> Meter | None:
        """Return what measures a client's calls of one way, "bytes in" or "bytes out"; None if nothing bounds them.

        An empty `principal` is a client without one.
        """
        state = self._newest()
        if not state.client_quotas:
            return self._principals.meter(principal) if principal else None
        if state is not self._state:
            self._state = state
            self._meters.clear()
        asked = way, principal, client_id
        if asked not in self._meters:
            if max(len(self._meters), len(self._buckets)) >= CLIENT_METERS_MAX:  # clients choose their ids
                self._meters.clear()
                self._buckets.clear()
            self._meters[asked] = self._made(state, *asked)
        return self._meters[asked]

    def _made(self, state: AuthState, way: str, principal: str, client_id: str) -> Meter | None:
        own = self._principals.meter(principal) if principal else None
        buckets = {} if own is None else dict(own.buckets)
        for entity, sharers in narrowest(principal, client_id):
            if entity == (principal, None) and way in buckets:
                break
            quota = state.client_quotas.get(entity)
            rate = None if quota is None else _RATES[way](quota)
            if rate is not None:
                buckets[way] = self._bucket(way, sharers, rate)
                break
        return Meter(buckets, self._principals.now_ms) if buckets else None

    def _bucket(self, way: str, sharers: Entity, rate: int) -> Bucket:
        bucket = self._buckets.get((way, sharers))
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[way, sharers] = Bucket(rate, self._principals.now_ms())
        return bucket
