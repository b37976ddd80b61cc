"""Deprecated: import `MemoryQueue` from `mq.testing`. The next release removes this module."""

from __future__ import annotations

from deltamq.mq.testing import MemoryQueue

__all__ = ["MemoryQueue"]
