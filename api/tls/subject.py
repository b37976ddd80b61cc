"""The subject of the client's certificate on a TLS connection, for the ASGI scope.

The scope's extension `tls` is the one that ASGI's TLS extension describes. `client_cert_name` is there if, and only if,
the client has shown a certificate that an authority of `service.tls_client_ca` has signed.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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
    #: The common name alone; None without a certificate, or if there are none or several.
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
    parts = [_escaped_character(one) for one in value]
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
