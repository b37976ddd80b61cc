"""The proof that another cluster forwarded a request, and in whose name (SPEC SEC-6, STATIC-19).

    Mq-Cluster: east                      the cluster that asks
    Mq-Principal: reports                 in whose name; absent for the cluster's own
    Mq-Body: <SHA-256 of the body>
    Mq-Cluster-Proof: <milliseconds since 1970>.<HMAC-SHA256 of the receiving cluster, method, target, all `Mq-` headers
                      and those that say how the body and the answer are written, time>

The key comes from the secret that clusters share. The caller's own key never leaves the cluster that it was made for:
the other one does not know it, and could use it elsewhere. What the receiver believes is the principal's name alone,
and its own rules say what that may do. A proof is good for a minute, for the very same request, body included, and at
one cluster.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, MutableMapping
from typing import Any, Final

from deltamq.api.auth.forwarded import Prover
from deltamq.api.host.peers import CLUSTER, FORWARDED, META_OFFSET, PRINCIPAL, PROOF, Call
from deltamq.api.wire.answer import Header
from deltamq.api.wire.request import Receive, Scope
from deltamq.mq.errors import Forbidden

#: The epoch of the topic's copy by which a cluster forwarded a call.
GLOBAL_EPOCH: Final = b"mq-global-epoch"
CLUSTER_PROOF: Final = b"mq-cluster-proof"
_BODY: Final = b"mq-body"
#: Headers of a request that are never sent on to another cluster: what is made anew, and a caller's credentials.
OWN_HEADERS: Final = frozenset(
    (
        *(FORWARDED, META_OFFSET, PROOF, CLUSTER, GLOBAL_EPOCH, PRINCIPAL, _BODY, CLUSTER_PROOF),
        *(b"authorization", b"proxy-authorization", b"cookie"),
    )
)
#: Headers that the proof is about, beside all that begin with `mq-`.
_PROVED: Final = frozenset((b"content-type", b"accept", b"last-event-id"))
_USE: Final = b"calls between clusters"


def principal_of(headers: Collection[Header]) -> str:
    """Return the principal that the cluster that forwarded a request names; empty for that cluster itself."""
    return _header(headers, PRINCIPAL).decode("latin-1")


def cluster_unproved() -> Forbidden:
    """Return the error for a request that only says that another cluster forwarded it."""
    return Forbidden(
        "Mq-Cluster is for other clusters, which prove that they ask: all must have the same"
        " service.clusters_shared_secret, name each other as they are named, and have clocks that are right",
        code="cluster_unproved",
        field="Mq-Cluster",
    )


class ClusterProofs:
    """Makes and checks proofs with the secret that clusters share."""

    def __init__(self, here: str, secret: bytes, now_ms: Callable[[], int]) -> None:
        """`here` is this cluster's name; proofs are made and judged by the clock `now_ms`."""
        self._here = here
        self._prover = Prover(secret, now_ms, use=_USE)

    def proved(self, cluster: str, call: Call) -> list[Header]:
        """Return the headers of a call to another cluster with a proof."""
        headers = [*call.headers, (_BODY, hashlib.sha256(call.body).hexdigest().encode())]
        if call.principal:
            headers.append((PRINCIPAL, call.principal.encode("latin-1")))
        parts = _parts(cluster, call.method, call.target, headers)
        return [*headers, (CLUSTER_PROOF, self._prover.make(*parts))]

    def check(self, scope: Scope, receive: Receive) -> Receive:
        """Return `receive` for a request that another cluster forwarded: it also refuses a body that is not proved.

        Raises
        ------
        Forbidden
            `cluster_unproved`: the proof is missing, forged, old, for another cluster, or for another request.
        """
        call = Call.of(scope)
        proof = _header(call.headers, CLUSTER_PROOF)
        if not self._prover.is_right(proof, *_parts(self._here, call.method, call.target, call.headers)):
            raise cluster_unproved()
        return _checked(receive, _header(call.headers, _BODY))


def _parts(cluster: str, method: str, target: bytes, headers: Collection[Header]) -> tuple[bytes, ...]:
    about = sorted(
        one for one in headers if one[0] != CLUSTER_PROOF and (one[0].startswith(b"mq-") or one[0] in _PROVED)
    )
    flat = (part for one in about for part in one)
    return (cluster.encode(), method.encode(), target, *flat)


def _header(headers: Collection[Header], name: bytes) -> bytes:
    """Return the header; empty if there is none, or more than one."""
    found = [value for one, value in headers if one == name]
    return found[0] if len(found) == 1 else b""


def _checked(receive: Receive, digest: bytes) -> Receive:
    """Wrap `receive` so that the end of a body with another digest is refused."""
    seen, is_whole = hashlib.sha256(), False

    async def counted() -> MutableMapping[str, Any]:
        nonlocal is_whole
        message = await receive()
        if message["type"] == "http.request" and not is_whole:
            seen.update(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if is_whole and not hmac.compare_digest(seen.hexdigest().encode(), digest):
                raise cluster_unproved()
        return message

    return counted
