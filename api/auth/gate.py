"""The check in front of all paths: which principal calls, and whether it may (SPEC SEC-4, SEC-5).

    Authorization: Bearer ...            -> credential -> principal -> what the path needs -> 401 | 403 | a Caller
    Mq-Principal: ..., with another cluster's proof -> ^

The decision for a credential, method and path is remembered until the rules or quotas change. A request that waits is
watched: it ends when its credential or its access does, or when nobody can tell whether they have (SPEC SEC-45).

Whether a warehouse is guarded is a fact of the warehouse, not of one process's settings (SPEC SEC-44): `deltamq auth
init` makes the first principal; from then on the metadata holds the access rules, and a process that does not
authenticate its callers would be an open door.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

import msgspec

from deltamq.api.auth.caller import EVERYBODY, OTHER_CLUSTER, Caller, KnownCaller, refused
from deltamq.api.auth.calls import CallNeeds, Required, required_by
from deltamq.api.auth.credentials import Credentials, SignerUnknown, disabled, not_valid
from deltamq.api.auth.forwarded import caller_header
from deltamq.api.wire.answer import Header
from deltamq.api.wire.request import WATCH, Client, Scope
from deltamq.mq.auth.callers import Credential, Decisions
from deltamq.mq.auth.keys import ending_keys
from deltamq.mq.auth.state import AuthState
from deltamq.mq.errors import DeltaMQError, Forbidden, Unauthenticated, Unavailable
from deltamq.mq.limits import (
    AUTHORIZATION_BYTES_MAX,
    CREDENTIALS_BYTES_MAX,
    DECISIONS_CACHED_MAX,
    REMEMBERED_BYTES_MAX,
)
from deltamq.mq.meta.fold import Meta
from deltamq.mq.wire.auth import SignInInfo

log = logging.getLogger("deltamq.api")

#: Name of the entry of a request's scope with the `Credential` that counts if it has no `Authorization`.
SHOWN: Final = "deltamq.shown"
_AUTHORIZATION: Final = b"authorization"
_DAY_MS: Final = 24 * 3_600_000


class Admitted(msgspec.Struct, frozen=True):
    """A request that may be answered."""

    caller: Caller
    #: None for an open call, and for a call of another cluster in its own name.
    credential: Credential | None
    required: Required
    #: Whether the time alone may end the credential.
    is_timed: bool = False
    #: Whether another cluster named the principal.
    is_named: bool = False
    #: Whether the principal has a quota.
    is_metered: bool = False


_OPEN: Final = Admitted(EVERYBODY, None, Required(CallNeeds(is_open=True)))


class _Known(msgspec.Struct, frozen=True):
    """The valid credential of a header, and the requests that were admitted with it, by method and path."""

    credential: Credential
    admitted: dict[tuple[str, bytes], Admitted] = msgspec.field(default_factory=dict)


class Gate:
    """Admits requests, or refuses them; used on the event loop."""

    def __init__(
        self,
        state: Callable[[], AuthState],
        now_ms: Callable[[], int],
        credentials: Credentials | None = None,
        unread: Callable[[], Unavailable | None] = lambda: None,
    ) -> None:
        """`state` returns the newest state that this process knows; `now_ms` is the clock by which credentials end.

        `unread` returns why that state may be out of date, None if it is not (`HostedMeta.unread`).
        """
        self._newest = state
        #: Why nobody may go on: revocations may have been missed; None if none were.
        self.unread = unread
        self._now_ms = now_ms
        #: Checks keys and tokens.
        self.credentials = credentials or Credentials(state, now_ms)
        self._state = state()
        self._decisions = Decisions(self._state.rules.values())
        self._callers: dict[tuple[str, tuple[str, ...]], Caller] = {}
        #: What is remembered, by header; the bytes of all headers, and the number of requests admitted.
        self._known: dict[bytes, _Known] = {}
        self._known_bytes = self._admitted = 0
        #: How often everything remembered was dropped because it might be out of date.
        self._forgotten = 0
        #: The requests that wait, each with its admission.
        self._waiting: dict[Client, Admitted] = {}
        #: When it is next logged which keys end soon.
        self._warn_at_ms = 0
        #: Called when rules or credentials have changed, and often, since time ends some: for other connections.
        self.followers: list[Callable[[], None]] = []
        #: How people sign in at an identity provider.
        self.sign_in: Callable[[], SignInInfo] = SignInInfo

    @property
    def decisions(self) -> Decisions:
        """What the newest rules allow."""
        self._follow()
        return self._decisions

    def admit(self, scope: Scope) -> Caller:
        """Return the caller, by what this process knows now.

        Raises
        ------
        Unauthenticated
                The request has no valid key or token. `SignerUnknown`: it may have one after `credentials.read_keys`.
        Forbidden
            The principal may not do this, or is disabled.
        """
        sent, shown = _sent(scope)
        admitted = self.remembered(sent, scope)
        if admitted is None:
            admitted = self._decide(sent, shown, scope["method"], scope["raw_path"])
            scope[WATCH] = partial(self._watch, admitted, self._forgotten)
        return admitted.caller

    def remembered(self, sent: bytes, scope: Scope) -> Admitted | None:
        """Return the decision for this `Authorization`, method and path; None if there is none that is valid now.

        Nearly all requests end here, so it takes as few steps as possible.
        """
        if self._newest() is not self._state:
            self._follow()
        known = self._known.get(sent)
        if known is None:
            return None
        admitted = known.admitted.get((scope["method"], scope["raw_path"]))
        if admitted is None or (admitted.is_timed and not known.credential.is_live(self._now_ms())):
            return None
        scope[WATCH] = partial(self._watch, admitted, self._forgotten)
        return admitted

    async def admit_any(self, scope: Scope) -> Caller:
        """Do as `admit`, and read the identity provider's keys if the token needs that."""
        try:
            return self.admit(scope)
        except SignerUnknown:
            await self.credentials.read_keys()
            return self.admit(scope)

    def admit_named(self, scope: Scope, principal: str) -> Caller:
        """Return the caller that another cluster's proof names; an empty `principal` is that cluster itself.

        Raises
        ------
        Forbidden
            There is no such principal here, it is disabled, or it may not do this.
        """
        self._follow()
        required = required_by(scope["method"], scope["raw_path"])
        if principal:
            credential = Credential(principal=principal)
            refusal = self._ended(credential, is_named=True)
            if refusal is not None:
                raise refusal
            self._check(credential, required)
            admitted = Admitted(self.caller(credential), credential, required, is_named=True)
        elif required.call.is_clusters:
            admitted = Admitted(OTHER_CLUSTER, None, required)
        else:
            raise Forbidden("the cluster that forwarded this named no principal: it needs service.auth, too")
        scope[WATCH] = partial(self._watch, admitted, self._forgotten)
        return admitted.caller

    def caller(self, credential: Credential) -> Caller:
        """Return the caller of a credential; ask `credentials.refusal` whether it is still valid."""
        self._follow()
        whose = credential.principal, credential.groups
        caller = self._callers.get(whose)
        if caller is None:
            if len(self._callers) >= DECISIONS_CACHED_MAX:
                self._callers.clear()
            caller = self._callers[whose] = KnownCaller(whose[0], lambda: self.decisions, whose[1])
        return caller

    def principal_of(self, scope: Scope) -> str:
        """Return the principal of a refused request; empty without a valid credential."""
        sent, shown = _sent(scope)
        try:
            known = self._known.get(sent) or self._identify(sent, shown)
        except Unauthenticated:
            return ""
        return known.credential.principal

    def follow(self, before: Meta, after: Meta) -> None:
        """End waiting requests that the newest rules and principals do not admit."""
        if after.auth is not before.auth:
            self._end(list(self._waiting.items()))
            for follower in self.followers:
                follower()

    def end_waiting(self) -> None:
        """End waiting requests whose credential has ended, all if revocations may have been missed; called often."""
        self.credentials.tend()
        self._warn_of_keys()
        if self._waiting:
            now_ms, is_unread = self._now_ms(), self.unread() is not None
            over = [
                (client, admitted)
                for client, admitted in self._waiting.items()
                if is_unread or (admitted.credential and not admitted.credential.is_live(now_ms))
            ]
            self._end(over)
        for follower in self.followers:
            follower()

    def _warn_of_keys(self) -> None:
        """Log once a day which keys end within a week: their principals need new ones."""
        now_ms = self._now_ms()
        if now_ms < self._warn_at_ms:
            return
        self._warn_at_ms = now_ms + _DAY_MS
        for key in ending_keys(self._newest().keys.values(), now_ms):
            hours = ((key.until_ms or now_ms) - now_ms) / 3_600_000
            log.warning("event=key_ends key=%s principal=%r hours=%.1f", key.id, key.principal, hours)

    def recheck(self) -> None:
        """Check all credentials again: the keys of the identity provider have changed."""
        self._forget()
        self._end(list(self._waiting.items()))
        for follower in self.followers:
            follower()

    def _forget(self) -> None:
        self._known.clear()
        self._known_bytes = self._admitted = 0
        self._forgotten += 1

    def _end(self, waiting: Sequence[tuple[Client, Admitted]]) -> None:
        self._follow()
        for client, admitted in waiting:
            refusal = self._refusal(client, admitted)
            if refusal is not None:
                client.leave(refusal)

    def _follow(self) -> None:
        newest = self._newest()
        if newest is not self._state:
            self._state = newest
            self._decisions = Decisions(newest.rules.values())
            self._callers.clear()
            self._forget()

    def _decide(self, sent: bytes, shown: Credential | None, method: str, path: bytes) -> Admitted:
        required = required_by(method, path)
        if required.call.is_open:
            return _OPEN  # any header may be sent to it, so nothing is remembered
        known = self._known.get(sent) or self._identify(sent, shown)
        credential = known.credential
        if not credential.is_live(self._now_ms()):
            raise not_valid()
        if self._state.is_disabled(credential.principal):
            raise disabled(credential.principal)
        is_metered = credential.principal in self._state.quotas
        admitted = Admitted(
            self.caller(credential), credential, required, is_timed=credential.is_timed, is_metered=is_metered
        )
        self._check(credential, required)
        # Callers choose their paths.
        if len(path) <= REMEMBERED_BYTES_MAX:
            if self._admitted >= DECISIONS_CACHED_MAX:
                self._forget()
            self._admitted += 1
            known.admitted[method, path] = admitted
        return admitted

    def _identify(self, sent: bytes, shown: Credential | None) -> _Known:
        """Check an `Authorization` header, or the credential `shown` in its place, or raise `Unauthenticated`."""
        if shown is not None:
            known = _Known(self.credentials.checked(shown))
        else:
            user, token = _shown_in(sent)
            credential = self.credentials.of(token)
            key_id = None if credential.key is None else credential.key.id
            if user not in (None, credential.principal, key_id):
                raise not_valid()
            known = _Known(credential)
            if known.credential.key is not None and len(sent) > REMEMBERED_BYTES_MAX:
                return known  # a key is short; the caller chooses the rest of such a header
        if self._known_bytes + len(sent) > CREDENTIALS_BYTES_MAX or len(self._known) >= DECISIONS_CACHED_MAX:
            self._forget()
        self._known[sent] = known
        self._known_bytes += len(sent)
        return known

    def _check(self, credential: Credential, required: Required) -> None:
        who, groups, needs = credential.principal, credential.groups, required.call.needs
        if not needs and not self._decisions.has_grants(who, groups):
            raise Forbidden(f"principal {who} has no access to anything")
        allows = self._decisions.allows
        for (resource, verbs), name in zip(needs, required.names, strict=True):
            for verb in verbs:
                if allows(who, resource, name, verb, groups):
                    break
            else:
                raise refused(who, resource, name, "|".join(verbs))

    # Requests that wait.

    def _watch(self, admitted: Admitted, forgotten: int, client: Client) -> Callable[[], None]:
        """Watch a request that waits from now on; return the function that ends this.

        `forgotten` is the count at its admission: the rules may have changed while its body arrived.
        """
        self._waiting[client] = admitted
        if forgotten != self._forgotten:
            self._end([(client, admitted)])

        def unwatch() -> None:
            self._waiting.pop(client, None)

        return unwatch

    def _refusal(self, client: Client, admitted: Admitted) -> DeltaMQError | None:
        """Return why an admitted request would be refused now; None if it would not."""
        unread = self.unread()
        if unread is not None:
            return unread
        credential = admitted.credential
        if credential is None:
            return None
        refusal = self._ended(credential, is_named=admitted.is_named)
        if refusal is not None:
            return refusal
        try:
            self._check(credential, admitted.required)
            for resource, name, verb in client.also_needs:
                admitted.caller.require(resource, name, verb)
        except Forbidden as error:
            return error
        return None

    def _ended(self, credential: Credential, *, is_named: bool) -> DeltaMQError | None:
        """Return why a credential opens nothing now; `is_named` if another cluster named the principal."""
        refusal = self.credentials.refusal(credential)
        unknown = is_named and isinstance(refusal, Unauthenticated)
        return _unknown_here(credential.principal) if unknown else refusal


