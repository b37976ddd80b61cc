"""A request that another process of the cluster forwarded: its proof and its caller (SPEC SEC-6, SEC-17).

    Mq-Forwarded: <host id>
    Mq-Proof: <milliseconds since 1970>.<HMAC-SHA256 of host id, method, target, metadata offset, caller, time>
    Mq-Caller: <principal>

The caller is named by its `Authorization`; or, if another cluster forwarded the request to this one, by that cluster
and the principal that it named (`api/host/clusters.py`). A client with a certificate, and a Kafka client, which
authenticates once for a connection, are known only to the process that they are connected to. It names them
in `Mq-Caller`, which its proof is about (SPEC KAFKA-11).

The key is the cluster's secret, which is not in the warehouse: a reader of its files must not be able to pass for a
process. A proof is good for a minute. A third party that sees one can use it only for the very same request, with the
same key of the caller, and all that `Mq-Forwarded` changes is that the request is not forwarded again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection
from typing import Final

from deltamq.api.wire.answer import Header
from deltamq.mq.auth.callers import Credential
from deltamq.mq.auth.principals import check_caller, check_principal, is_group
from deltamq.mq.errors import Refused

#: How far the clocks of two machines, and the time on the way, may be apart.
PROOF_MS_MAX: Final = 60_000
_DIGITS_MAX: Final = 15


class Prover:
    """Makes and checks proofs with one secret."""

    def __init__(self, secret: bytes, now_ms: Callable[[], int], *, use: bytes = b"forwarded requests") -> None:
        """`use` is the purpose of the proofs: a proof for another use is wrong here."""
        self._key = derived(secret, use)
        self._now_ms = now_ms

    def make(self, *parts: bytes) -> bytes:
        """Return the proof for a request with these parts."""
        time = b"%d" % self._now_ms()
        return time + b"." + self._digest(time, parts)

    def is_right(self, proof: bytes, *parts: bytes) -> bool:
        """Whether the proof is for a request with these parts, and made within the last minute."""
        time, _, digest = proof.partition(b".")
        is_right = hmac.compare_digest(digest, self._digest(time, parts))
        if not is_right or not time.isdigit() or len(time) > _DIGITS_MAX:
            return False
        return abs(self._now_ms() - int(time)) <= PROOF_MS_MAX

    def _digest(self, time: bytes, parts: tuple[bytes, ...]) -> bytes:
        # The lengths keep one part from passing for the beginning of the next.
        text = b"".join(b"%d:%s" % (len(part), part) for part in (time, *parts))
        return hmac.new(self._key, text, hashlib.sha256).hexdigest().encode()


def derived(secret: bytes, use: bytes) -> bytes:
    """Return the key for one use of the cluster's secret: a leaked key says nothing about the keys of other uses."""
    return hmac.new(secret, b"deltamq/" + use, hashlib.sha256).digest()


#: The header with the principal, and the groups of its token.
CALLED_BY: Final = b"mq-caller"


def caller_header(credential: Credential) -> Header:
    """Return the header that names a caller; neither principals nor groups have a comma."""
    return CALLED_BY, ",".join((credential.principal, *credential.groups)).encode()


def called_by(headers: Collection[Header]) -> Credential | None:
    """Return the caller that a process names in a forwarded request: believe it only with a proof."""
    named = [value for name, value in headers if name == CALLED_BY]
    if len(named) != 1:
        return None
    principal, *groups = named[0].decode("ascii", "replace").split(",")
    try:
        credential = Credential(principal=check_caller(principal), groups=tuple(map(check_principal, groups)))
    except Refused:
        return None
    return credential if all(map(is_group, groups)) else None
