"""The endpoints of the REST API, one module for each resource or hot call, with their part of the OpenAPI document."""

from __future__ import annotations

from typing import Final

from api.routes import cancel, cluster, dead_letters, failed_messages, group_offsets, groups, heartbeats, locks, topics
from api.routes.fetch import ARROW_TYPE, answer_fetch
from api.routes.handles import CALLS, answer_handles
from api.routes.pop import answer_pop
from api.routes.produce import JSON_TYPE, NDJSON_TYPE, answer_produce
from api.routes.sse import EVENTS_TYPE

__all__ = [
    "ARROW_TYPE",
    "CALLS",
    "EVENTS_TYPE",
    "JSON_TYPE",
    "NDJSON_TYPE",
    "ROUTERS",
    "answer_fetch",
    "answer_handles",
    "answer_pop",
    "answer_produce",
]

#: The routers that FastAPI serves, in the order of the OpenAPI document.
ROUTERS: Final = tuple(
    module.router
    for module in (
        topics,
        cancel,
        groups,
        group_offsets,
        heartbeats,
        locks,
        failed_messages,
        dead_letters,
        cluster,
    )
)
