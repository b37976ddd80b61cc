"""The producer: routing, executors, batches, long tables."""

from __future__ import annotations
