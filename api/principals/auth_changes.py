"""Changes of principals and of what they have, whichever protocol asks for them (SPEC SEC-3, SEC-5).

A change is answered when it is stored, and when the other processes that can be reached know it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.owners import Owners
from deltamq.api.host.peers import Call
from deltamq.mq.auth.state import AuthEvent, AuthState
from deltamq.mq.meta.features import decide_use
from deltamq.mq.meta.fold import AnyEvent, Meta


class AuthChanges:
    """Changes principals, keys, passwords, access rules and quotas; used on the event loop."""

    def __init__(self, meta: HostedMeta, owners: Owners, call: Call) -> None:
        """`call` is the request that asks for the changes."""
        self._meta = meta
        self._owners = owners
        self._call = call

    async def store(self, decide: Callable[[AuthState], Sequence[AuthEvent]], *, uses: str | None = None) -> AuthState:
        """Store what `decide` returns for the newest state, and let other processes read it; return the new state.

        `uses` is the feature that they need, which is switched on.
        """

        def decided(meta: Meta) -> Sequence[AnyEvent]:
            features = () if uses is None else decide_use(meta.features, meta.brokers.features, uses)
            return (*features, *decide(meta.auth))

        meta = await self._meta.submit_any(decided)
        await self._owners.tell(meta.brokers.brokers, self._call)
        return meta.auth
