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
)

#: The routers that FastAPI serves, in the order of the OpenAPI document; the routers of `api.principals` follow.
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
    cluster.upgrade_router,
    audit.router,
)
