"""The other clusters that share global topics with this one, and calls to them (SPEC STATIC-19).

    client --> process of east --(Mq-Cluster: east, Mq-Global-Epoch: 7)--> any process of west
           <--                 <------------------------------------------

Clusters share nothing but REST. A call that was forwarded between clusters is not forwarded again: two clusters with
different copies would send it in circles. Instead the receiver reads the home's newest copy if the sender's is newer,
and tells the sender to do so if its own is (`global_epoch`).

With authentication a call carries a proof, made with a secret that the clusters share, and the name of the principal
that asks; a caller's key stays here (`api/host/cluster_proof.py`, SPEC SEC-6). Without that secret nothing goes between
clusters then, in either direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, KeysView, Sequence
from typing import Any, Final

from deltamq.api.host.cluster_proof import GLOBAL_EPOCH, OWN_HEADERS, ClusterProofs
from deltamq.api.host.owners import Relayed
from deltamq.api.host.peer_json import json_of
from deltamq.api.host.peers import CLUSTER, Call, NotConnected, Peers, answer_before
from deltamq.api.wire.answer import Answer, Header
from deltamq.api.wire.request import Client
from deltamq.mq.errors import Unavailable, Unprocessable

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
    """Return the error for what is between clusters, while requests need keys."""
    return Unprocessable(
        f"{what} is refused while the setting service.auth is on and service.clusters_shared_secret is empty: clusters"
        " prove the caller to each other with that secret",
        code="global_unsupported",
        field=field,
    )


def newer_copy(topic: str, detail: str) -> Unavailable:
    """Return the error for a call that another cluster forwarded by an older copy than this cluster's."""
    return Unavailable(f"topic {topic}: {detail}", code=_NEWER)


def has_newer_copy(answer: Answer) -> bool:
    """Whether a cluster answered that its copy is newer: read the home's, and ask again.

    Raises
    ------
    Unavailable
        It answers 503 with something that is no problem document.
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
        """`here` is this cluster's name; `addresses` are names and URLs of the others, several for one if it has.

        `proofs` are made for calls to other clusters, if these share a secret. `is_guarded` says that requests need
        keys here and that there is no such secret: then there is nothing between clusters.
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
        """All of them but its own."""
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
        headers = [one for one in call.headers if one[0] not in OWN_HEADERS]
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
        found = await answer_before(asking, None, client, self._peers.stop_of(call, client))
        assert found is not None, "nothing else ends the asking"
        return found

    async def told(self, cluster: str, call: Call, *, epoch: int = 0) -> bytes:
        """Return the body of another cluster's answer; raise the problem that it answered with.

        `json_of` reads the body: what is between the clusters may have answered.
        """
        answer = await self.ask(cluster, call, epoch=epoch)
        assert isinstance(answer.body, bytes), "answers of other clusters are whole"
        if answer.status >= _NOT_DONE:
            raise Relayed.of(answer)
        return answer.body


def away(cluster: str, reason: str) -> Unavailable:
    """Return the error for a cluster that no request has reached."""
    return Unavailable(
        f"cluster {cluster} cannot be reached: {reason}; its queues keep their places, ask again",
        code="queue_unserved",
        extra={"cluster": cluster},
    )
