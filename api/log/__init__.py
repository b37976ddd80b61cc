"""Partitions as the service writes and searches them: group commit, the queue's own logs, filters, counters."""

from __future__ import annotations
