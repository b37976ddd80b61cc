"""Static topics: logical queues of segments, the mappings that brokers store, and how queues move (SPEC STATIC)."""

from __future__ import annotations
