"""The caller, by the certificate that the client of a TLS connection has shown (SPEC SEC-17).

    common_name    CN=billing                                  ->  billing
    uri            spiffe://example.org/ns/prod/sa/billing     ->  spiffe:example.org:ns:prod:sa:billing
    subject        CN=billing,O=Example                        ->  cert:<32 hexadecimal digits of its SHA-256>

No two names become one principal: what cannot be written that way names nobody. Where one process forwards a request of
such a caller to another, it says who that is in `Mq-Caller`, which its proof is about; the certificate that the other
process sees is that of a process, and names nobody there.
"""

from __future__ import annotations

import hashlib
import logging
import re
from typing import Final

from deltamq.api.tls.subject import EXTENSION as TLS
from deltamq.api.wire.request import Scope
from deltamq.mq.auth.callers import Credential
from deltamq.mq.auth.principals import check_caller
from deltamq.mq.errors import Refused
from deltamq.tables.config_sections import TlsPrincipal

log = logging.getLogger("deltamq.api")

#: A URI that has one form as a principal: no colon, no empty part.
_URI: Final = re.compile(r"([a-z][a-z0-9+.\-]*)://([A-Za-z0-9._@+\-]+(?:/[A-Za-z0-9._@+\-]+)*)")
_DIGITS: Final = 32
#: Subjects that were logged because they name nobody; beyond these, further ones are not.
_LOGGED_MAX: Final = 1_000


class Certificates:
    """Certificates of clients, as principals."""

    def __init__(self, principal: TlsPrincipal) -> None:
        """`principal` says which part of a certificate names the principal."""
        self._by = principal
        #: Whether certificates name nobody; looking up a member of an enumeration takes as long as the rest of a check.
        self.is_off = principal is TlsPrincipal.NONE
        self._logged: set[str] = set()

    def credential(self, scope: Scope) -> Credential | None:
        """Return whose certificate the client of a request has shown; None if it has shown none, or one of nobody."""
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

    def tell_unknown(self, scope: Scope, credential: Credential | None) -> None:
        """If the client of a refused request has shown a certificate, log once which principal that would be."""
        shown = scope.get("extensions", {}).get(TLS)
        subject = None if shown is None else shown["client_cert_name"]
        if self.is_off or subject is None or subject in self._logged:
            return
        if len(self._logged) < _LOGGED_MAX:
            self._logged.add(subject)
            name = "" if credential is None else credential.principal
            log.info("event=certificate_of_nobody subject=%r principal=%r", subject[:500], name)
