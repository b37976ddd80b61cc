"""A client that shows a Kerberos ticket: SASL's mechanism GSSAPI (RFC 4752; SPEC KAFKA-29).

    client                                        service
    ticket, authenticator     ------------->      looked up in the keytab and in the cache of replays
                              <-------------      the service's own proof
    (empty)                   ------------->
                              <-------------      wrapped: which layers there may be, only the one that is none
    wrapped: its layer, whom it acts for  --->    known, until the ticket ends

As with Kafka, nothing is signed or encrypted by the ticket's key afterwards: TLS does that. A ticket without its key is
worth nothing, so it may be shown without TLS. `client/host@REALM` is the principal `client`, if the realm is the
service's own, or one of `service.kafka_kerberos_realms`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

from deltamq.api.kafka.access.gssapi import LIBRARY, Context, GssapiError, Keytab, Peers
from deltamq.api.kafka.access.session import GSSAPI, Step, malformed
from deltamq.mq.auth.callers import Credential
from deltamq.mq.auth.principals import check_caller
from deltamq.mq.errors import Refused, Unauthenticated, Unavailable
from deltamq.tables.config import ConfigInvalid
from deltamq.tables.config_sections import ServiceSettings

log = logging.getLogger("deltamq.api")

#: So many tickets of a process are looked at once; each takes a millisecond.
_THREADS: Final = 2
#: Most seconds for one message, with the time for which it waits for a thread.
_STEP_S: Final = 15.0
#: The layers that are offered, and the most bytes of a message in one: only the layer that is none (RFC 4752, 3.3).
_NO_LAYER: Final = b"\x01\x00\x00\x00"
#: `primary@REALM` and `primary/instance@REALM`, as Kafka reads names; a backslash would hide one of the signs.
_NAME: Final = re.compile(r"([^/@\\]+)(?:/[^/@\\]+)?@([^/@\\]+)")
_WRONG: Final = "the ticket is wrong: not for this service, over, shown before, or of another realm"


class Ticket(Protocol):
    """One client's ticket (`gssapi.Context`); each call raises `GssapiError` if a message proves nothing."""

    is_complete: bool

    def accept(self, token: bytes) -> bytes:
        """Take the client's next message; return the answer, which may be empty."""

    def wrap(self, data: bytes) -> bytes:
        """Return bytes that only the service can have made."""

    def unwrap(self, token: bytes) -> bytes:
        """Return bytes that only the client can have made."""

    def peers(self) -> Peers:
        """Return who speaks in a context that is complete."""


class Kerberos:
    """What takes the tickets of all connections."""

    def __init__(self, ticket: Callable[[], Ticket], realms: Collection[str]) -> None:
        """`ticket` makes that of a new client, who must be of one of the realms; of the service's own if empty."""
        self._ticket = ticket
        self._realms = realms
        self._threads = ThreadPoolExecutor(_THREADS, "mq-kerberos")

    def exchange(self, now_ms: Callable[[], int]) -> KerberosExchange:
        """Return what takes the messages of one client."""
        return KerberosExchange(self._ticket(), self._realms, self._threads, now_ms)

    def close(self) -> None:
        """Take no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def kerberos_of(settings: ServiceSettings) -> Kerberos | None:
    """Return what takes tickets; None if no keytab is set.

    Raises
    ------
    ConfigInvalid
        The library is missing, or the keytab cannot be read or has no key of this service.
    """
    if not settings.kafka_kerberos_keytab:
        return None
    keytab, principal = settings.kafka_kerberos_keytab, settings.kafka_kerberos_principal
    try:
        keys = Keytab(keytab, principal)
    except OSError as error:
        raise ConfigInvalid(
            f"service.kafka_kerberos_keytab: this system has no MIT Kerberos (Debian: apt-get install libgssapi-krb5-2;"
            f" {LIBRARY}): {error}",
            field="service.kafka_kerberos_keytab",
        ) from error
    except GssapiError as error:
        raise ConfigInvalid(
            f"service.kafka_kerberos_keytab: {keytab} is no keytab that this process can read, with a key of"
            f" {principal or 'kafka/HOST'}: {error}",
            field="service.kafka_kerberos_keytab",
        ) from error
    return Kerberos(partial(Context, keys), settings.kafka_kerberos_realms)


class KerberosExchange:
    """One authentication, message by message."""

    def __init__(
        self, ticket: Ticket, realms: Collection[str], threads: ThreadPoolExecutor, now_ms: Callable[[], int]
    ) -> None:
        self._ticket = ticket
        self._realms = realms
        self._threads = threads
        self._now_ms = now_ms
        self._is_offered = False

    async def step(self, message: bytes) -> Step:
        """Take a client's message; raise `Unauthenticated` if it proves nothing."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_STEP_S):
                return await loop.run_in_executor(self._threads, self._next, message)
        except GssapiError as error:
            log.info("event=kafka_ticket_refused detail=%r", str(error))
            raise Unauthenticated(_WRONG) from None
        except TimeoutError:
            raise Unavailable(f"the ticket was not looked at within {_STEP_S:.0f} s; try again") from None

    def _next(self, message: bytes) -> Step:
        if self._is_offered:
            return self._last(message)
        if not self._ticket.is_complete:
            answer = self._ticket.accept(message)
            if answer or not self._ticket.is_complete:
                return Step(answer)
        elif message:
            raise malformed(GSSAPI)
        self._is_offered = True
        return Step(self._ticket.wrap(_NO_LAYER))

    def _last(self, message: bytes) -> Step:
        said = self._ticket.unwrap(message)
        if len(said) < len(_NO_LAYER) or said[0] != _NO_LAYER[0]:
            raise Unauthenticated("GSSAPI: only the layer auth is offered (sasl.qop), and TLS for more")
        client, service, seconds = self._ticket.peers()
        _, realm = _parts(service)
        principal = principal_of(client, self._realms or (realm,))
        as_whom = said[len(_NO_LAYER) :].decode(errors="replace")
        if as_whom not in ("", principal, client) and not _is_service(as_whom, service):
            raise Unauthenticated("a caller can act only for itself: send no other authorization id")
        until_ms = None if seconds is None else self._now_ms() + 1_000 * seconds
        return Step(b"", Credential(principal=principal, until_ms=until_ms))


def principal_of(name: str, realms: Collection[str]) -> str:
    """Return which of our principals a Kerberos principal is, by Kafka's default rule.

        client@EXAMPLE.COM, client/host.example.com@EXAMPLE.COM    ->    client

    Raises
    ------
    GssapiError
        It is of another realm, or can be none of ours.
    """
    primary, realm = _parts(name)
    if realm not in realms:
        raise GssapiError(f"{name} is of no realm of {', '.join(realms)}")
    try:
        return check_caller(primary)
    except Refused as error:
        raise GssapiError(f"{name} can be no principal here: {error.detail}") from None


def _parts(name: str) -> tuple[str, str]:
    """Return primary and realm of a Kerberos principal."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise GssapiError(f"{name} is not primary/instance@REALM")
    return found[1], found[2]


def _is_service(as_whom: str, service: str) -> bool:
    """Whether a client names the service, `kafka@HOST`: aiokafka and kafka-python do. It says nothing about them."""
    return as_whom.startswith(f"{_parts(service)[0]}@")
