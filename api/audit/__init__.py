"""The audit: acts are recorded before they are confirmed, refusals are counted (SPEC SEC-40 to SEC-42)."""

from __future__ import annotations
