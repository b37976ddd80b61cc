"""The composition root: one `Service` makes and holds all parts of a service process."""

from __future__ import annotations

from api.service.service import Service

__all__ = ["Service"]
