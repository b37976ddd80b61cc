"""What this process hosts: roles and leases, peers, topics and groups as the metadata log says, fences."""

from __future__ import annotations

from deltamq.api.host.cluster_handles import ClusterHandles
from deltamq.api.host.cluster_proof import ClusterProofs, principal_of
from deltamq.api.host.clusters import Clusters, away, from_cluster, global_epoch_of, guarded, unknown_here
from deltamq.api.host.fencing import Fencing, passes
from deltamq.api.host.global_copies import GlobalCopies, RememberedNumbers, global_path
from deltamq.api.host.global_topics import GlobalTopics, refuse_global
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosted_topic import GONE, HostedTopic, Topics
from deltamq.api.host.hosting import Hosting, LeaseTimes
from deltamq.api.host.owners import Owners, Relayed, failed_of, together
from deltamq.api.host.peer_json import json_of, unreadable
from deltamq.api.host.peers import (
    Call,
    Peer,
    Peers,
    as_response,
    is_forwarded,
    is_passed_on,
    is_proved,
    meta_offset_of,
    only_authorization,
)
from deltamq.api.host.producers import draw_of
from deltamq.api.host.queue_states import QueueState, queue_states
from deltamq.api.host.sealing import Sealer
from deltamq.api.host.static_topics import StaticTopics

__all__ = [
    "GONE",
    "Call",
    "ClusterHandles",
    "ClusterProofs",
    "Clusters",
    "Fencing",
    "GlobalCopies",
    "GlobalTopics",
    "Groups",
    "HostedMeta",
    "HostedTopic",
    "Hosting",
    "LeaseTimes",
    "Owners",
    "Peer",
    "Peers",
    "QueueState",
    "Relayed",
    "RememberedNumbers",
    "Sealer",
    "StaticTopics",
    "Topics",
    "as_response",
    "away",
    "draw_of",
    "failed_of",
    "from_cluster",
    "global_epoch_of",
    "global_path",
    "guarded",
    "is_forwarded",
    "is_passed_on",
    "is_proved",
    "json_of",
    "meta_offset_of",
    "only_authorization",
    "passes",
    "principal_of",
    "queue_states",
    "refuse_global",
    "together",
    "unknown_here",
    "unreadable",
]
