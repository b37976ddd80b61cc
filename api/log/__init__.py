"""Partitions as the service writes them: group commit, the queue's own logs, upkeep, counters."""

from __future__ import annotations
