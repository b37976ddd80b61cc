"""The audit: acts are recorded before they are confirmed, refusals are counted (SPEC SEC-40 to SEC-42)."""

from __future__ import annotations

from deltamq.api.audit.acts import Act, Asking, noting
from deltamq.api.audit.audit import Audit
from deltamq.api.audit.reading import ActView, read_acts, read_refusals

__all__ = [
    "Act",
    "ActView",
    "Asking",
    "Audit",
    "noting",
    "read_acts",
    "read_refusals",
]
