"""Handles of global topics' messages that other clusters gave: calls with them go there (SPEC STATIC-19).

    west~1AAGL...  --> POST /v1/groups/{group}/ack at west, for all of a call's handles that west gave
    east~1AAGL...  --> this cluster's own; so is one without a cluster, and any in a call that was sent on before

Clusters share no secret for handles: what a handle says of its cluster decides where it is looked at, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from deltamq.api.host.clusters import Clusters, from_cluster
from deltamq.api.host.owners import failed_of, together
from deltamq.api.host.peer_json import json_of
from deltamq.api.host.peers import Call, is_forwarded
from deltamq.mq.queue.handle import cluster_of_handle
from deltamq.mq.wire.pop import FailedHandle


class ClusterHandles:
    """Sends calls with handles to the clusters that gave them; used on the event loop."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    def split(self, handles: Sequence[str], call: Call) -> tuple[list[str], dict[str, list[str]]]:
        """Return the handles that are this cluster's matter, and the others by their clusters.

        A call that another process or another cluster has sent on stays here, and so does a cluster that is not known.
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
        """Return what the cluster answers to a call with handles, from JSON; raises what `Clusters.told` does."""
        told = await self._clusters.told(cluster, call.with_json(msgspec.json.encode(body)))
        return json_of(told, dict[str, Any])

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
