"""What administrators did and what was refused, as records for `sys/audit` (SPEC SEC-40 to SEC-42)."""

from __future__ import annotations
