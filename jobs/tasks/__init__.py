"""Work in the Python workers of Spark: one item of work is one task, and DeltaMQ's errors reach the driver."""

from __future__ import annotations
