"""TLS: of the service's own port, and of requests to other processes, with files that may change at any time.

    tls_cert, tls_key       the certificate of this process, for clients and for other processes
    tls_client_ca           who may sign clients' certificates; `tls_client_auth` says whether they must show one
    tls_ca                  who may sign other processes' certificates; if empty, the system's authorities

TLS 1.2 is the oldest version. Sessions are not resumed: a resumed one would outlive the certificate that it began with.
The files may be replaced while the service runs, and new connections use the new ones:

    connection ──► looked at the files within LOOK_S? ── yes ──► the present context
                        └── no: changed? ──► made again; if that fails, the present one stays, and the log says why

A certificate and its key are two files, so there is a moment with the new one of the first and the old one of the
second: they do not fit, the present context stays, and the next change of the files is tried again.

The ASGI scope of a connection has the extension `tls` as ASGI describes it. `client_cert_name` is there if, and only
if, the client has shown a certificate that an authority of `service.tls_client_ca` has signed.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self

from deltamq.mq.errors import Refused
from deltamq.tables.config import ConfigInvalid
from deltamq.tables.config_sections import ServiceSettings, TlsClientAuth


def server_context(settings: ServiceSettings, *, protocols: Sequence[str] = ("http/1.1",)) -> ssl.SSLContext | None:
    """Return the context of a port of the service; None if the settings name no certificate.

    `protocols` are the ones that clients may ask for (ALPN); without any, there is no ALPN.

    Raises
    ------
    Refused
        A file is missing, or not what the setting needs; the error names it.
    """
    if not settings.tls_cert:
        return None
    files = [file for file in (settings.tls_cert, settings.tls_key, settings.tls_client_ca) if file]
    return ReloadedContext(partial(_server, settings, protocols), files)


def peer_context(settings: ServiceSettings) -> ssl.SSLContext:
    """Return the context of requests to other processes."""
    files = [file for file in (settings.tls_ca, settings.tls_cert, settings.tls_key) if file]
    return ReloadedContext(partial(_peer, settings), files)


def _server(settings: ServiceSettings, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A ticket would also make a connection readable before its answer is there.
    context.num_tickets = 0
    if protocols:
        context.set_alpn_protocols(list(protocols))
    _load_own(context, settings)
    if settings.tls_client_auth is not TlsClientAuth.NONE:
        _load_ca(context, settings.tls_client_ca, "service.tls_client_ca")
        required = settings.tls_client_auth is TlsClientAuth.REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _peer(settings: ServiceSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.tls_ca:
        _load_ca(context, settings.tls_ca, "service.tls_ca")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if settings.tls_cert:
        _load_own(context, settings)
    return context


def _load_own(context: ssl.SSLContext, settings: ServiceSettings) -> None:
    try:
        # Otherwise OpenSSL asks for the passphrase on the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        what = f"{settings.tls_cert} and {settings.tls_key}" if settings.tls_key else settings.tls_cert
        raise ConfigInvalid(
            f"service.tls_cert, service.tls_key: {what} are not a readable certificate in PEM with its key: {error}",
            field="service.tls_cert",
        ) from error


def _no_password() -> str:
    raise Refused("the key is encrypted: keep it in a file that only the service may read, without a password")


def _load_ca(context: ssl.SSLContext, path: str, key: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigInvalid(f"{key}: {path} is no readable file of certificates in PEM: {error}", field=key) from error


def certificate_end_s(path: str) -> float:
    """Return when the first certificate of a chain to end does, in seconds since 1970; `path` is a file in PEM.

    Raises
    ------
    OSError, ValueError
        There is no such file, or it is no such chain.
    """
    from cryptography import x509  # a seventh of a second, which a service without TLS saves

    with open(path, "rb") as file:
        chain = x509.load_pem_x509_certificates(file.read())
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)


log = logging.getLogger("deltamq.api")

#: Seconds between two looks at the files.
LOOK_S: Final = 1.0

#: Inode, time of the last change, and size of each file.
_State = tuple[tuple[int, int, int] | None, ...]


class ReloadedContext(ssl.SSLContext):
    """Stands for the newest context that could be made from the files. Safe for several threads.

    asyncio, uvloop and httpx make connections only with `wrap_bio`, which is passed on.
    """

    _make: Callable[[], ssl.SSLContext]
    _present: ssl.SSLContext | None

    def __new__(cls, make: Callable[[], ssl.SSLContext], *_: object, **__: object) -> Self:
        """Make an empty context: `make` makes those that are used."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        files: Sequence[str],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise as `make` does: the first files must be right.

        Without files, the context is made when it is first needed: reading the system's authorities takes as long as
        the rest of a start.
        """
        self._make = make
        self._files = tuple(files)
        self._now_s = now_s
        self._lock = threading.Lock()
        self._looked_at_s = now_s()
        self._state = _state_of(self._files)
        self._present = make() if files else None

    def present(self) -> ssl.SSLContext:
        """Return the context of the newest files that fit together."""
        with self._lock:
            if self._now_s() - self._looked_at_s >= LOOK_S:
                self._looked_at_s = self._now_s()
                self._look()
            if self._present is None:
                self._present = self._make()
            return self._present

    def _look(self) -> None:
        state = _state_of(self._files)
        if state == self._state:
            return
        self._state = state
        try:
            self._present = self._make()
        except Exception as error:
            log.error("event=tls_files_refused files=%r detail=%r the earlier ones are used", self._files, str(error))
        else:
            log.info("event=tls_files_loaded files=%r", self._files)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Begin a connection."""
        return self.present().wrap_bio(*args, **kwargs)


