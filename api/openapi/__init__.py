"""The OpenAPI document: the calls that FastAPI describes, and the hot calls that it does not serve."""

from __future__ import annotations
