"""The extent of a read and its rows for Spark: ranges of offsets, a filter, columns."""

from __future__ import annotations
