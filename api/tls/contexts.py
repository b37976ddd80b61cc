"""The two TLS contexts of a process, from its settings: as a server, and as a client of other processes.

tls_cert, tls_key       what this process shows, to clients and to other processes alike
tls_client_ca           who may sign clients' certificates; `tls_client_auth` says whether they must show one
tls_ca                  who may sign other processes' certificates; if empty, the system's authorities

TLS 1.2 is the oldest version. Sessions are not resumed: a resumed one would outlive the certificate that it began with.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial

from deltamq.api.tls.reloaded import ReloadedContext
from deltamq.mq.errors import Refused
from deltamq.tables.config import ConfigInvalid
from deltamq.tables.config_sections import ServiceSettings, TlsClientAuth


def server_context(settings: ServiceSettings, *, protocols: Sequence[str] = ("http/1.1",)) -> ssl.SSLContext | None:
    """Return the context of a port of the service; None if the settings name no certificate.

    `protocols` are those that clients may ask for (ALPN); without any, they ask for none.

    Raises
    ------
    Refused
        A file is missing, or not what the setting needs; the error names it.
    """
    if not settings.tls_cert:
        return None
    files = [one for one in (settings.tls_cert, settings.tls_key, settings.tls_client_ca) if one]
    return ReloadedContext(partial(_server, settings, protocols), files)


def peer_context(settings: ServiceSettings) -> ssl.SSLContext:
    """Return the context of requests to other processes."""
    files = [one for one in (settings.tls_ca, settings.tls_cert, settings.tls_key) if one]
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
        # A password would be asked for on the terminal.
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
