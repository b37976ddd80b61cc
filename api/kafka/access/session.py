"""The client at the other end of a connection, from its first call to its last (SPEC KAFKA-11).

    ApiVersions* --SaslHandshake--> mechanism --SaslAuthenticate*--> known --any call--> ...
                                        ^                              |
                                        '------ again, as the same ----'   before the credential ends (KIP-368)

A connection whose credential is revoked or over is closed, whatever it waits for.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from deltamq.api.auth.caller import EVERYBODY
from deltamq.api.auth.gate import Gate
from deltamq.api.kafka.access.exchanges import BEARER, MECHANISMS, PLAIN, Exchange, exchange_of
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.messages.cluster_messages import ApiVersionsRequest
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.sasl_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from deltamq.mq.auth.callers import Credential
from deltamq.mq.auth.keys import Key
from deltamq.mq.errors import Unauthenticated, Unavailable

log = logging.getLogger("deltamq.api")

_OPEN: Final = (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
_NONCE_BYTES: Final = 18


class Session:
    """The caller of one connection; used on the event loop."""

    def __init__(self, gate: Gate | None, now_ms: Callable[[], int], *, is_private: bool) -> None:
        """`gate` is None without authentication; `now_ms` is its clock.

        `is_private` says that nobody listens in between: then keys may be sent as they are.
        """
        self._now_ms = now_ms
        self._gate = gate
        self._mechanisms = [one for one in MECHANISMS if is_private or one not in (PLAIN, BEARER)]
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._credential: Credential | None = None
        #: Requests under way.
        self._asking: set[Asker] = set()
        #: Whether the client has tried and failed: there is one answer more.
        self.is_refused = False

    @property
    def is_open(self) -> bool:
        """Whether the client may call: it is known, or nobody has to be."""
        return self._gate is None or self._credential is not None

    @property
    def principal(self) -> str:
        """The client's principal; empty if it is not known, or if none is needed."""
        return "" if self._credential is None else self._credential.principal

    # Requests.

    def asker(self, request: Message) -> Asker:
        """Return the caller.

        Raises
        ------
        Unauthenticated
            The client must say first who it is, its credential is over, or its principal is disabled.
        """
        if self._gate is None or isinstance(request, _OPEN):
            return Asker(EVERYBODY)
        if self._credential is None:
            raise Unauthenticated("the client must authenticate first (security.protocol SASL_SSL or SASL_PLAINTEXT)")
        self._check(self._credential)
        return Asker(self._gate.caller(self._credential), self._credential)

    def begin(self, asker: Asker) -> None:
        """Note that a request is under way."""
        if not asker.is_anybody:
            self._asking.add(asker)

    def end(self, asker: Asker) -> None:
        """Note that a request was answered."""
        self._asking.discard(asker)

    def is_over(self) -> bool:
        """Whether the connection must end: its credential has, or a request under way is not allowed any more."""
        if self._gate is None or self._credential is None:
            return False
        if self._gate.credentials.refusal(self._credential) is not None:
            return True
        return not all(asker.is_allowed_still() for asker in self._asking)

    # Authentication.

    def handshake(self, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        """Begin to authenticate by a mechanism, or to do so again by the one that was used before."""
        if self._gate is None:
            return self._shaken(ErrorCode.ILLEGAL_SASL_STATE)
        wanted = request.mechanism
        if wanted not in self._mechanisms or (self._credential is not None and wanted != self._mechanism):
            return self._shaken(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        self._mechanism = wanted
        self._exchange = exchange_of(wanted, self, lambda: secrets.token_urlsafe(_NONCE_BYTES))
        return self._shaken(ErrorCode.NONE)

    def _shaken(self, error: ErrorCode) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=error, mechanisms=self._mechanisms if self._gate else [])

    async def authenticate(self, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        """Take the client's next message; what follows a refusal is not read any more."""
        if self._gate is None or self._exchange is None:
            return self._refused(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake must come first")
        try:
            answer, found = await self._exchange.step(bytes(request.auth_bytes))
            lifetime_ms = 0 if found is None else self._known(found)
        except (Unauthenticated, Unavailable) as error:
            return self._refused(ErrorCode.SASL_AUTHENTICATION_FAILED, error.detail)
        return SaslAuthenticateResponse(error_code=ErrorCode.NONE, auth_bytes=answer, session_lifetime_ms=lifetime_ms)

    def _known(self, found: Credential) -> int:
        """Take who it is from now on; return how long that is good for, in milliseconds, 0 if nobody knows."""
        assert self._gate is not None
        self._exchange = None
        if self._credential is not None and self._credential.principal != found.principal:
            raise Unauthenticated("a connection stays its principal's: connect anew as another one")
        self._check(found)
        self._credential = found
        return 0 if found.until_ms is None else max(1, found.until_ms - self._now_ms())

    def _check(self, credential: Credential) -> None:
        """Raise `Unauthenticated` if a credential opens nothing now: Kafka knows no other end of a connection."""
        assert self._gate is not None
        refusal = self._gate.credentials.refusal(credential)
        if refusal is not None:
            raise Unauthenticated(refusal.detail, code=refusal.code)

    def _refused(self, error: ErrorCode, detail: str) -> SaslAuthenticateResponse:
        self.is_refused, self._exchange = True, None
        log.info("event=kafka_authentication_refused mechanism=%r detail=%r", self._mechanism, detail)
        return SaslAuthenticateResponse(error_code=error, error_message=detail)

    # Whose a key or token is.

    async def of_token(self, token: str) -> Credential:
        """Return whose a key or token is, or raise `Unauthenticated`."""
        assert self._gate is not None
        return await self._gate.credentials.of_any(token)

    def keys_of(self, user: str) -> Sequence[Key]:
        """Return the live keys of a principal, or the one with this id."""
        assert self._gate is not None
        return self._gate.credentials.keys_of(user)
