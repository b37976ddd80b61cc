"""What a client trusts, and what it shows, on connections with TLS."""

from __future__ import annotations

import os
import ssl
import threading
from typing import Final

from deltamq.mq.client.http.forks import in_child
from deltamq.mq.errors import Refused

CA_ENV: Final = "DELTAMQ_CLIENT_CA"
CERT_ENV: Final = "DELTAMQ_CLIENT_CERT"
KEY_ENV: Final = "DELTAMQ_CLIENT_KEY"


class Tls:
    """The TLS context of one client, made when it is first needed. Safe for any number of threads.

    Parameters
    ----------
    ca
        Certificates of the authorities that sign the service's, a file in PEM; by default what `DELTAMQ_CLIENT_CA`
        names, else the system's.
    cert, key
        The certificate that the client shows, and its key, files in PEM; by default `DELTAMQ_CLIENT_CERT` and
        `DELTAMQ_CLIENT_KEY`. Without `key`, the key is in `cert`.
    context
        A context of the caller's own, in place of all of these.
    """

    def __init__(
        self,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._ca = os.environ.get(CA_ENV, "") if ca is None else ca
        self._cert = os.environ.get(CERT_ENV, "") if cert is None else cert
        self._key = os.environ.get(KEY_ENV, "") if key is None else key
        self._context = context
        self._lock = threading.Lock()
        in_child(self._renew)
        if context is not None and (ca or cert or key):
            raise Refused("give an ssl_context, or ca, cert and key, but not both", field="ssl_context")
        if self._key and not self._cert:
            raise Refused("a key needs its certificate: give cert, too", field="cert")

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def context(self) -> ssl.SSLContext:
        """Return the context.

        Raises
        ------
        Refused
            `tls_files_invalid`: a file is missing or not what it should be; the error names it.
        """
        with self._lock:
            if self._context is None:
                self._context = self._made()
            return self._context

    def _made(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._ca or None)
        except (OSError, ssl.SSLError) as error:
            detail = f"ca: {self._ca} is no readable file of certificates in PEM: {error}"
            raise Refused(detail, code="tls_files_invalid", field="ca") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._cert:
            try:
                context.load_cert_chain(self._cert, self._key or None, password=_no_password)
            except (OSError, ssl.SSLError) as error:
                detail = f"cert, key: {self._cert} {self._key} are no readable certificate in PEM with its key: {error}"
                raise Refused(detail, code="tls_files_invalid", field="cert") from error
        return context


def _no_password() -> str:
    # Without this, the terminal would be asked.
    raise Refused("the key is encrypted: decrypt it, or pass an ssl_context", code="tls_files_invalid", field="key")