def _state_of(files: Sequence[str]) -> _State:
    return tuple(_stamp_of(file) for file in files)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


#: The name of the extension in `scope["extensions"]`.
EXTENSION: Final = "tls"

#: Short names of attributes, as RFC 4514 has them.
_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED: Final = frozenset('"+,;<>\\=')


class TlsPeer(NamedTuple):
    """The client of a TLS connection."""

    #: The whole subject of its certificate as RFC 4514 writes it (`CN=billing,O=Example`); None without a certificate.
    name: str | None
    #: The common name; None without a certificate, or if there are none or several.
    common_name: str | None
    #: `TLSv1.3`, for one.
    version: str | None
    #: The URIs in the alternative names of its certificate.
    uris: tuple[str, ...] = ()
    #: When its certificate ends, in milliseconds since 1970; None without a certificate.
    until_ms: int | None = None

    def extension(self) -> dict[str, object]:
        """Return the members of the scope's extension `tls`."""
        return {
            "client_cert_name": self.name,
            "client_common_name": self.common_name,
            "client_uris": self.uris,
            "client_cert_until_ms": self.until_ms,
            "tls_version": self.version,
        }


def peer_of(ssl_object: ssl.SSLObject | None) -> TlsPeer | None:
    """Return the client at the other end; None if the connection is not encrypted."""
    if ssl_object is None:
        return None
    shown: Mapping[str, Any] = ssl_object.getpeercert() or {}
    subject = [pair for part in shown.get("subject", ()) for pair in part]
    common = [value for name, value in subject if name == "commonName"]
    written = [
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(shown.get("subject", ()))
    ]
    uris = tuple(value for kind, value in shown.get("subjectAltName", ()) if kind == "URI")
    until = shown.get("notAfter")
    return TlsPeer(
        # A certificate may have an empty subject; its other names count all the same.
        ",".join(written) if shown else None,
        common[0] if len(common) == 1 else None,
        ssl_object.version(),
        uris,
        None if until is None else round(ssl.cert_time_to_seconds(until) * 1000),
    )


def _escaped(value: str) -> str:
    """Return a value as RFC 4514 writes it, so that no value can look like a further attribute."""
    parts = [_escaped_character(character) for character in value]
    if value.startswith((" ", "#")):
        parts[0] = "\\" + value[0]
    if value.endswith(" ") and len(value) > 1:
        parts[-1] = "\\ "
    return "".join(parts)


def _escaped_character(character: str) -> str:
    if character in _ESCAPED:
        return "\\" + character
    if ord(character) < 0x20 or ord(character) == 0x7F:
        return f"\\{ord(character):02X}"
    return character
