"""What a read covers and how its rows reach Spark: ranges of offsets, a filter, columns."""

from __future__ import annotations
