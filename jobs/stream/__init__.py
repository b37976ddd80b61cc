"""Topics as streams: the plan of a batch, progress shown as a group's, and a query's lag (SPEC SPARK-2, 12)."""

from __future__ import annotations
