"""The OpenAPI document: the calls that FastAPI describes, and the hot calls that it does not serve."""

from __future__ import annotations

from deltamq.api.openapi.document import describe

__all__ = [
    "describe",
]
