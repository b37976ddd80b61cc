"""What this process hosts: roles and leases, peers, topics and groups as the metadata log says, fences."""

from __future__ import annotations

from api.host.fencing import Fencing, passes
from api.host.hosted_group import Groups
from api.host.hosted_meta import HostedMeta
from api.host.hosted_topic import GONE, HostedTopic, Topics
from api.host.hosting import Hosting, LeaseTimes
from api.host.owners import Owners, Relayed, failed_of, together
from api.host.peers import Call, Peer, Peers, is_forwarded, is_proved, meta_offset_of
from api.host.producers import draw_of
from api.host.queue_states import queue_states
from api.host.sealing import Sealer
from api.host.static_topics import StaticTopics

__all__ = [
    "GONE",
    "Call",
    "Fencing",
    "Groups",
    "HostedMeta",
    "HostedTopic",
    "Hosting",
    "LeaseTimes",
    "Owners",
    "Peer",
    "Peers",
    "Relayed",
    "Sealer",
    "StaticTopics",
    "Topics",
    "draw_of",
    "failed_of",
    "is_forwarded",
    "is_proved",
    "meta_offset_of",
    "passes",
    "queue_states",
    "together",
]