def _unknown_here(principal: str) -> Forbidden:
    return Forbidden(f"there is no principal {principal} in this cluster", code="principal_unknown")


def _sent(scope: Scope) -> tuple[bytes, Credential | None]:
    """Return the text by which decisions are remembered, and the credential in place of an `Authorization`."""
    sent = _authorization(scope["headers"])
    if sent is not None:
        return sent, None
    shown: Credential | None = scope.get(SHOWN)
    # No header has such a byte.
    return b"" if shown is None else b"\0%s %d" % (caller_header(shown)[1], shown.until_ms or 0), shown


def _authorization(headers: Collection[Header]) -> bytes | None:
    """Return the `Authorization` header; None if there is none, and b"" if there is more than one."""
    sent = None
    for name, value in headers:
        if name == _AUTHORIZATION:
            if sent is not None:
                return b""
            sent = value
    return sent


def _shown_in(sent: bytes) -> tuple[str | None, str]:
    """Return user and key or token of an `Authorization`; no user for a bearer's.

    As with Kafka's PLAIN, the user is the principal or the id of its key.
    """
    scheme, _, text = sent.partition(b" ")
    if len(sent) <= AUTHORIZATION_BYTES_MAX and scheme.lower() == b"bearer":
        return None, text.strip().decode("latin-1")
    if len(sent) <= AUTHORIZATION_BYTES_MAX and scheme.lower() == b"basic":
        try:
            user, _, token = base64.b64decode(text.strip(), validate=True).decode().partition(":")
            return user, token
        except (binascii.Error, UnicodeDecodeError):
            pass
    raise Unauthenticated("send a key or token: `Authorization: Bearer ...`", field="Authorization")


def is_guarded(meta: Meta) -> bool:
    """Whether callers of this warehouse must authenticate."""
    return bool(meta.auth.principals)


def guarded_warehouse() -> Unavailable:
    """Return the error of a process without authentication in a guarded warehouse."""
    return Unavailable(
        "this warehouse is guarded (`deltamq auth init` was run): a process without service.auth may not serve it; set "
        "DELTAMQ_SERVICE_AUTH=true and the cluster's service.cluster_secret, as its other processes have them",
        code="warehouse_guarded",
        field="service.auth",
    )
