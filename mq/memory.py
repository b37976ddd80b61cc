"""Deprecated: import `MemoryQueue` from `mq.testing`. The next release removes this module."""

from __future__ import annotations
