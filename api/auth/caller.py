"""The caller of a request and what it may do: for names in bodies, and for lists; the caller by a TLS certificate."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from typing import Final, Protocol

from deltamq.api.auth.calls import named_by
from deltamq.api.tls import EXTENSION as TLS
from deltamq.api.wire.request import ALSO_NEEDS, Scope
from deltamq.mq.auth.callers import Credential, Decisions
from deltamq.mq.auth.principals import CLUSTER, Resource, Verb, check_caller
from deltamq.mq.errors import Forbidden, Refused
from deltamq.tables.config_sections import TlsPrincipal

#: The verbs to change a topic, and to make one.
_PUT_VERBS: Final[tuple[Verb, Verb]] = ("alter", "create")
#: Name of the entry of a request's scope that has its `Caller`.
CALLER: Final = "deltamq.caller"


class Caller(Protocol):
    """The sender of a request."""

    #: The principal; empty without authentication.
    @property
    def name(self) -> str: ...

    @property
    def has_grants(self) -> bool:
        """Whether it may do anything at all."""

    def allows(self, resource: Resource, name: str, verb: Verb) -> bool:
        """Whether it may do this to a topic or group of this name."""

    def require(self, resource: Resource, name: str, verb: Verb) -> None:
        """Return if it may do this, else raise `Forbidden`."""

    def filter(self, resource: Resource, verb: Verb) -> Callable[[str], bool] | None:
        """Return a function that returns whether the verb is allowed on a name; None if it is on all names."""


class _Everybody:
    """Any caller of a service without authentication."""

    name = ""
    has_grants = True

    def allows(self, resource: Resource, name: str, verb: Verb) -> bool:
        return True

    def require(self, resource: Resource, name: str, verb: Verb) -> None:
        return

    def filter(self, resource: Resource, verb: Verb) -> Callable[[str], bool] | None:
        return None


EVERYBODY: Final[Caller] = _Everybody()


class _OtherCluster:
    """Another cluster that asks in its own name: it may send only the calls for clusters."""

    name = ""
    has_grants = False

    def allows(self, resource: Resource, name: str, verb: Verb) -> bool:
        return False

    def require(self, resource: Resource, name: str, verb: Verb) -> None:
        raise Forbidden(f"another cluster may not {verb} {resource} {name} in its own name", field=resource)

    def filter(self, resource: Resource, verb: Verb) -> Callable[[str], bool] | None:
        return lambda _: False


OTHER_CLUSTER: Final[Caller] = _OtherCluster()


class KnownCaller:
    """A principal, and what it may do by the newest rules that this process knows."""

    def __init__(self, name: str, decisions: Callable[[], Decisions], groups: tuple[str, ...] = ()) -> None:
        """`groups` are the groups in its token: their rules count for the principal."""
        self.name = name
        self._decisions = decisions
        self._groups = groups

    @property
    def has_grants(self) -> bool:
        return self._decisions().has_grants(self.name, self._groups)

    def allows(self, resource: Resource, name: str, verb: Verb) -> bool:
        return self._decisions().allows(self.name, resource, name, verb, self._groups)

    def require(self, resource: Resource, name: str, verb: Verb) -> None:
        if not self.allows(resource, name, verb):
            raise refused(self.name, resource, name, verb)

    def filter(self, resource: Resource, verb: Verb) -> Callable[[str], bool] | None:
        return self._decisions().filter(self.name, resource, verb, self._groups)


def caller_of(scope: Scope) -> Caller:
    """Return the sender of the request. A request that was not checked has no caller, and fails."""
    caller: Caller | None = scope[CALLER]
    assert caller is not None
    return caller


def require_also(scope: Scope, resource: Resource, name: str, verb: Verb) -> None:
    """Raise `Forbidden` unless the caller may do this, too; if the request waits, it ends when this access ends."""
    name = named_by(resource, name)
    caller_of(scope).require(resource, name, verb)
    scope.setdefault(ALSO_NEEDS, []).append((resource, name, verb))


def permit_put(caller: Caller, topic: str) -> Callable[[bool], None]:
    """Return a function that raises `Forbidden` if the caller may not change a topic that exists, or make a new one.

    The access rules are asked now, so that the function may be called on any thread.
    """
    may_alter, may_create = (caller.allows("topic", topic, verb) for verb in _PUT_VERBS)

    def permit(exists: bool) -> None:
        if not (may_alter if exists else may_create):
            raise refused(caller.name, "topic", topic, _PUT_VERBS[0 if exists else 1])

    return permit


def refused(principal: str, resource: Resource, name: str, verb: str) -> Forbidden:
    """Return the error for a principal that may not do this."""
    what = "the cluster" if resource == "cluster" or name == CLUSTER else f"{resource} {name}"
    return Forbidden(f"principal {principal} may not {verb.replace('|', ' or ')} {what}", field=resource)


log = logging.getLogger("deltamq.api")

#: A URI that has one form as a principal: no colon, no empty part.
_URI: Final = re.compile(r"([a-z][a-z0-9+.\-]*)://([A-Za-z0-9._@+\-]+(?:/[A-Za-z0-9._@+\-]+)*)")
_DIGITS: Final = 32
#: Maximum number of subjects without a principal that are logged.
_LOGGED_MAX: Final = 1_000


class Certificates:
    """Certificates of clients, as principals.

    No two names become one principal: a name that cannot be written that way names no principal. A process that
    forwards a request of such a caller names the caller in `Mq-Caller`, which its proof covers; the certificate that
    the other process sees belongs to a process, and names no principal there.

        common_name    CN=billing                                  ->  billing
        uri            spiffe://example.org/ns/prod/sa/billing     ->  spiffe:example.org:ns:prod:sa:billing
        subject        CN=billing,O=Example                        ->  cert:<32 hexadecimal digits of its SHA-256>
    """

    def __init__(self, principal: TlsPrincipal) -> None:
        """`principal` says which part of a certificate names the principal."""
        self._by = principal
        #: Whether certificates name no principal; a lookup in an enumeration takes as long as the rest of a check.
        self.is_off = principal is TlsPrincipal.NONE
        self._logged: set[str] = set()

    def credential(self, scope: Scope) -> Credential | None:
        """Return the principal of the client's certificate; None if it has shown none, or one that names none."""
        shown = scope.get("extensions", {}).get(TLS)
        if self.is_off or shown is None or shown["client_cert_name"] is None:
            return None
        name = self._principal(shown["client_cert_name"], shown["client_common_name"], shown["client_uris"])
        try:
            return Credential(principal=check_caller(name or ""), until_ms=shown["client_cert_until_ms"])
        except Refused:
            return None

    def _principal(self, subject: str, common_name: str | None, uris: tuple[str, ...]) -> str | None:
        if self._by is TlsPrincipal.COMMON_NAME:
            return common_name
        if self._by is TlsPrincipal.SUBJECT:
            return f"cert:{hashlib.sha256(subject.encode()).hexdigest()[:_DIGITS]}"
        parts = _URI.fullmatch(uris[0]) if len(uris) == 1 else None
        return None if parts is None else f"{parts[1]}:{parts[2].replace('/', ':')}"

    def log_unknown(self, scope: Scope, credential: Credential | None) -> None:
        """If the client of a refused request has shown a certificate, log once which principal it names."""
        shown = scope.get("extensions", {}).get(TLS)
        subject = None if shown is None else shown["client_cert_name"]
        if self.is_off or subject is None or subject in self._logged:
            return
        if len(self._logged) < _LOGGED_MAX:
            self._logged.add(subject)
            name = "" if credential is None else credential.principal
            log.info("event=certificate_of_nobody subject=%r principal=%r", subject[:500], name)
