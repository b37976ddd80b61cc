"""Changes of principals and of what they have, whichever protocol asks for them (SPEC SEC-3, SEC-5).

A change is answered when it is stored, and when the other processes that can be reached know it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from deltamq.api.auth.caller import EVERYBODY, Caller
from deltamq.api.auth.gate import guarded_warehouse, is_guarded
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.owners import Owners
from deltamq.api.host.peers import Call
from deltamq.mq.auth.state import AuthEvent, AuthState
from deltamq.mq.meta.features import decide_use
from deltamq.mq.meta.fold import AnyEvent, Meta


class AuthChanges:
    """Changes principals, keys, passwords, access rules and quotas; used on the event loop."""

    def __init__(self, meta: HostedMeta, owners: Owners, caller: Caller, call: Call) -> None:
        """`caller` asks for the changes, by the request `call`."""
        self._meta = meta
        self._owners = owners
        self._caller = caller
        self._call = call

    async def store(self, decide: Callable[[AuthState], Sequence[AuthEvent]], *, uses: str | None = None) -> AuthState:
        """Store what `decide` returns for the newest state, and let other processes read it; return the new state.

        `uses` is the feature that they need, which is switched on.

        Raises
        ------
        Unavailable
            `warehouse_guarded`: whoever calls did not authenticate, and the newest state says that this is needed.
        """

        def decided(meta: Meta) -> Sequence[AnyEvent]:
            if self._caller is EVERYBODY and is_guarded(meta):
                raise guarded_warehouse()  # since a moment, or this process would be out already (SPEC SEC-44)
            features = () if uses is None else decide_use(meta.features, meta.brokers.features, uses)
            return (*features, *decide(meta.auth))

        meta = await self._meta.submit_any(decided)
        await self._owners.tell(meta.brokers.brokers, self._call)
        return meta.auth
