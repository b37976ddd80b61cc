"""Message filters as SQL92 conditions: `region = 'eu' AND amount > 5` (SPEC CONS-9)."""

from __future__ import annotations
