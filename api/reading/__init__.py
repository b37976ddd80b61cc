"""Reads for clients: of partitions, of the logical queues of static topics, and as event streams."""

from __future__ import annotations
