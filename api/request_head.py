"""What a request's head must say so that no proxy in front of the service reads another request than it does.

RFC 9110 and 9112 leave some heads to the reader, and two readers that differ can be played against each other: one
takes for a body what the other takes for the next request. Such heads are refused (SPEC SEC-48). The parser refuses
Content-Length given twice or beside Transfer-Encoding, and control characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from deltamq.mq.errors import Refused

#: Headers that say one thing: given twice, a proxy may believe the first and the service the last.
_ONCE: Final = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"last-event-id",
        b"producer-id",
        b"producer-seq",
        b"transfer-encoding",
    )
)
#: Headers between processes of a cluster.
_OURS: Final = b"mq-"
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")

Header = tuple[bytes, bytes]


class BadHead(Refused):
    """The request cannot be read as HTTP, or can be read in two ways."""

    code = "invalid_http"


def check_head(method: bytes, version: str, headers: Sequence[Header]) -> None:
    """Refuse a head that another reader could understand otherwise.

    `version` is `1.0` or `1.1`; the names of `headers` are in lower case. Raises `BadHead`.
    """
    if method == b"CONNECT":
        raise BadHead("CONNECT: this service is no proxy", field="method")
    seen: set[bytes] = set()
    for name, value in headers:
        if name in _ONCE or name.startswith(_OURS):
            if name in seen:
                raise BadHead(f"{name.decode()}: give this header once", field=name.decode())
            seen.add(name)
            if name == b"host":
                _check_host(value)
            elif name == b"transfer-encoding":
                _check_coding(value, version)
    if b"host" not in seen and version != "1.0":
        raise BadHead("host: HTTP/1.1 needs this header", field="host")


def without_offer(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> bytes:
    """Return the head of a request that offers another protocol, as bytes, without the offer.

    The service speaks HTTP/1.1 alone, and a server may pass over an offer (RFC 9110, 7.8). The parser stops at one.
    """
    lines = [b"%s %s HTTP/%s\r\n" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            value = b",".join(one for one in value.split(b",") if one.strip().lower() != b"upgrade")
        if name != b"upgrade":
            lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join([*lines, b"\r\n"])


def _check_host(value: bytes) -> None:
    if _HOST.fullmatch(value.strip()) is None:
        raise BadHead("host: write NAME or NAME:PORT", field="host")


def _check_coding(value: bytes, version: str) -> None:
    if version == "1.0":
        raise BadHead("transfer-encoding: HTTP/1.0 has none; send Content-Length", field="transfer-encoding")
    if value.strip().lower() != b"chunked":
        detail = f"transfer-encoding {value.decode('latin-1')!r}: only chunked is understood; send the body uncoded"
        raise BadHead(detail, field="transfer-encoding")
