"""The endpoints of the REST API, one module for each resource or hot call, with their part of the OpenAPI document."""

from __future__ import annotations

from typing import Final

from deltamq.api.routes import (
    audit,
    cancel,
    cluster,
    dead_letters,
    failed_messages,
    group_offsets,
    group_statistics,
    groups,
    heartbeats,
    jobs,
    locks,
    static_topics,
    topics,
    upgrade,
)
from deltamq.api.routes.cluster import asking_console
from deltamq.api.routes.fetch import ARROW_TYPE, FetchEndpoint
from deltamq.api.routes.handles import CALLS, HandlesEndpoint
from deltamq.api.routes.pop import PopEndpoint
from deltamq.api.routes.pop_elsewhere import PopForwarder
from deltamq.api.routes.produce import JSON_TYPE, NDJSON_TYPE, ProduceEndpoint

__all__ = [
    "ARROW_TYPE",
    "CALLS",
    "JSON_TYPE",
    "NDJSON_TYPE",
    "ROUTERS",
    "FetchEndpoint",
    "HandlesEndpoint",
    "PopEndpoint",
    "PopForwarder",
    "ProduceEndpoint",
    "asking_console",
]

#: The routers that FastAPI serves, in the order of the OpenAPI document; those of `api.principals` follow.
ROUTERS: Final = (
    topics.router,
    static_topics.router,
    cancel.router,
    groups.router,
    group_offsets.router,
    group_statistics.router,
    heartbeats.router,
    locks.router,
    failed_messages.router,
    dead_letters.router,
    cluster.router,
    jobs.router,
    upgrade.router,
    audit.router,
)
