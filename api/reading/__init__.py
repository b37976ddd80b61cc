"""Reads for clients: of partitions, of the logical queues of static topics, and of global topics."""

from __future__ import annotations
