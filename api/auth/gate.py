"""The check in front of all paths: who asks, and whether it may (SPEC SEC-4, SEC-5).

    Authorization: Bearer mqk_...  -> key -> principal -> what the path needs -> 401 | 403 | a Caller

What was found for a key, method and path is remembered until the rules change. A request that waits is watched: it ends
when its key or its access does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from api.auth.caller import EVERYBODY, Caller, KnownCaller, refused
from api.auth.calls import Entry, Required, required_by
from api.wire import WATCH, Client, Header, Scope
from mq.auth import AuthState, Decisions, Key, is_right, key_id_of
from mq.auth_limits import AUTHORIZATION_BYTES_MAX, DECISIONS_CACHED_MAX, REMEMBERED_BYTES_MAX
from mq.errors import DeltaMQError, Forbidden, Unauthenticated
from mq.meta import Meta

__all__ = ["Gate"]

_AUTHORIZATION: Final = b"authorization"


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A request that may be answered."""

    caller: Caller
    #: None for an open call.
    key: Key | None
    required: Required


_OPEN: Final = _Admitted(EVERYBODY, None, Required(Entry(is_open=True)))


class Gate:
    """Admits requests, or refuses them; used on the event loop."""

    def __init__(self, state: Callable[[], AuthState], now_ms: Callable[[], int]) -> None:
        """`state` is the newest that this process knows; `now_ms` is the clock by which keys end."""
        self._newest = state
        self._now_ms = now_ms
        self._state = state()
        self._decisions = Decisions(self._state.rules.values())
        self._admitted: dict[tuple[bytes, str, bytes], _Admitted] = {}
        self._callers: dict[str, Caller] = {}
        #: The keys of headers that were right.
        self._keys: dict[bytes, Key] = {}
        #: The requests that wait, with what each was admitted for.
        self._waiting: dict[Client, _Admitted] = {}

    @property
    def decisions(self) -> Decisions:
        """What the newest rules allow."""
        self._follow()
        return self._decisions

    def admit(self, scope: Scope) -> Caller:
        """Return who asks.

        Raises
        ------
        Unauthenticated
            The request has no valid key.
        Forbidden
            The key's principal may not do this.
        """
        if self._newest() is not self._state:
            self._follow()
        sent = _authorization(scope["headers"])
        asked = (sent, scope["method"], scope["raw_path"])
        found = self._admitted.get(asked)
        if found is None:
            found = self._decide(*asked)
            if len(self._admitted) >= DECISIONS_CACHED_MAX:
                self._admitted.clear()
            # Anybody may send any header to an open call, and long ones to others.
            if found is not _OPEN and len(sent) + len(scope["raw_path"]) <= REMEMBERED_BYTES_MAX:
                self._admitted[asked] = found
        elif found.key is not None and found.key.until_ms is not None and not found.key.is_live(self._now_ms()):
            raise _not_valid()
        scope[WATCH] = partial(self._watch, found)
        return found.caller

    def principal_of(self, scope: Scope) -> str:
        """Return whose key a refused request has; empty if it has no valid one."""
        try:
            return self._key(_authorization(scope["headers"])).principal
        except Unauthenticated:
            return ""

    def follow(self, before: Meta, after: Meta) -> None:
        """End the requests that wait and that the newest rules and keys do not admit."""
        if after.auth is not before.auth:
            self._end(list(self._waiting.items()))

    def end_waiting(self) -> None:
        """End the requests that wait and whose key has come to its end."""
        if self._waiting:
            now_ms = self._now_ms()
            self._end([one for one in self._waiting.items() if one[1].key and not one[1].key.is_live(now_ms)])

    def _end(self, waiting: Sequence[tuple[Client, _Admitted]]) -> None:
        self._follow()
        for client, admitted in waiting:
            refusal = self._refusal(client, admitted)
            if refusal is not None:
                client.leave(refusal)

    def _follow(self) -> None:
        """Forget what was remembered if the rules have changed."""
        newest = self._newest()
        if newest is not self._state:
            self._state = newest
            self._decisions = Decisions(newest.rules.values())
            self._admitted.clear()
            self._callers.clear()
            self._keys.clear()

    def _decide(self, sent: bytes, method: str, path: bytes) -> _Admitted:
        required = required_by(method, path)
        if required.call.is_open:
            return _OPEN
        key = self._key(sent)
        admitted = _Admitted(self._caller(key.principal), key, required)
        self._check(key.principal, required)
        return admitted

    def _key(self, sent: bytes) -> Key:
        """Return the key of an `Authorization` header, or raise `Unauthenticated`."""
        key = self._keys.get(sent) or self._found(sent)
        if not key.is_live(self._now_ms()):
            raise _not_valid()
        return key

    def _found(self, sent: bytes) -> Key:
        scheme, _, text = sent.partition(b" ")
        if scheme.lower() != b"bearer" or len(sent) > AUTHORIZATION_BYTES_MAX:
            raise Unauthenticated("send a key: `Authorization: Bearer mqk_...`", field="Authorization")
        token = text.strip().decode("latin-1")
        id_ = key_id_of(token)
        if id_ is None:
            raise _not_valid()
        key = self._state.keys.get(id_)
        if not is_right(key, token) or key is None:
            raise _not_valid()
        if len(self._keys) >= DECISIONS_CACHED_MAX:
            self._keys.clear()
        if len(sent) <= REMEMBERED_BYTES_MAX:
            self._keys[sent] = key
        return key

    def _caller(self, principal: str) -> Caller:
        found = self._callers.get(principal)
        if found is None:
            found = self._callers[principal] = KnownCaller(principal, lambda: self.decisions)
        return found

    def _check(self, principal: str, required: Required) -> None:
        needs = required.call.needs
        if not needs and not self._decisions.has_grants(principal):
            raise Forbidden(f"principal {principal} has no access to anything")
        for need, name in zip(needs, required.names, strict=True):
            if not any(self._decisions.allows(principal, need.resource, name, verb) for verb in need.verbs):
                raise refused(principal, need.resource, name, "|".join(need.verbs))

    # Requests that wait.

    def _watch(self, admitted: _Admitted, client: Client) -> Callable[[], None]:
        """Watch a request that may wait; return the function that ends this."""
        self._waiting[client] = admitted

        def unwatch() -> None:
            self._waiting.pop(client, None)

        return unwatch

    def _refusal(self, client: Client, admitted: _Admitted) -> DeltaMQError | None:
        """Return why a request that was admitted is not any more."""
        key = admitted.key
        if key is None:
            return None
        if self._state.keys.get(key.id) != key or not key.is_live(self._now_ms()):
            return _not_valid()
        try:
            self._check(key.principal, admitted.required)
            for resource, name, verb in client.also_needs:
                admitted.caller.require(resource, name, verb)
        except Forbidden as error:
            return error
        return None


def _authorization(headers: Collection[Header]) -> bytes:
    """Return the `Authorization` header; empty if there is none, or more than one."""
    sent = b""
    for name, value in headers:
        if name == _AUTHORIZATION:
            if sent:
                return b""
            sent = value
    return sent


def _not_valid() -> Unauthenticated:
    return Unauthenticated("the key is not valid: unknown, revoked or over", field="Authorization")
