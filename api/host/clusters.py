"""The other clusters that share global topics with this one, and calls to them (SPEC STATIC-19).

    client --> process of east --(Mq-Cluster: east, Mq-Global-Epoch: 7)--> any process of west
           <--                 <------------------------------------------

Clusters share nothing but REST. A call that was forwarded between clusters is not forwarded again: two clusters with
different copies would send it in circles. Instead the receiver reads the home's newest copy if the sender's is newer;
if the receiver's is newer, its answer says so (`global_epoch`).

With authentication a call carries a proof, made with a secret that the clusters share, and the name of the principal
that asks; a caller's key stays here (SPEC SEC-6). With authentication and without that secret, clusters send each other
nothing.

    Mq-Cluster: east                      the cluster that asks
    Mq-Principal: reports                 its caller; absent if the cluster itself asks
    Mq-Body: <SHA-256 of the body>
    Mq-Cluster-Proof: <milliseconds since 1970>.<HMAC-SHA256 of the receiving cluster, method, target, all `Mq-` headers
                      and the headers with the forms of body and answer, time>

The receiver believes only the principal's name; its own rules say what the principal may do. A proof is good for a
minute, only for the very same request, body included, and only at one cluster.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Collection, KeysView, Mapping, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from deltamq.api.auth.forwarded import Prover
from deltamq.api.host.owners import Relayed, failed_of, together
from deltamq.api.host.peers import (
    CLUSTER,
    FORWARDED,
    META_OFFSET,
    PRINCIPAL,
    PROOF,
    Call,
    NotConnected,
    Peers,
    answer_before,
    is_forwarded,
    json_of,
)
from deltamq.api.wire.answer import Answer, Header
from deltamq.api.wire.request import Client, Receive, Scope
from deltamq.mq.errors import Forbidden, Unavailable, Unprocessable
from deltamq.mq.queue.handle import cluster_of_handle
from deltamq.mq.wire.pop import FailedHandle

_EPOCH_DIGITS: Final = 20
_NEWER: Final = "global_epoch"
#: Statuses from here on are problems.
_NOT_DONE: Final = 300


def from_cluster(headers: Collection[Header]) -> bool:
    """Whether another cluster forwarded the request."""
    return any(name == CLUSTER for name, _ in headers)


def global_epoch_of(headers: Collection[Header]) -> int:
    """Return the epoch of the copy by which another cluster forwarded the request; 0 if none did."""
    value = next((value for name, value in headers if name == GLOBAL_EPOCH), b"0")
    return int(value) if value.isdigit() and len(value) < _EPOCH_DIGITS else 0


def unknown_here(topic: str) -> Unavailable:
    """Return the error for a call that another cluster forwarded, and whose topic has no copy here yet."""
    return Unavailable(f"topic {topic}: this cluster has no copy of it yet; ask again", code="queue_unserved")


def guarded(what: str, field: str = "topic") -> Unprocessable:
    """Return the error for a call between clusters that share no secret, with authentication."""
    return Unprocessable(
        f"{what} is refused while the setting service.auth is on and service.clusters_shared_secret is empty: clusters"
        " prove the caller to each other with that secret",
        code="global_unsupported",
        field=field,
    )


def newer_copy(topic: str, detail: str) -> Unavailable:
    """Return the error for a call that another cluster forwarded by an older copy than this cluster has."""
    return Unavailable(f"topic {topic}: {detail}", code=_NEWER)


def has_newer_copy(answer: Answer) -> bool:
    """Whether a cluster answered that its copy is newer: read the home's, and ask again.

    Raises
    ------
    Unavailable
        It answers 503 without a problem document.
    """
    if answer.status != Unavailable.status:
        return False
    return json_of(answer.body, dict[str, Any], status=answer.status).get("code") == _NEWER


class Clusters:
    """The other clusters, by the settings of this process."""

    def __init__(
        self,
        here: str,
        addresses: Sequence[tuple[str, str]],
        peers: Peers,
        proofs: ClusterProofs | None = None,
        *,
        is_guarded: bool = False,
    ) -> None:
        """`here` is this cluster's name; `addresses` are names and URLs of the others; a name may occur several times.

        `proofs` makes the proofs of calls to other clusters, if these share a secret. `is_guarded` says that requests
        need keys here and that there is no such secret: then no call goes to or comes from other clusters.
        """
        self.here = here
        self.is_guarded = is_guarded
        self._peers = peers
        self._proofs = proofs
        self._urls: dict[str, list[str]] = {}
        for name, url in addresses:
            self._urls.setdefault(name, []).append(url)

    @property
    def names(self) -> tuple[str, ...]:
        """All clusters that this process knows, its own first."""
        return (self.here, *self._urls)

    @property
    def others(self) -> KeysView[str]:
        """All clusters but its own."""
        return self._urls.keys()

    def refuse_guarded(self, topic: str) -> None:
        """Refuse a call on a global topic while requests need keys and clusters share no secret."""
        if self.is_guarded:
            raise guarded(f"topic {topic} is global, and a topic of several clusters")

    def require(self, names: Collection[str]) -> None:
        """Refuse clusters that the settings of this process do not name."""
        unknown = sorted(set(names).difference(self.names))
        if unknown:
            raise Unprocessable(
                f"clusters: {unknown[0]} is not known here; name it in the setting service.clusters, as NAME=URL",
                code="unknown_cluster",
                field="clusters",
            )

    async def ask(self, cluster: str, call: Call, *, epoch: int = 0, client: Client | None = None) -> Answer:
        """Return the answer of any process of another cluster; the caller's key is not sent there.

        Raises
        ------
        Unavailable
            `queue_unserved`: no process of the cluster could be reached, and nothing was sent.
            `broker_unavailable`: the connection was lost; what was sent may have been applied.
            `stopping`: this process stops, and the call may wait.
        Unknown
            There was no answer in time.
        Unprocessable
            `global_unsupported`: requests need keys here, and clusters share no secret.
        ClientDisconnected
            `client` closed its connection, or may not wait any more.
        """
        if self.is_guarded:
            raise guarded(f"a request to cluster {cluster}")
        urls = self._urls.get(cluster)
        if not urls:
            raise away(cluster, "the setting service.clusters does not name it")
        headers = [header for header in call.headers if header[0] not in OWN_HEADERS]
        headers += [(CLUSTER, self.here.encode()), (GLOBAL_EPOCH, b"%d" % epoch)]
        if self._proofs is not None:
            headers = self._proofs.proved(cluster, call._replace(headers=headers))
        for url in tuple(urls):
            try:
                return await self._forward(url, call._replace(headers=headers), client)
            except NotConnected as error:
                reason = error.detail
                if len(urls) > 1 and urls[0] == url:
                    urls.append(urls.pop(0))  # the next call begins with another process
        raise away(cluster, reason)

    async def _forward(self, url: str, call: Call, client: Client | None) -> Answer:
        asking = asyncio.ensure_future(
            self._peers.forward(
                url, call.method, call.target, call.headers, call.body, call.timeout_s, in_cluster=False
            )
        )
        answer = await answer_before(asking, None, client, self._peers.stop_of(call, client))
        assert answer is not None, "nothing else ends the asking"
        return answer

    async def ask_body(self, cluster: str, call: Call, *, epoch: int = 0) -> bytes:
        """Return the body of another cluster's answer; raise the problem that it answered with.

        `json_of` reads the body: a proxy between the clusters may have answered.
        """
        answer = await self.ask(cluster, call, epoch=epoch)
        assert isinstance(answer.body, bytes), "answers of other clusters are whole"
        if answer.status >= _NOT_DONE:
            raise Relayed.of(answer)
        return answer.body


def away(cluster: str, reason: str) -> Unavailable:
    """Return the error for a cluster that no request has reached."""
    return Unavailable(
        f"cluster {cluster} cannot be reached: {reason}; its queues stay there; ask again",
        code="queue_unserved",
        extra={"cluster": cluster},
    )


class ClusterHandles:
    """Sends calls with handles to the clusters that gave them; used on the event loop.

        west~1AAGL...  --> POST /v1/groups/{group}/ack at west, for all of a call's handles that west gave
        east~1AAGL...  --> this cluster's own; so is one without a cluster, and any in a forwarded call

    Clusters share no secret for handles: the cluster's name in a handle only decides which cluster checks it.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    def split(self, handles: Sequence[str], call: Call) -> tuple[list[str], dict[str, list[str]]]:
        """Return the handles of this cluster, and the others by their clusters.

        A call that another process or another cluster forwarded stays here, and so do handles of an unknown cluster.
        """
        ours, theirs = list[str](), dict[str, list[str]]()
        others = self._clusters.others
        if not others or from_cluster(call.headers) or is_forwarded(call.headers):
            return list(handles), theirs
        for handle in handles:
            cluster = cluster_of_handle(handle)
            if cluster in others:
                theirs.setdefault(cluster, []).append(handle)
            else:
                ours.append(handle)
        return ours, theirs

    async def ask(self, cluster: str, call: Call, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cluster's JSON answer to a call with handles; raises as `Clusters.ask_body` does."""
        answer = await self._clusters.ask_body(cluster, call.with_json(msgspec.json.encode(body)))
        return json_of(answer, dict[str, Any])

    async def ask_all(
        self, theirs: Mapping[str, Sequence[str]], call: Call, body: Mapping[str, Any]
    ) -> list[FailedHandle]:
        """Ask each cluster with its handles; return those that were refused.

        Raises
        ------
        DeltaMQError
            One cluster did not succeed: `queue_unserved` if it is away. Others may have applied their parts: repeating
            the whole request is safe.
        """
        asking = [self.ask(cluster, call, {**body, "handles": handles}) for cluster, handles in theirs.items()]
        return failed_of(await together(asking))


#: The epoch of the topic's copy by which a cluster forwarded a call.
GLOBAL_EPOCH: Final = b"mq-global-epoch"
CLUSTER_PROOF: Final = b"mq-cluster-proof"
_BODY: Final = b"mq-body"
#: Headers of a request that are never sent on to another cluster: those made new, and a caller's credentials.
OWN_HEADERS: Final = frozenset(
    (
        *(FORWARDED, META_OFFSET, PROOF, CLUSTER, GLOBAL_EPOCH, PRINCIPAL, _BODY, CLUSTER_PROOF),
        *(b"authorization", b"proxy-authorization", b"cookie"),
    )
)
#: Headers that the proof covers, beside all that begin with `mq-`.
_PROVED: Final = frozenset((b"content-type", b"accept", b"last-event-id"))
_USE: Final = b"calls between clusters"


def principal_of(headers: Collection[Header]) -> str:
    """Return the principal in another cluster's request; empty for that cluster itself."""
    return _header(headers, PRINCIPAL).decode("latin-1")


def cluster_unproved() -> Forbidden:
    """Return the error for a request of another cluster without a valid proof."""
    return Forbidden(
        "Mq-Cluster is only for other clusters, with a proof: all need the same service.clusters_shared_secret, the"
        " same names for each other, and correct clocks",
        code="cluster_unproved",
        field="Mq-Cluster",
    )


class ClusterProofs:
    """Makes and checks proofs with the secret that clusters share."""

    def __init__(self, here: str, secret: bytes, now_ms: Callable[[], int]) -> None:
        """`here` is this cluster's name; proofs are made and checked by the clock `now_ms`."""
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
        """Return `receive` for a request that another cluster forwarded: it refuses a body without a proof.

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
        (name, value)
        for name, value in headers
        if name != CLUSTER_PROOF and (name.startswith(b"mq-") or name in _PROVED)
    )
    flat = (part for header in about for part in header)
    return (cluster.encode(), method.encode(), target, *flat)


def _header(headers: Collection[Header], name: bytes) -> bytes:
    """Return the header; empty if there is none, or more than one."""
    values = [value for key, value in headers if key == name]
    return values[0] if len(values) == 1 else b""


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
