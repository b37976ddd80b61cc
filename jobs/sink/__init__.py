"""The sink of `format("mq")`: exactly once, through `tables/` (SPEC SPARK-3)."""

from __future__ import annotations
